// Hopper's instructions for products of a warpgroup (wgmma) and for transposed stores, as functions. `tests/support` has the
// same functions for a CPU.
#pragma once
#include "instructions.cuh"

__device__ __forceinline__ void sync_for_comparison() {
#if FULL_BARRIERS
    asm volatile("fence.proxy.async; bar.sync %0, 128;" ::"r"(1 + (threadIdx.x >> 7)) : "memory");
#endif
}

__device__ __forceinline__ void fence_products() {
    sync_for_comparison();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Waits until all but the last PENDING committed groups of products are complete.
template <int PENDING> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (FULL_BARRIERS) wait_products<0>();
    sync_for_comparison();
}
// Makes earlier stores of this thread to shared memory visible to products that follow the next barrier.
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Keeps the compiler from reading sums before this place, which stands behind `wait_products`.
template <int COUNT> __device__ __forceinline__ void complete(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Store the transposes of four, or of two, 8 x 8 blocks. Lane l passes the address of row l % 8 of block l / 8.
__device__ __forceinline__ void store_matrix_transposed(u32 row, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(row), "r"(r[0]), "r"(r[1]),
        "r"(r[2]),
                 "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void store_two_transposed(u32 row, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0],{%1,%2};" ::"r"(row), "r"(r[0]), "r"(r[1]) : "memory");
}

// Products<COUNT>::multiply<ADD>(sums, left, right): sums (+)= left * right, for COUNT sums of a thread. `right` is a
// descriptor, and `left` four registers, as the left fragment of `mma`, or a descriptor.
template <int COUNT> struct Products;
#define SUMS4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SUMS8(s, i) SUMS4(s, i), SUMS4(s, i + 4)
#define SUMS16(s, i) SUMS8(s, i), SUMS8(s, i + 8)
#define SUMS32(s, i) SUMS16(s, i), SUMS16(s, i + 16)
#define SUMS36(s, i) SUMS32(s, i), SUMS4(s, i + 32)
#define REGISTERS4 "%0,%1,%2,%3"
#define REGISTERS8 REGISTERS4 ",%4,%5,%6,%7"
#define REGISTERS16 REGISTERS8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS32 REGISTERS16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS36 REGISTERS32 ",%32,%33,%34,%35"
// The numbers behind COLUMNS and COUNT are those of the five operands that follow the sums, and of the flag ADD in either case.
#define DEFINE_PRODUCTS(COLUMNS, COUNT, A, B, C, E, F, G)                                                                      \
    template <> struct Products<COUNT> {                                                                                       \
        template <bool ADD> static __device__ __forceinline__ void multiply(float* s, const u32* left, u64 right) {            \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #G ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS                \
                         "k16.f32.f16.f16 {" REGISTERS##COUNT "}, {%" #A ",%" #B ",%" #C ",%" #E "}, %" #F ", p, 1, 1, 0;}"    \
                         : SUMS##COUNT(s, 0)                                                                                   \
                         : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"((int)ADD)                   \
                         : "memory");                                                                                          \
        }                                                                                                                      \
        template <bool ADD> static __device__ __forceinline__ void multiply(float* s, u64 left, u64 right) {                   \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #C ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS                \
                         "k16.f32.f16.f16 {" REGISTERS##COUNT "}, %" #A ", %" #B ", p, 1, 1, 0, 0;}"                           \
                         : SUMS##COUNT(s, 0)                                                                                   \
                         : "l"(left), "l"(right), "n"((int)ADD)                                                                \
                         : "memory");                                                                                          \
        }                                                                                                                      \
    };
DEFINE_PRODUCTS(8, 4, 4, 5, 6, 7, 8, 9)
DEFINE_PRODUCTS(16, 8, 8, 9, 10, 11, 12, 13)
DEFINE_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21)
DEFINE_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37)
DEFINE_PRODUCTS(72, 36, 36, 37, 38, 39, 40, 41)
