// The objective of PPO for one sample: sums of its terms, and its derivatives by the outputs of the networks.
//
// The four lanes of a row each have two of every eight outputs, as tensor_core.cuh describes.
//
// Macros, besides those of network.cuh and record.cuh: GAUSSIAN, HEAD_SIZES (of the components of a discrete action), CLIP_VALUE.
#pragma once
#include "network.cuh"
#include "record.cuh"

constexpr int NUM_SUMS = 5;             // policy loss, value loss, entropy, KL, clipped samples
constexpr float MAX_DERIVATIVE = 1e4f;  // derivatives are clamped, because FP16 overflows at 6.5e4

// Sums of the actor's terms over the samples of a lane.
struct ActorSums {
    float policy_loss, entropy, kl, clipped;
};

// Returns minus the derivative of the clipped surrogate by the log-probability of the action, and adds the terms of the sample
// times `weight`, which is 1 in one lane of a row and 0 in the others.
__device__ __forceinline__ float surrogate_derivative(
    float log_prob, const float* r, float advantage, float clip, float weight, ActorSums& sums) {
    const float log_ratio = fminf(log_prob - r[LOG_PROB], 80.0f), ratio = __expf(log_ratio);
    const bool is_positive = advantage >= 0.0f;
    const float bound = is_positive ? 1.0f + clip : 1.0f - clip;
    const bool is_within = is_positive ? ratio <= bound : ratio >= bound;
    sums.policy_loss -= weight * advantage * (is_within ? ratio : bound);
    sums.kl += weight * (ratio - 1.0f - log_ratio);
    sums.clipped += fabsf(ratio - 1.0f) > clip ? weight : 0.0f;
    return is_within ? fmaxf(fminf(-advantage * ratio, MAX_DERIVATIVE), -MAX_DERIVATIVE) : 0.0f;
}

// The derivatives d of the loss of a sample by the logits z of its row, for a discrete action. Forbidden actions have probability
// 0. A row that is not active may have no allowed action, so its mask is not applied.
template <int O> __device__ __forceinline__ void categorical_derivatives(const float (*z)[4], int side, const float* r,
    float advantage, float clip, float ent_coef, bool active, ActorSums& sums, float (*d)[2]) {
    constexpr int SIZES[] = HEAD_SIZES;
    constexpr bool ONE_LANE = OUTPUTS <= 2;  // one lane of four has all logits; the results of the others are not used
    const int t = threadIdx.x & 3;
    float log_prob = 0.0f, entropy = 0.0f, p[O / 8][2] = {}, log_p[O / 8][2] = {}, entropies[O / 8][2] = {},
          is_action[O / 8][2] = {};
    int first = 0;
#pragma unroll
    for (int head = 0; head < ACTION_SIZE; head++) {
        const int action = first + (int)r[ACTION + head];
        float max_logit = -1e30f, total = 0.0f, weighted_sum = 0.0f, shifted_action_logit = 0.0f;
        bool in_head[O / 8][2];
        // Most heads have a part of the columns alone, which is known when the kernel is compiled.
        auto has_columns = [&](int n) { return 8 * n + 8 > first && 8 * n < first + SIZES[head]; };
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int c = ONE_LANE ? 8 * n + i : 8 * n + 2 * t + i;
                in_head[n][i] = has_columns(n) && c >= first && c < first + SIZES[head];
#if HAS_ACTION_MASK
                const u32 bits = active ? __float_as_uint(r[ALLOWED + n / 4]) : ~0u;
                in_head[n][i] = in_head[n][i] && bits >> (c - n / 4 * 32) & 1;
#endif
                max_logit = in_head[n][i] ? fmaxf(max_logit, z[n][2 * side + i]) : max_logit;
            }
        if (!ONE_LANE) max_logit = max_over_row(max_logit);
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!has_columns(n)) continue;
                const int c = ONE_LANE ? 8 * n + i : 8 * n + 2 * t + i;
                const float shifted = z[n][2 * side + i] - max_logit, weight = in_head[n][i] ? __expf(shifted) : 0.0f;
                total += weight, weighted_sum += weight * shifted;
                p[n][i] = in_head[n][i] ? weight : p[n][i], log_p[n][i] = in_head[n][i] ? shifted : log_p[n][i];
                is_action[n][i] = c == action ? 1.0f : is_action[n][i],
                shifted_action_logit = c == action ? shifted : shifted_action_logit;
            }
        if (!ONE_LANE)
            total = sum_over_row(total), weighted_sum = sum_over_row(weighted_sum),
            shifted_action_logit = sum_over_row(shifted_action_logit);
        const float scale = __fdividef(1.0f, total), log_total = __logf(total), head_entropy = log_total - weighted_sum * scale;
        log_prob += shifted_action_logit - log_total, entropy += head_entropy;
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!has_columns(n)) continue;
                p[n][i] *= in_head[n][i] ? scale : 1.0f, log_p[n][i] -= in_head[n][i] ? log_total : 0.0f;
                entropies[n][i] = in_head[n][i] ? head_entropy : entropies[n][i];
            }
        first += SIZES[head];
    }
    const float weight = active && t == 0 ? 1.0f : 0.0f;
    sums.entropy += weight * entropy;
    const float derivative = surrogate_derivative(log_prob, r, advantage, clip, weight, sums);
    const bool is_used = ONE_LANE ? active && t == 0 : active;
    const float by_log_prob = is_used ? derivative : 0.0f, by_entropy = is_used ? ent_coef : 0.0f;
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            d[n][i] = by_log_prob * (is_action[n][i] - p[n][i]) + by_entropy * p[n][i] * (log_p[n][i] + entropies[n][i]);
}

