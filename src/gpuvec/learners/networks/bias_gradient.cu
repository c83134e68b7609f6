// The gradient of the bias of a linear layer, which is the sum of the rows of the gradient of its results, and with a ReLU
// behind the layer the gradient of the results before the ReLU.
//
// A block has BLOCK_ROWS rows at a time, of which a thread has VECTOR successive columns. The last block that ends adds the
// sums of all blocks. Sums do not depend on the order of execution, so that runs are reproducible bit by bit.
//
// Macros: COLUMNS (at most THREADS, a multiple of VECTOR), IS_BF16 (whether numbers are bfloat16, else float32), HAS_RELU,
// THREADS.
#include "number.cuh"

constexpr int VECTORS = COLUMNS / VECTOR, BLOCK_ROWS = THREADS / VECTORS, PARTS = THREADS / COLUMNS;

// Returns the sum of a column, in the threads that have one, of rows of COLUMNS sums each; `partial_sums` has THREADS elements.
__device__ __forceinline__ float sum_rows(const volatile float* rows, int num_rows, float* partial_sums) {
    const int column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
    float sum = 0.0f;
    if (part < PARTS) {
#pragma unroll 8
        for (int row = part; row < num_rows; row += PARTS) sum += rows[row * COLUMNS + column];
        partial_sums[threadIdx.x] = sum;
    }
    __syncthreads();
    sum = 0.0f;
    if (part == 0)
        for (int k = 0; k < PARTS; k++) sum += partial_sums[k * COLUMNS + column];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) bias_gradient(const __grid_constant__ Batch b) {
    __shared__ float thread_sums[THREADS * VECTOR], partial_sums[THREADS];
    __shared__ int is_last_block[1];
    const int thread = threadIdx.x, row_in_block = thread / VECTORS, vector = thread % VECTORS;
    float sums[VECTOR] = {};
    if (row_in_block < BLOCK_ROWS)
#pragma unroll 2
        for (i64 row = (i64)blockIdx.x * BLOCK_ROWS + row_in_block; row < b.num_rows; row += (i64)gridDim.x * BLOCK_ROWS) {
            float x[VECTOR], out[VECTOR];
            unpack_vector(((const uint4*)b.out_gradient)[row * VECTORS + vector], x);
            if (HAS_RELU) {
                unpack_vector(((const uint4*)b.out)[row * VECTORS + vector], out);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) x[i] = out[i] <= 0.0f ? 0.0f : x[i];  // as torch has it for nan
                ((uint4*)b.gradient)[row * VECTORS + vector] = pack_vector(x);
            }
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sums[i] += x[i];
        }
    if (row_in_block < BLOCK_ROWS)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) thread_sums[row_in_block * COLUMNS + vector * VECTOR + i] = sums[i];
    __syncthreads();
    const float block_sum = sum_rows(thread_sums, BLOCK_ROWS, partial_sums);
    if (thread < COLUMNS) b.block_sums[(i64)blockIdx.x * COLUMNS + thread] = block_sum;
    __threadfence();
    __syncthreads();
    if (thread == 0) is_last_block[0] = atomicAdd((u32*)b.num_finished_blocks, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!is_last_block[0]) return;
    __threadfence();
    const float sum = sum_rows(b.block_sums, (int)gridDim.x, partial_sums);
    if (thread < COLUMNS) ((Number*)b.bias_gradient)[thread] = IS_BF16 ? (Number)pack_bf16(sum, 0.0f) : (Number)sum;
    if (thread == 0) *(u32*)b.num_finished_blocks = 0;
}
