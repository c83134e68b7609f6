// Products of small matrices by a warp on tensor cores, in FP16 with sums in FP32: FP16 has the mantissa of TF32, at twice its rate.
//
// A warp holds 16 rows at a time. Lane l has the place g = l / 4 and t = l % 4 among the others:
//     sums (16 x 8)       s[0], s[1] are row g, columns 2t and 2t + 1; s[2], s[3] those of row g + 8
//     left (16 x 16)      halves in pairs: row g, row g + 8 of columns 2t, 2t + 1; then the same of columns 2t + 8, 2t + 9
//     right (16 x 8)      rows 2t, 2t + 1 of column g; then rows 2t + 8, 2t + 9
// So the sums of two products side by side, rounded, are the left side of the next product: activations stay in registers.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short half;  // its bits

// s += left * right, with 16 columns of left
__device__ __forceinline__ void multiply(float* s, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float* s, const u32* a, u32 b0, u32 b1) { multiply(s, a[0], a[1], a[2], a[3], b0, b1); }

// likewise with 8 columns of left
__device__ __forceinline__ void multiply(float* s, u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// Four 8 x 8 blocks of shared memory; lanes 8q to 8q + 7 give the addresses of the rows of block q.
__device__ __forceinline__ void load(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_transposed(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void store(u32 at, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};"
                 :: "r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#else
// as above, lane by lane; `at` is the address that this lane gives of a row of block lane / 8
__device__ __forceinline__ void store(u32 at, const u32* r) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const u32 row = __shfl_sync(~0u, at, 8 * q + (lane >> 2));
        asm volatile("st.shared.u32 [%0],%1;" :: "r"(row + 4 * (lane & 3)), "r"(r[q]) : "memory");
    }
}
#endif

// With programmatic dependent launch a kernel starts before the previous one has ended, and waits for it here. What it reads before
// must be complete when the previous kernel starts: written before a kernel that called launch_next after its own wait, or before
// one that was launched as usual.
__device__ __forceinline__ void wait_for_earlier() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_next() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// two numbers, rounded
__device__ __forceinline__ u32 pair(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
const u32 ONES = 0x3C003C00;

// The unit between layers, and d times its derivative, which is told by what the unit gave.
#if RELU
__device__ __forceinline__ float unit(float x) { return fmaxf(x, 0.0f); }
__device__ __forceinline__ u32 slope(u32 h, u32 d) {
    u32 on, r;
    asm("set.gt.f16x2.f16x2 %0,%1,%2;" : "=r"(on) : "r"(h), "r"(0u));
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(on), "r"(d));
    return r;
}
#else
__device__ __forceinline__ float unit(float x) {
    float y;
    asm("tanh.approx.f32 %0,%1;" : "=f"(y) : "f"(x));  // its error is below that of an FP16
    return y;
}
__device__ __forceinline__ u32 slope(u32 h, u32 d) {
    u32 minus, s, r;
    asm("neg.f16x2 %0,%1;" : "=r"(minus) : "r"(h));
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(s) : "r"(minus), "r"(h), "r"(ONES));
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(d), "r"(s));
    return r;
}
#endif

// What the unit makes of the sums of two products side by side, as the left side of the next product; HALF: rows from the eighth on are
// not there. Likewise `h`, which a unit gave, becomes the sums times the unit's derivative.
template <bool HALF = false> __device__ __forceinline__ void activate(u32* h, const float* low, const float* high) {
    h[0] = pair(unit(low[0]), unit(low[1])), h[2] = pair(unit(high[0]), unit(high[1]));
    h[1] = HALF ? 0 : pair(unit(low[2]), unit(low[3])), h[3] = HALF ? 0 : pair(unit(high[2]), unit(high[3]));
}
__device__ __forceinline__ void derive(u32* h, const float* low, const float* high) {
    h[0] = slope(h[0], pair(low[0], low[1])), h[1] = slope(h[1], pair(low[2], low[3]));
    h[2] = slope(h[2], pair(high[0], high[1])), h[3] = slope(h[3], pair(high[2], high[3]));
}

// Sums over the four lanes that hold a row, and over the eight that hold a column.
__device__ __forceinline__ float over_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float over_column(float x) {
#pragma unroll
    for (int other = 4; other < 32; other *= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}
__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int other = 1; other < 32; other *= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}