// The derivatives d of the loss of a sample by the means z of its row, for an action of normal components; those by the
// logarithms of the standard deviations are added to d_log_std.
template <int O> __device__ __forceinline__ void gaussian_derivatives(const float (*z)[4], int side, const float* r,
    float advantage, float clip, float ent_coef, bool active, ActorSums& sums, float (*d)[2], const float (*log_std)[2],
    float (*d_log_std)[2]) {
    const int t = threadIdx.x & 3;
    float log_prob = 0.0f, entropy = 0.0f, normal[O / 8][2], inverse_std[O / 8][2];
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            const bool is_output = c < OUTPUTS;
            inverse_std[n][i] = is_output ? __expf(-log_std[n][i]) : 0.0f;
            normal[n][i] = is_output ? (r[ACTION + c] - z[n][2 * side + i]) * inverse_std[n][i] : 0.0f;
            log_prob -= is_output ? 0.5f * normal[n][i] * normal[n][i] + log_std[n][i] + LOG_SQRT_TWO_PI : 0.0f;
            entropy += is_output ? log_std[n][i] + (0.5f + LOG_SQRT_TWO_PI) : 0.0f;
        }
    sums.entropy += active ? entropy : 0.0f;
    const float derivative =
        surrogate_derivative(sum_over_row(log_prob), r, advantage, clip, active && t == 0 ? 1.0f : 0.0f, sums);
    const float by_log_prob = active ? derivative : 0.0f, by_entropy = active ? ent_coef : 0.0f;
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            d[n][i] = fmaxf(fminf(by_log_prob * normal[n][i] * inverse_std[n][i], MAX_DERIVATIVE), -MAX_DERIVATIVE);
            d_log_std[n][i] +=
                8 * n + 2 * t + i < OUTPUTS ? by_log_prob * (normal[n][i] * normal[n][i] - 1.0f) - by_entropy : 0.0f;
        }
}

// Returns the derivative of the value loss of a sample by its value, and adds the loss to `loss`, both times `weight`.
__device__ __forceinline__ float value_derivative(
    float value, const float* r, float clip, float vf_coef, float weight, float& loss) {
    const float error = value - r[TARGET];
    float max_error = error;
    bool depends_on_value = true;
    if (CLIP_VALUE) {
        const float old_value = r[TARGET] - r[ADVANTAGE];
        const float clipped_error = old_value + fminf(fmaxf(value - old_value, -clip), clip) - r[TARGET];
        const bool is_clipped_larger = clipped_error * clipped_error > error * error;
        max_error = is_clipped_larger ? clipped_error : error,
        depends_on_value = !is_clipped_larger || fabsf(value - old_value) <= clip;
    }
    loss += weight * 0.5f * max_error * max_error;
    return depends_on_value ? weight * fmaxf(fminf(vf_coef * max_error, MAX_DERIVATIVE), -MAX_DERIVATIVE) : 0.0f;
}

