// The loss of PPO on a minibatch, its metrics, and its gradient by the outputs of networks that are computed elsewhere.
//
// The four lanes of a row are those of objective.cuh; a warp has eight rows at a time. With ROW_PER_WARP, for many outputs, it has
// one row, and a lane has whole heads. The last block that ends sums the terms of all blocks, in the order of their numbers, so
// that runs are reproducible bit by bit.
//
// Macros: those of objective.cuh; FEATURES is 0, and records are not in memory; ROW_PER_WARP.
#include "objective.cuh"

constexpr int O = (OUTPUTS + 7) / 8 * 8, THREADS = 32 * WARPS, ROWS = ROW_PER_WARP ? 1 : 8;

#if ROW_PER_WARP
__constant__ int HEAD_WIDTHS[] = HEAD_SIZES;
__constant__ int HEAD_STARTS[] = HEAD_OFFSETS;
constexpr int HEADS_PER_LANE = (ACTION_SIZE + 31) / 32;

// Replaces the logits z of a row by the derivatives of the loss; they are in shared memory.
__device__ __forceinline__ void wide_derivatives(const Batch& b, i64 sample, float* z, const float* r, float advantage,
    float ent_coef, bool active, float scale, ActorSums& sums) {
    const int lane = threadIdx.x & 31;
    float max_logit[HEADS_PER_LANE] = {}, log_total[HEADS_PER_LANE] = {}, head_entropy[HEADS_PER_LANE] = {};
    float log_prob = 0.0f, entropy = 0.0f;
#pragma unroll
    for (int k = 0; k < HEADS_PER_LANE; k++) {
        const int head = 32 * k + lane;
        if (head >= ACTION_SIZE) break;
        const float* logits = z + HEAD_STARTS[head];
        const int width = HEAD_WIDTHS[head];
        float largest = -1e30f, total = 0.0f, weighted_sum = 0.0f;
        for (int j = 0; j < width; j++) largest = fmaxf(largest, logits[j]);
        for (int j = 0; j < width; j++) {
            const float shifted = logits[j] - largest, weight = __expf(shifted);
            total += weight, weighted_sum += weight * shifted;
        }
        max_logit[k] = largest, log_total[k] = __logf(total);
        head_entropy[k] = log_total[k] - weighted_sum * __fdividef(1.0f, total);
        log_prob += logits[b.action[sample * ACTION_SIZE + head]] - largest - log_total[k], entropy += head_entropy[k];
    }
    log_prob = sum_over_warp(log_prob), entropy = sum_over_warp(entropy);
    const float weight = active && lane == 0 ? 1.0f : 0.0f;
    sums.entropy += weight * entropy;
    const float derivative = surrogate_derivative(log_prob, r, advantage, (float)b.clip, weight, sums);
    const float by_log_prob = active ? scale * derivative : 0.0f, by_entropy = active ? scale * ent_coef : 0.0f;
#pragma unroll
    for (int k = 0; k < HEADS_PER_LANE; k++) {
        const int head = 32 * k + lane;
        if (head >= ACTION_SIZE) break;
        float* logits = z + HEAD_STARTS[head];
        const int action = (int)b.action[sample * ACTION_SIZE + head];
        for (int j = 0; j < HEAD_WIDTHS[head]; j++) {
            const float log_p = logits[j] - max_logit[k] - log_total[k], p = __expf(log_p);
            logits[j] = by_log_prob * ((j == action ? 1.0f : 0.0f) - p) + by_entropy * p * (log_p + head_entropy[k]);
        }
    }
}
#endif

