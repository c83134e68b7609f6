// What PPO maximises, for one sample: what it gives, and its derivatives by the numbers that the networks gave.
//
// The four lanes of a row have its numbers, two of each eight, as tensor_core.cuh says. Given before: OUTPUTS, HEADS (sizes of the
// components of an action), CLIP_VALUE, and record.cuh's.
#pragma once
#include "network.cuh"
#include "record.cuh"

constexpr int MEASURED = 5;     // sums: policy loss, value loss, entropy, KL, clipped samples
constexpr float FAR = 1e4f;     // that a derivative may be, as FP16 goes up to 6.5e4

// Sums over the samples of a lane.
struct Measured {
    float policy_loss, entropy, kl, clipped;
};

// How the objective pulls at a log-probability: minus the derivative of the clipped surrogate. `weight` is 1 in the one lane of a row
// that measures, and 0 in the others.
__device__ __forceinline__ float pull(float log_prob, const float* r, float advantage, float clip, float weight, Measured& sum) {
    const float log_ratio = fminf(log_prob - r[LOG_PROB], 80.0f), ratio = __expf(log_ratio);
    const bool up = advantage >= 0.0f;
    const float edge = up ? 1.0f + clip : 1.0f - clip;
    const bool moves = up ? ratio <= edge : ratio >= edge;
    sum.policy_loss -= weight * advantage * (moves ? ratio : edge);
    sum.kl += weight * (ratio - 1.0f - log_ratio);
    sum.clipped += fabsf(ratio - 1.0f) > clip ? weight : 0.0f;
    return moves ? fmaxf(fminf(-advantage * ratio, FAR), -FAR) : 0.0f;
}

// The derivatives of a sample's objective by the policy's numbers, of which a lane has two of each eight; `z` are those of the row.
template <int O> __device__ __forceinline__ void categorical(
    const float (*z)[4], int side, const float* r, float advantage, float clip, float bonus, bool counts, Measured& sum, float (*d)[2]) {
    constexpr int HEAD[] = HEADS;
    constexpr bool ALONE = OUTPUTS <= 2;  // one lane of four has all numbers; what the others make of theirs is left out
    const int t = threadIdx.x & 3;
    float log_prob = 0.0f, entropy = 0.0f, p[O / 8][2] = {}, lp[O / 8][2] = {}, of[O / 8][2] = {}, taken[O / 8][2] = {};
    int first = 0;
#pragma unroll
    for (int head = 0; head < ACTIONS; head++) {
        const int chosen = first + (int)r[ACTION + head];
        float most = -1e30f, total = 0.0f, weighed = 0.0f, mine = 0.0f;
        bool in[O / 8][2];
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int c = ALONE ? 8 * n + i : 8 * n + 2 * t + i;
                in[n][i] = c >= first && c < first + HEAD[head];
                most = in[n][i] ? fmaxf(most, z[n][2 * side + i]) : most;
            }
        if (!ALONE) most = most_of_row(most);
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int c = ALONE ? 8 * n + i : 8 * n + 2 * t + i;
                const float below = z[n][2 * side + i] - most, weight = in[n][i] ? __expf(below) : 0.0f;
                total += weight, weighed += weight * below;
                p[n][i] = in[n][i] ? weight : p[n][i], lp[n][i] = in[n][i] ? below : lp[n][i];
                taken[n][i] = c == chosen ? 1.0f : taken[n][i], mine = c == chosen ? below : mine;
            }
        if (!ALONE) total = over_row(total), weighed = over_row(weighed), mine = over_row(mine);
        const float scale = __fdividef(1.0f, total), log_total = __logf(total), here = log_total - weighed * scale;
        log_prob += mine - log_total, entropy += here;
#pragma unroll
        for (int n = 0; n < O / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                p[n][i] *= in[n][i] ? scale : 1.0f, lp[n][i] -= in[n][i] ? log_total : 0.0f;
                of[n][i] = in[n][i] ? here : of[n][i];
            }
        first += HEAD[head];
    }
    const float weight = counts && t == 0 ? 1.0f : 0.0f;
    sum.entropy += weight * entropy;
    const float found = pull(log_prob, r, advantage, clip, weight, sum);
    const bool here = ALONE ? counts && t == 0 : counts;
    const float by = here ? found : 0.0f, with = here ? bonus : 0.0f;
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) d[n][i] = by * (taken[n][i] - p[n][i]) + with * p[n][i] * (lp[n][i] + of[n][i]);
}

// Likewise for normal components; `spread` sums up the derivatives by the logarithms of their standard deviations.
template <int O> __device__ __forceinline__ void gaussian(
    const float (*z)[4], int side, const float* r, float advantage, float clip, float bonus, bool counts, Measured& sum, float (*d)[2],
    const float (*log_std)[2], float (*spread)[2]) {
    const int t = threadIdx.x & 3;
    float log_prob = 0.0f, entropy = 0.0f, off[O / 8][2], inverse[O / 8][2];
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            const bool in = c < OUTPUTS;
            inverse[n][i] = in ? __expf(-log_std[n][i]) : 0.0f;
            off[n][i] = in ? (r[ACTION + c] - z[n][2 * side + i]) * inverse[n][i] : 0.0f;
            log_prob -= in ? 0.5f * off[n][i] * off[n][i] + log_std[n][i] + LOG_SQRT_TWO_PI : 0.0f;
            entropy += in ? log_std[n][i] + (0.5f + LOG_SQRT_TWO_PI) : 0.0f;
        }
    sum.entropy += counts ? entropy : 0.0f;
    const float found = pull(over_row(log_prob), r, advantage, clip, counts && t == 0 ? 1.0f : 0.0f, sum);
    const float by = counts ? found : 0.0f, with = counts ? bonus : 0.0f;
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            d[n][i] = fmaxf(fminf(by * off[n][i] * inverse[n][i], FAR), -FAR);
            spread[n][i] += 8 * n + 2 * t + i < OUTPUTS ? by * (off[n][i] * off[n][i] - 1.0f) - with : 0.0f;
        }
}

// The derivative of a sample's value loss by the value.
__device__ __forceinline__ float regression(float value, const float* r, float clip, float factor, float weight, float& loss) {
    const float error = value - r[TARGET];
    float e = error;
    bool moves = true;
    if (CLIP_VALUE) {
        const float old = r[TARGET] - r[ADVANTAGE], kept = old + fminf(fmaxf(value - old, -clip), clip) - r[TARGET];
        const bool farther = kept * kept > error * error;
        e = farther ? kept : error, moves = !farther || fabsf(value - old) <= clip;
    }
    loss += weight * 0.5f * e * e;
    return moves ? weight * fmaxf(fminf(factor * e, FAR), -FAR) : 0.0f;
}