// The objective of a network with O padded outputs for the samples of a lane: derivatives by the outputs, and sums over samples.
template <bool ACTOR, int O> struct Objective {
    float clip, vf_coef, ent_coef = 0.0f, advantage_mean = 0.0f, advantage_scale = 0.0f, value_loss = 0.0f;
    float log_std[O / 8][2], db3[O / 8][2] = {}, d_log_std[O / 8][2] = {};  // those of the last biases and of log_std are sums
    float count, total, squares;                                          // parts of the sums over the minibatch's advantages
    ActorSums sums = {};

    // Starts to load what the parameters are loaded together with.
    template <typename Batch>
    __device__ __forceinline__ Objective(const Batch& b) : clip((float)b.clip), vf_coef((float)b.vf_coef) {
        if (!ACTOR) return;
        const float* parts = b.advantage_sums + b.minibatch * 3 * 32 + (threadIdx.x & 31);
        count = parts[0], total = parts[32], squares = parts[64], advantage_mean = b.advantage[0], ent_coef = *b.ent_coef;
    }
    // Completes the moments of the advantages, and loads log_std of the parameters of the network.
    __device__ __forceinline__ void start(const float* parameters) {
        if (ACTOR) {
            count = sum_over_warp(count), total = sum_over_warp(total), squares = sum_over_warp(squares);
            const float mean = total / fmaxf(count, 1.0f),
                        variance = fmaxf(squares - total * mean, 0.0f) / fmaxf(count - 1.0f, 1.0f);
            advantage_mean += mean, advantage_scale = 1.0f / (sqrtf(variance) + 1e-8f);
        }
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                log_std[n][i] = GAUSSIAN ? parameters[Network<ACTOR ? OUTPUTS : 1>::LOG_STD + 8 * n + 2 * (threadIdx.x & 3) + i] : 0.0f;
    }
    // Writes the derivatives by the outputs z of one side of a tile, whose record is r, in FP16. A sample that is not active adds none.
    __device__ __forceinline__ void differentiate(const float (*z)[4], int side, const float* r, bool active, u32 (*dz)[2]) {
        const bool is_first_lane = (threadIdx.x & 3) == 0;
        float d[O / 8][2] = {};
        if (ACTOR) {
            const float advantage = (r[ADVANTAGE] - advantage_mean) * advantage_scale;
#if GAUSSIAN
            gaussian_derivatives<O>(z, side, r, advantage, clip, ent_coef, active, sums, d, log_std, d_log_std);
#else
            categorical_derivatives<O>(z, side, r, advantage, clip, ent_coef, active, sums, d);
#endif
        } else {
            d[0][0] = value_derivative(z[0][2 * side], r, clip, vf_coef, active && is_first_lane ? 1.0f : 0.0f, value_loss);
        }
#pragma unroll
        for (int n = 0; n < O / 8; n++)
            db3[n][0] += d[n][0], db3[n][1] += d[n][1], dz[n][side] = pack_halves(d[n][0], d[n][1]);
    }
    // Writes the sums over the samples of a warp: db3, d_log_std, and those of the loss.
    __device__ __forceinline__ void store_sums(float* warp_sums) const {
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float bias_sum = sum_over_column(db3[n][i]), log_std_sum = sum_over_column(d_log_std[n][i]);
                if (g == 0) warp_sums[8 * n + 2 * t + i] = bias_sum, warp_sums[O + 8 * n + 2 * t + i] = log_std_sum;
            }
        const float loss_sums[NUM_SUMS] = {sums.policy_loss, value_loss, sums.entropy, sums.kl, sums.clipped};
#pragma unroll
        for (int k = 0; k < NUM_SUMS; k++) {
            const float sum = sum_over_warp(loss_sums[k]);
            if (lane == 0) warp_sums[2 * O + k] = sum;
        }
    }
};
