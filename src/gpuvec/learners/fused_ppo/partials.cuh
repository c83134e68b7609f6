// The partial gradients of the gradient kernel, or of shards, and the sums of the loss that belong to them.
//
// Macros: NUM_PARAMETERS, NUM_PARTIALS (partial gradients), NUM_SUMS (sums of the loss, see objective.cuh), PARTIAL_SIZE and
// LOSS_SIZE (floats from a partial gradient, or from its sums of the loss, to the next), THREADS_PER_VECTOR (threads that sum a
// vector).
#pragma once
#include "tensor_core.cuh"

// Partial gradients that a thread loads before it adds one, so that the latencies of these loads overlap.
constexpr int PREFETCHED = 16;

// Adds the sums of the loss of the partial gradients `lane`, `lane` + 32 and so on to `sums`.
__device__ __forceinline__ void add_loss_sums(const float* loss_sums, int lane, float* sums) {
#pragma unroll
    for (int p = 0; p < NUM_PARTIALS; p += 32)
#pragma unroll
        for (int k = 0; k < NUM_SUMS; k++)
            sums[k] += p + lane < NUM_PARTIALS ? __ldcg(loss_sums + (p + lane) * LOSS_SIZE + k) : 0.0f;
}
