// The functions of instructions.cuh for a CPU.
#pragma once
#include "tensor_core.cuh"

#define FULL_BARRIERS 0
inline int computed_here(int x) { return x; }
inline void sync_warpgroup(int warpgroup) { block->warpgroup_barriers[warpgroup].arrive_and_wait(); }
inline void sync_warpgroups(bool) { __syncthreads(); }

inline void store_word(u32 address, u32 word) { *(u32*)(block->dynamic_memory + address) = word; }

inline u32 sum_words_over_warp(u32 x) {
    for (int offset = 1; offset < 32; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}
inline float clamp_magnitude(float x, float bound) { return x > bound ? bound : x < -bound ? -bound : x; }
inline float to_float(half x) { return _cvtsh_ss(x); }
inline half to_half(float x) { return _cvtss_sh(x, 0); }
inline float exponential(float x) { return expf(x); }
inline float logarithm(float x) { return logf(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float square_root(float x) { return sqrtf(x); }
