// Means and spreads of the advantages of an update's minibatches: sums, in 32 parts for each.
//
// Given before: MEASURED (means of an update, beside the norm), MASKED, Batch.
#include "shuffle.cuh"

// Sums over the minibatch blockIdx.x: samples that count, their advantages and squares, in 32 parts; less the first advantage, so that
// the squares do not drown the variance.
extern "C" __global__ void __launch_bounds__(256) statistics(const __grid_constant__ Batch b) {
    __shared__ float sums[3][8];
    wait_for_earlier();
    launch_next();  // after that: the first gradient fetches samples before it waits
    if (blockIdx.x == 0 && blockIdx.y == 0) {  // nothing is learned yet, and nothing amiss
        if (threadIdx.x <= MEASURED) b.learned[threadIdx.x] = 0.0;
        if (threadIdx.x < 2) b.nonfinite_row[threadIdx.x] = -1;
    }
    const int minibatch = blockIdx.x, size = (int)b.size, each = (size + 31) / 32, first = blockIdx.y * each;
    const Order order(b.seed, *b.iteration, minibatch / (int)b.minibatches, (u32)b.samples, (int)b.bits);
    const float pivot = b.advantage[0];
    const bool* mask = MASKED ? b.mask : nullptr;
    float count = 0.0f, sum = 0.0f, squares = 0.0f;
    for (int i = first + threadIdx.x; i < min(first + each, size); i += 256) {
        const u32 at = order((u32)(minibatch % (int)b.minibatches * size + i));
        if (!MASKED || mask[at]) {
            const float x = b.advantage[at] - pivot;
            count += 1.0f, sum += x, squares += x * x;
        }
    }
    const float found[3] = {over_warp(count), over_warp(sum), over_warp(squares)};
#pragma unroll
    for (int k = 0; k < 3; k++)
        if ((threadIdx.x & 31) == 0) sums[k][threadIdx.x >> 5] = found[k];
    __syncthreads();
    if (threadIdx.x < 3) {
        float whole = 0.0f;
        for (int w = 0; w < 8; w++) whole += sums[threadIdx.x][w];
        b.statistics[(minibatch * 3 + threadIdx.x) * 32 + blockIdx.y] = whole;
    }
}
