// What the backpropagation keeps for the gradients of the weights: the inputs, the activations of each hidden layer, and the
// gradients of its sums and of the outputs, in FP16, for CHUNK_ROWS samples.
//
// A matrix has blocks of 8 x 8 numbers, 128 bytes each: those of eight samples follow each other. Word l of a block is what lane
// l of a warp has of it in a fragment, as tensor_core.cuh describes, and its 16 bytes of a sample are a row for load_matrix.
//
// Macros, besides those of network.cuh: CHUNK_ROWS (a multiple of 32), NUM_SUMS (terms of the loss, of objective.cuh).
#pragma once
#include "network.cuh"

struct Matrix {
    u32* words;
    int blocks;  // columns / 8

    // The word of a lane of the block of samples 8 r to 8 r + 7 and columns 8 c to 8 c + 7.
    __device__ __forceinline__ u32& word(int r, int c) const { return words[((u64)r * blocks + c) * 32 + (threadIdx.x & 31)]; }
};

// The matrices of a network, whose layer l has the activations of hidden layer l. Both networks have the same inputs.
template <bool ACTOR> struct Activations {
    static constexpr int O = Network<ACTOR ? OUTPUTS : 1>::O;
    static constexpr u64 COLUMN_WORDS = CHUNK_ROWS / 2;
    static constexpr u64 FIRST = X + (ACTOR ? 0 : 2 * LAYERS * H + Network<OUTPUTS>::O);  // columns before those of the network

    __device__ static __forceinline__ Matrix inputs(u32* words) { return {words, X / 8}; }
    __device__ static __forceinline__ Matrix activations(u32* words, int layer) {
        return {words + (FIRST + (layer - 1) * H) * COLUMN_WORDS, H / 8};
    }
    // The gradients of the sums of hidden layer l.
    __device__ static __forceinline__ Matrix gradients(u32* words, int layer) {
        return {words + (FIRST + (LAYERS + layer - 1) * H) * COLUMN_WORDS, H / 8};
    }
    __device__ static __forceinline__ Matrix output_gradients(u32* words) {
        return {words + (FIRST + 2 * LAYERS * H) * COLUMN_WORDS, O / 8};
    }
};

// What a block of the backpropagation sums: the gradients of the last biases and of log_std, and the terms of the loss.
constexpr int BLOCK_SUMS = 2 * Network<OUTPUTS>::O + NUM_SUMS;