// Adds the terms of one sample, and stores its derivatives by the logits and the value.
__device__ __forceinline__ void add_sample(const Batch& b, i64 row, float mean, float inverse_std, float inverse_count,
    float ent_coef, float* logits_of_warp, ActorSums& actor_sums, float& value_loss) {
    const int t = threadIdx.x & (ROW_PER_WARP ? 31 : 3);
    const bool exists = row < b.num_samples;
    const i64 sample = exists ? row : b.num_samples - 1;
    const bool active = exists && (!HAS_MASK || b.mask[sample]);
    float r[RECORD_SIZE] = {};
    r[LOG_PROB] = b.log_prob[sample], r[ADVANTAGE] = b.advantage[sample], r[TARGET] = b.target[sample];
    const float by_value = value_derivative(b.value[sample * b.value_stride], r, (float)b.clip, (float)b.vf_coef,
        active && t == 0 ? 1.0f : 0.0f, value_loss);
    const float advantage = (r[ADVANTAGE] - mean) * inverse_std;
#if ROW_PER_WARP
    float* z = logits_of_warp;
    for (int c = t; c < OUTPUTS; c += 32) z[c] = b.logits[sample * b.logits_stride + c];
    __syncwarp();
    wide_derivatives(b, sample, z, r, advantage, ent_coef, active, inverse_count, actor_sums);
    __syncwarp();
    for (int c = t; c < OUTPUTS && exists; c += 32) b.logits_gradient[sample * OUTPUTS + c] = z[c];
    __syncwarp();
#else
    float z[O / 8][4] = {}, d[O / 8][2] = {};
#pragma unroll
    for (int k = 0; k < ACTION_SIZE; k++) r[ACTION + k] = (float)b.action[sample * ACTION_SIZE + k];
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            z[n][i] = c < OUTPUTS ? b.logits[sample * b.logits_stride + c] : 0.0f;
        }
    categorical_derivatives<O>(z, 0, r, advantage, (float)b.clip, ent_coef, active, actor_sums, d);
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            if (c < OUTPUTS && exists) b.logits_gradient[sample * OUTPUTS + c] = d[n][i] * inverse_count;
        }
#endif
    if (t == 0 && exists) b.value_gradient[sample] = by_value * inverse_count;
}

extern "C" __global__ void __launch_bounds__(THREADS) objective(const __grid_constant__ Batch b) {
    __shared__ float warp_sums[WARPS * NUM_SUMS];
    __shared__ int is_last_block[1];
    __shared__ float logits[WARPS * (ROW_PER_WARP ? OUTPUTS : 1)];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const float mean = *b.advantage_mean, inverse_std = 1.0f / (sqrtf(*b.advantage_variance) + 1e-8f), ent_coef = *b.ent_coef;
    const float count = HAS_MASK ? (float)*b.num_active : (float)b.num_samples, inverse_count = 1.0f / fmaxf(count, 1.0f);
    ActorSums actor_sums = {};
    float value_loss = 0.0f;
    // All lanes of a warp have the same number of iterations, since lanes of a row exchange values.
    for (i64 first = ((i64)blockIdx.x * WARPS + warp) * ROWS; first < b.num_samples; first += (i64)gridDim.x * WARPS * ROWS)
        add_sample(b, first + (ROW_PER_WARP ? 0 : lane >> 2), mean, inverse_std, inverse_count, ent_coef,
            logits + warp * (ROW_PER_WARP ? OUTPUTS : 1), actor_sums, value_loss);
    const float sums[NUM_SUMS] = {
        actor_sums.policy_loss, value_loss, actor_sums.entropy, actor_sums.kl, actor_sums.clipped};
#pragma unroll
    for (int k = 0; k < NUM_SUMS; k++) {
        const float sum = sum_over_warp(sums[k]);
        if (lane == 0) warp_sums[warp * NUM_SUMS + k] = sum;
    }
    __syncthreads();
    if (thread == 0) {
        for (int k = 0; k < NUM_SUMS; k++) {
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++) sum += warp_sums[w * NUM_SUMS + k];
            b.block_sums[blockIdx.x * NUM_SUMS + k] = sum;
        }
        __threadfence();
        is_last_block[0] = atomicAdd((u32*)b.num_finished_blocks, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last_block[0] || warp > 0) return;
    __threadfence();
    float totals[NUM_SUMS] = {};
    for (int block = lane; block < (int)gridDim.x; block += 32)
#pragma unroll
        for (int k = 0; k < NUM_SUMS; k++) totals[k] += __ldcg(b.block_sums + block * NUM_SUMS + k);
#pragma unroll
    for (int k = 0; k < NUM_SUMS; k++) totals[k] = sum_over_warp(totals[k]) * inverse_count;
    if (lane > 0) return;
#pragma unroll
    for (int k = 0; k < NUM_SUMS; k++) b.metrics[k] = totals[k];
    *b.loss = totals[0] + (float)b.vf_coef * totals[1] - ent_coef * totals[2];
    *(u32*)b.num_finished_blocks = 0;
}
