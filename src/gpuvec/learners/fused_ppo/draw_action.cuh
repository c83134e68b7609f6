// The draw of an action from the outputs of a policy.
//
// Macros, besides those of network.cuh and action_draws.cuh: ACTION_SIZE, GAUSSIAN, HEAD_SIZES, ACTION_STARTS (the smallest value
// of each component of an action), HAS_ACTION_MASK.
#pragma once
#include "action_draws.cuh"
#include "network.cuh"

constexpr int NUM_DRAWS = GAUSSIAN ? 2 * ACTION_SIZE : ACTION_SIZE;  // uniform numbers of a step

// Draws the action of a sample from the outputs of the policy, stores it, and returns its log-probability. `action` receives it
// as the environment takes it. With HAS_ACTION_MASK `allowed` has a bit for each output.
__device__ __forceinline__ float draw_action(
    const Batch& b, i64 sample, const float* outputs, const float* uniform, const u32* allowed, Component* action) {
    float log_prob = 0.0f;
#if GAUSSIAN
#pragma unroll
    for (int k = 0; k < ACTION_SIZE; k++) {
        const float log_std = b.parameters[Network<OUTPUTS>::LOG_STD + k];
        const float radius = sqrtf(-2.0f * __logf(1.0f - uniform[2 * k])),
                    normal = radius * __cosf(6.2831853f * uniform[2 * k + 1]);
        const float component = outputs[k] + __expf(log_std) * normal;
        log_prob -= 0.5f * normal * normal + log_std + LOG_SQRT_TWO_PI;
        ((float*)b.action)[sample * ACTION_SIZE + k] = component;
        action[k] = fminf(fmaxf(component, b.low[k]), b.high[k]);
    }
#else
    constexpr int SIZES[] = HEAD_SIZES, STARTS[] = ACTION_STARTS;
    int first = 0;
#pragma unroll
    for (int k = 0; k < ACTION_SIZE; k++) {
        float max_logit = -1e30f, total = 0.0f, cumulative = 0.0f, shifted_logit = 0.0f;
        auto is_allowed = [&](int c) { return !HAS_ACTION_MASK || allowed[c / 32] >> c % 32 & 1; };
#pragma unroll
        for (int j = 0; j < SIZES[k]; j++)
            if (is_allowed(first + j)) max_logit = fmaxf(max_logit, outputs[first + j]);
        // Computed twice, because many weights do not fit into registers.
        auto weight = [&](int c) { return is_allowed(c) ? __expf(outputs[c] - max_logit) : 0.0f; };
#pragma unroll
        for (int j = 0; j < SIZES[k]; j++) total += weight(first + j);
        const float threshold = uniform[k] * total;
        int choice = -1;
        bool is_reached = false;  // whether the sum of the weights before this action is above the threshold
#pragma unroll
        for (int j = 0; j < SIZES[k]; j++) {
            const float own_weight = weight(first + j);
            cumulative += own_weight;
            // Rounding can leave the threshold unreached; then the last action with a probability is the choice.
            const bool is_choice = HAS_ACTION_MASK ? own_weight > 0.0f && (choice < 0 || !is_reached)
                                                   : choice < 0 && (cumulative > threshold || j == SIZES[k] - 1);
            is_reached = is_reached || cumulative > threshold;
            choice = is_choice ? j : choice, shifted_logit = is_choice ? outputs[first + j] - max_logit : shifted_logit;
        }
        // Without an allowed action the log-probability is nan, as that of sampling/sampler.py.
        if (HAS_ACTION_MASK && choice < 0) choice = 0, shifted_logit = __uint_as_float(0x7FC00000u);
        log_prob += shifted_logit - __logf(total);
        ((i64*)b.action)[sample * ACTION_SIZE + k] = choice;
        action[k] = choice + STARTS[k];
        first += SIZES[k];
    }
#endif
    return log_prob;
}
