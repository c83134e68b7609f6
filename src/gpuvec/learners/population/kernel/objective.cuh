// The objective of PPO for one sample, which one lane computes: the derivatives of the loss by the outputs of a network, and
// the terms of the metrics.
#pragma once
#include "layout.cuh"

constexpr float MAX_DERIVATIVE = 1e4f, MAX_TERM = 6e4f;  // clamps, because FP16 overflows at 6.5e4
constexpr float LARGE_LOSS = 1024.0f, LOSS_UNIT = 4096.0f;  // value losses from LARGE_LOSS on are counted in LOSS_UNIT
// Terms of the actor, and of the critic.
constexpr int POLICY_LOSS = DERIVATIVES, ENTROPY = POLICY_LOSS + 1, KL = POLICY_LOSS + 2, CLIPPED = POLICY_LOSS + 3;
constexpr int SMALL_VALUE_LOSS = DERIVATIVES, LARGE_VALUE_LOSS = SMALL_VALUE_LOSS + 1;

// Returns minus the derivative of the clipped surrogate by the log-probability of the action, and stores the terms.
__device__ __forceinline__ float surrogate_derivative(float log_prob, const float* record, float advantage, float clip,
    float (&d)[Z]) {
    const float log_ratio = fminf(log_prob - record[LOG_PROB], 80.0f), ratio = exponential(log_ratio);
    const bool is_positive = advantage >= 0.0f;
    const float bound = is_positive ? 1.0f + clip : 1.0f - clip;
    const bool is_within = is_positive ? ratio <= bound : ratio >= bound;
    d[POLICY_LOSS] = clamp_magnitude(-advantage * (is_within ? ratio : bound), MAX_TERM);
    d[KL] = clamp_magnitude(ratio - 1.0f - log_ratio, MAX_TERM);
    d[CLIPPED] = fabsf(ratio - 1.0f) > clip ? 1.0f : 0.0f;
    return is_within ? clamp_magnitude(-advantage * ratio, MAX_DERIVATIVE) : 0.0f;
}

#if GAUSSIAN
// For the means z; `tail` has the last biases, then the logarithms of the standard deviations.
__device__ __forceinline__ void actor_derivatives(
    const float (&z)[OUTPUTS], const float* tail, const float* record, float advantage, const Settings& s, float (&d)[Z]) {
    float log_prob = 0.0f, entropy = 0.0f, normal[K], inverse_std[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const float log_std = tail[K + k];
        inverse_std[k] = exponential(-log_std), normal[k] = (record[ACTION + k] - z[k]) * inverse_std[k];
        log_prob -= 0.5f * normal[k] * normal[k] + log_std + LOG_SQRT_TWO_PI, entropy += log_std + (0.5f + LOG_SQRT_TWO_PI);
    }
    const float by_log_prob = surrogate_derivative(log_prob, record, advantage, s.clip, d);
#pragma unroll
    for (int k = 0; k < K; k++) {
        d[k] = clamp_magnitude(by_log_prob * normal[k] * inverse_std[k], MAX_DERIVATIVE);
        d[K + k] = clamp_magnitude(by_log_prob * (normal[k] * normal[k] - 1.0f) - s.ent_coef, MAX_DERIVATIVE);
    }
    d[ENTROPY] = clamp_magnitude(entropy, MAX_TERM);
}
#else
// For the logits z.
__device__ __forceinline__ void actor_derivatives(
    const float (&z)[OUTPUTS], const float*, const float* record, float advantage, const Settings& s, float (&d)[Z]) {
    const int action = (int)record[ACTION];
    float max_logit = z[0], total = 0.0f, weighted_sum = 0.0f, action_logit = 0.0f, p[OUTPUTS];
#pragma unroll
    for (int k = 1; k < OUTPUTS; k++) max_logit = fmaxf(max_logit, z[k]);
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
        const float shifted = z[k] - max_logit;
        p[k] = exponential(shifted), total += p[k], weighted_sum += p[k] * shifted,
            action_logit = k == action ? shifted : action_logit;
    }
    const float scale = reciprocal(total), log_total = logarithm(total), entropy = log_total - weighted_sum * scale;
    const float by_log_prob = surrogate_derivative(action_logit - log_total, record, advantage, s.clip, d);
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) {
        const float probability = p[k] * scale;
        d[k] = by_log_prob * ((k == action ? 1.0f : 0.0f) - probability)
            + s.ent_coef * probability * (z[k] - max_logit - log_total + entropy);
    }
    d[ENTROPY] = entropy;
}
#endif

// For the value: of the clipped error where it is larger, if CLIP_VALUE.
__device__ __forceinline__ void critic_derivative(float value, const float* record, const Settings& s, float (&d)[Z]) {
    const float error = value - record[TARGET];
    float max_error = error;
    bool depends_on_value = true;
    if (CLIP_VALUE) {
        const float old_value = record[TARGET] - record[ADVANTAGE], moved = value - old_value;
        const float clipped_error = old_value + fminf(fmaxf(moved, -s.clip), s.clip) - record[TARGET];
        const bool is_clipped_larger = clipped_error * clipped_error > error * error;
        max_error = is_clipped_larger ? clipped_error : error;
        depends_on_value = !is_clipped_larger || fabsf(moved) <= s.clip;
    }
    d[0] = depends_on_value ? clamp_magnitude(s.vf_coef * max_error, MAX_DERIVATIVE) : 0.0f;
    const float loss = 0.5f * max_error * max_error;
    const bool is_large = loss >= LARGE_LOSS;
    d[SMALL_VALUE_LOSS] = is_large ? 0.0f : loss;
    d[LARGE_VALUE_LOSS] = is_large ? clamp_magnitude(loss * (1.0f / LOSS_UNIT), MAX_TERM) : 0.0f;
}
