// Adam (Kingma and Ba, 2015) with moments that are kept divided by the powers of their decays: within a group of DECAY_GROUP
// updates the factors of a step make up for it, which saves two multiplications per parameter; `decay_moments` multiplies by
// the powers at the end of the group.
#pragma once
#include "layout.cuh"

constexpr int DECAY_GROUP = 16;
constexpr float LOG2_BETA1 = -0.152003093f, LOG2_BETA2 = -0.00144341687f;  // binary logarithms of 0.9 and 0.999
constexpr float EPS = 1e-5f;

// The factors of update `update` of an iteration, before which there were `previous_steps`: `first` and `second` those of the
// gradient and its square, `rate` that of the first moment, and `root` that of the root of the second.
__device__ __forceinline__ StepFactors make_step_factors(float learning_rate, float previous_steps, int update) {
    const float step = previous_steps + (float)(update + 1), in_group = (float)(update % DECAY_GROUP + 1);
    const float decay1 = exp2f(LOG2_BETA1 * in_group), decay2 = exp2f(LOG2_BETA2 * in_group);
    const float correction1 = -expm1f(step * -0.105360516f), correction2 = -expm1f(step * -0.00100050033f);
    return {learning_rate * decay1 / correction1, sqrtf(decay2 / correction2), 0.1f / decay1, 0.001f / decay2};
}

// Adds the gradient to the moments, and updates the weight.
__device__ __forceinline__ void step_of_adam(
    float& weight, float& exp_avg, float& exp_avg_sq, float gradient, const StepFactors& f) {
    exp_avg += gradient * f.first, exp_avg_sq += gradient * gradient * f.second;
    weight -= f.rate * exp_avg * reciprocal(square_root(exp_avg_sq) * f.root + EPS);
}
