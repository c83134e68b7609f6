// Barriers of warpgroups, conversions and approximations, as functions. `tests/support` has the same functions for a CPU.
#pragma once
#include "../../fused_ppo/tensor_core.cuh"

// Tests define FULL_BARRIERS. Products are then synchronous, all warps of a warpgroup wait before and behind them, and all of a
// block at each barrier of a warpgroup. No bit may change, since nothing depends on an order that only these barriers make.
#ifndef FULL_BARRIERS
#define FULL_BARRIERS 0
#endif

// Returns x, and keeps the compiler from computing what depends on it before a loop, where it would occupy registers.
__device__ __forceinline__ int computed_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
// Barrier of the 128 threads of a warpgroup.
__device__ __forceinline__ void sync_warpgroup(int warpgroup) {
    if (FULL_BARRIERS) __syncthreads();
    else asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}
// Barrier of the 256 threads of a block, whose warpgroups are at different places of the code: each arrives where the other waits.
__device__ __forceinline__ void sync_warpgroups(bool is_first) {
    if (is_first) asm volatile("bar.arrive 3, 256;\n\tbar.sync 4, 256;" ::: "memory");
    else asm volatile("bar.sync 3, 256;\n\tbar.arrive 4, 256;" ::: "memory");
}

// Stores a word to shared memory.
__device__ __forceinline__ void store_word(u32 address, u32 word) {
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(address), "r"(word) : "memory");
}

// The sum of integers over a warp, in one instruction, modulo 2^32.
__device__ __forceinline__ u32 sum_words_over_warp(u32 x) { return __reduce_add_sync(~0u, x); }

// Clamps x to [-bound, bound], and keeps nan.
__device__ __forceinline__ float clamp_magnitude(float x, float bound) {
    float y;
    asm("min.NaN.f32 %0,%1,%2;" : "=f"(y) : "f"(x), "f"(bound));
    asm("max.NaN.f32 %0,%1,%2;" : "=f"(y) : "f"(y), "f"(-bound));
    return y;
}
__device__ __forceinline__ float to_float(half x) {
    float y;
    asm("cvt.f32.f16 %0,%1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ half to_half(float x) {
    half y;
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(y) : "f"(x));
    return y;
}
// Approximations: exp(x), log(x), 1 / x, and sqrt(x). Subnormal numbers count as 0, which spares three instructions of
// `__expf` and `__logf` each.
__device__ __forceinline__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
__device__ __forceinline__ float logarithm(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y * 0.693147181f;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float square_root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}
