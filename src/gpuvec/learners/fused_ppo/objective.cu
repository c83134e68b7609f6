// The loss of PPO on a minibatch, its metrics, and its gradient by the outputs of networks that are computed elsewhere.
//
// The four lanes of a row are those of objective.cuh; a warp has eight rows at a time. The last block that ends sums the terms
// of all blocks, in the order of their numbers, so that runs are reproducible bit by bit.
//
// Macros: those of objective.cuh; FEATURES is 0, and records are not in memory.
#include "objective.cuh"

constexpr int O = (OUTPUTS + 7) / 8 * 8, THREADS = 32 * WARPS;

// Adds the terms of one sample, and stores its derivatives by the logits and the value.
__device__ __forceinline__ void add_sample(const Batch& b, i64 row, float mean, float inverse_std, float inverse_count,
    float ent_coef, ActorSums& actor_sums, float& value_loss) {
    const int t = threadIdx.x & 3;
    const bool exists = row < b.num_samples;
    const i64 sample = exists ? row : b.num_samples - 1;
    const bool active = exists && (!HAS_MASK || b.mask[sample]);
    float r[RECORD_SIZE] = {}, z[O / 8][4] = {}, d[O / 8][2] = {};
#pragma unroll
    for (int k = 0; k < ACTION_SIZE; k++) r[ACTION + k] = (float)b.action[sample * ACTION_SIZE + k];
    r[LOG_PROB] = b.log_prob[sample], r[ADVANTAGE] = b.advantage[sample], r[TARGET] = b.target[sample];
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            z[n][i] = c < OUTPUTS ? b.logits[sample * b.logits_stride + c] : 0.0f;
        }
    categorical_derivatives<O>(
        z, 0, r, (r[ADVANTAGE] - mean) * inverse_std, (float)b.clip, ent_coef, active, actor_sums, d);
    const float by_value = value_derivative(b.value[sample * b.value_stride], r, (float)b.clip, (float)b.vf_coef,
        active && t == 0 ? 1.0f : 0.0f, value_loss);
    if (!exists) return;
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * n + 2 * t + i;
            if (c < OUTPUTS) b.logits_gradient[sample * OUTPUTS + c] = d[n][i] * inverse_count;
        }
    if (t == 0) b.value_gradient[sample] = by_value * inverse_count;
}

extern "C" __global__ void __launch_bounds__(THREADS) objective(const __grid_constant__ Batch b) {
    __shared__ float warp_sums[WARPS * NUM_SUMS];
    __shared__ int is_last_block[1];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const float mean = *b.advantage_mean, inverse_std = 1.0f / (sqrtf(*b.advantage_variance) + 1e-8f), ent_coef = *b.ent_coef;
    const float count = HAS_MASK ? (float)*b.num_active : (float)b.num_samples, inverse_count = 1.0f / fmaxf(count, 1.0f);
    ActorSums actor_sums = {};
    float value_loss = 0.0f;
    // All lanes of a warp have the same number of iterations, since lanes of a row exchange values.
    for (i64 first = ((i64)blockIdx.x * WARPS + warp) * 8; first < b.num_samples; first += (i64)gridDim.x * WARPS * 8)
        add_sample(b, first + (lane >> 2), mean, inverse_std, inverse_count, ent_coef, actor_sums, value_loss);
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
