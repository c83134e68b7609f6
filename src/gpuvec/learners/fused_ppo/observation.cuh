// Observations as inputs of a network: their place in the memory of the environment, their normalisation, and their rounding.
//
// Macros: FEATURES, NORMALIZE (whether observations are normalised, by `moments`: the means, then the inverse standard deviations),
// HAS_PLACES (whether `places` says which of the environment's agents a row is, else its rows are those of the policy).
#pragma once
#include "tensor_core.cuh"

constexpr float NORMALIZED_LIMIT = 10.0f;  // as in networks/normalizer.py

// Feature c of an observation, normalised. A feature that is nan remains so.
__device__ __forceinline__ float normalized(const float* moments, int c, float x) {
    if (!NORMALIZE) return x;
    const float y = (x - moments[c]) * moments[FEATURES + c];
    return y > NORMALIZED_LIMIT ? NORMALIZED_LIMIT : y < -NORMALIZED_LIMIT ? -NORMALIZED_LIMIT : y;
}

// Column c of the network's input: a feature of an observation, the one of the biases, or a zero.
__device__ __forceinline__ float input_column(const float* moments, const float* row, int c) {
    const int feature = c < FEATURES ? c : 0;  // a row in registers has no other elements
    return c < FEATURES ? normalized(moments, feature, row[feature]) : c == FEATURES ? 1.0f : 0.0f;
}

// Columns c and c + 1, for an even c, of a row in global memory.
__device__ __forceinline__ u32 input_word(const float* moments, const float* row, int c) {
    if (FEATURES % 2 == 0 && c < FEATURES) {  // rows are aligned to pairs
        const float2 x = *(const float2*)(row + c);
        return pack_halves(normalized(moments, c, x.x), normalized(moments, c + 1, x.y));
    }
    return pack_halves(input_column(moments, row, c), input_column(moments, row, c + 1));
}

// The observation of a row in the observations of one step, or of all steps: row `row` of `num_rows` in each of them.
template <typename Batch> __device__ __forceinline__ const float* observation(const Batch& b, const float* obs, i64 row) {
#if HAS_PLACES
    const u32 step = (u32)row / (u32)b.num_rows;
    row = (i64)step * b.env_rows + b.places[(u32)row - step * (u32)b.num_rows];
#endif
    return obs + row * FEATURES;
}
