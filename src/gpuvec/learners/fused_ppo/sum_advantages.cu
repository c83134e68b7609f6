// The sums from which the gradient kernel computes mean and variance of the advantages of each minibatch, in 32 parts.
//
// Block (m, k) has part k of minibatch m: the number of samples that count, the sum of their advantages, and the sum of their
// squares. The first advantage of the rollout is subtracted from all, so that the squares do not cancel in the variance.
//
// Macros: NUM_SUMS (means of an update, besides the norm of the gradient), HAS_MASK.
#include "shuffle.cuh"

extern "C" __global__ void __launch_bounds__(256) sum_advantages(const __grid_constant__ Batch b) {
    __shared__ float warp_sums[3][8];
    wait_for_previous();
    launch_dependents();  // after the wait, because the first gradient kernel loads samples before its own wait
    if (blockIdx.x == 0 && blockIdx.y == 0) {  // the metrics and fault rows of the update are initialised
        if (threadIdx.x <= NUM_SUMS) b.metrics[threadIdx.x] = 0.0;
        if (threadIdx.x < 2) b.fault_rows[threadIdx.x] = -1;
    }
    const int minibatch = blockIdx.x, size = (int)b.minibatch_size, part_size = (size + 31) / 32,
              first = blockIdx.y * part_size;
    const Permutation permutation(
        b.seed, *b.iteration, minibatch / (int)b.num_minibatches, (u32)b.num_samples, (int)b.index_bits);
    const float pivot = b.advantage[0];
    const bool* mask = HAS_MASK ? b.mask : nullptr;
    float count = 0.0f, sum = 0.0f, squares = 0.0f;
    for (int i = first + threadIdx.x; i < min(first + part_size, size); i += 256) {
        const u32 sample = permutation((u32)(minibatch % (int)b.num_minibatches * size + i));
        if (!HAS_MASK || mask[sample]) {
            const float x = b.advantage[sample] - pivot;
            count += 1.0f, sum += x, squares += x * x;
        }
    }
    const float sums[3] = {sum_over_warp(count), sum_over_warp(sum), sum_over_warp(squares)};
#pragma unroll
    for (int k = 0; k < 3; k++)
        if ((threadIdx.x & 31) == 0) warp_sums[k][threadIdx.x >> 5] = sums[k];
    __syncthreads();
    if (threadIdx.x < 3) {
        float block_sum = 0.0f;
        for (int w = 0; w < 8; w++) block_sum += warp_sums[threadIdx.x][w];
        b.advantage_sums[(minibatch * 3 + threadIdx.x) * 32 + blockIdx.y] = block_sum;
    }
}
