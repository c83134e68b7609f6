// The sums of the shards of this process for a minibatch: gradients, and sums of the loss. Partial sums are added in their order.
//
// Block (m, k) has vectors of shard k of this process. With TO_INBOX sums are written into the inboxes of all processes, else into
// the rows of an array, which a collective of the library exchanges.
//
// Macros, besides those of partials.cuh and inbox.cuh: VECTORS_PER_BLOCK, TO_INBOX, NUM_PROCESSES.
#include "inbox.cuh"
#include "partials.cuh"

constexpr int NUM_VECTORS = NUM_PARAMETERS / 4;
constexpr int SUM_THREADS = VECTORS_PER_BLOCK * THREADS_PER_VECTOR;  // threads that sum gradients; one more warp sums the loss
static_assert(ROW_SIZE >= NUM_PARAMETERS + NUM_SUMS && ROW_SIZE % 4 == 0, "a row has the gradient and the sums of the loss");

// Returns the sum of a vector over the partial gradients `line`, `line` + THREADS_PER_VECTOR and so on. `partials` is the vector
// of the first one.
// All lanes of a warp must call it. The loop is that of optimizer.cu, where a function has other machine code.
__device__ __forceinline__ float4 sum_partials(const float4* partials, int line) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int begin = 0; begin < NUM_PARTIALS; begin += THREADS_PER_VECTOR * PREFETCHED) {
        const int first = begin + line;
        float4 x[PREFETCHED];
#pragma unroll
        for (int k = 0; k < PREFETCHED; k++)
            if (first + k * THREADS_PER_VECTOR < NUM_PARTIALS)
                x[k] = __ldcg(partials + (first + k * THREADS_PER_VECTOR) * (PARTIAL_SIZE / 4));
            else x[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncwarp();  // without it the assembler saves registers, and waits for one load after the other
#pragma unroll
        for (int k = 0; k < PREFETCHED; k++) sum.x += x[k].x, sum.y += x[k].y, sum.z += x[k].z, sum.w += x[k].w;
    }
    return sum;
}

// Stores sum `i` of a shard of this process.
__device__ __forceinline__ void store_sum(const Batch& b, u32 launch, int shard, int i, float sum) {
    if (!TO_INBOX) {
        b.rows[(i64)shard * ROW_SIZE + i] = sum;
        return;
    }
    // Each process begins with another one, so that they do not all write to the same one at first.
#pragma unroll
    for (int k = 0; k < NUM_PROCESSES; k++) {
        const int process = ((int)b.rank + k) % NUM_PROCESSES;
        send_word(inbox_row(b.inboxes[process], launch, (int)(b.rank * gridDim.y) + shard) + i, launch, sum);
    }
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS + 32) send_sums(const __grid_constant__ Batch b) {
    __shared__ __align__(16) float sums[THREADS_PER_VECTOR][4 * VECTORS_PER_BLOCK];
    const int thread = threadIdx.x, column = thread % VECTORS_PER_BLOCK, line = thread / VECTORS_PER_BLOCK, lane = thread & 31;
    const int vector = blockIdx.x * VECTORS_PER_BLOCK + column, shard = blockIdx.y;
    launch_dependents();
    wait_for_previous();
    const u32 launch = (u32)*b.num_launches + 1;
    if (thread < SUM_THREADS) {
        const float* partials = b.partial_gradients + (i64)shard * NUM_PARTIALS * PARTIAL_SIZE;
        const float4 sum = sum_partials((const float4*)partials + (vector < NUM_VECTORS ? vector : 0), line);
        *(float4*)(sums[line] + 4 * column) = sum;
    } else if (blockIdx.x == 0) {
        float loss_sums[NUM_SUMS] = {};
        add_loss_sums(b.loss_sums + (i64)shard * NUM_PARTIALS * LOSS_SIZE, lane, loss_sums);
#pragma unroll
        for (int k = 0; k < NUM_SUMS; k++) {
            const float sum = sum_over_warp(loss_sums[k]);
            if (lane == k) store_sum(b, launch, shard, NUM_PARAMETERS + k, sum);
        }
    }
    __syncthreads();
    for (int i = thread; i < 4 * VECTORS_PER_BLOCK; i += SUM_THREADS + 32) {
        const int parameter = blockIdx.x * 4 * VECTORS_PER_BLOCK + i;
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < THREADS_PER_VECTOR; k++) sum += sums[k][i];
        if (parameter < NUM_PARAMETERS) store_sum(b, launch, shard, parameter, sum);
    }
}
