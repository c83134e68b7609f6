// Matrix products of a warp on tensor cores: FP16 operands and FP32 sums. FP16 has the mantissa of TF32 at twice its rate.
//
// A warp processes tiles of 16 rows. Its 32 lanes hold a fragment of each matrix; with g = lane / 4 and t = lane % 4 these are
//     sums (16 x 8)       s[0], s[1]: row g, columns 2t and 2t + 1; s[2], s[3]: the same columns of row g + 8
//     left (16 x 16)      pairs of halves: rows g and g + 8 of columns 2t, 2t + 1, then the same rows of columns 2t + 8, 2t + 9
//     right (16 x 8)      pairs of halves: rows 2t, 2t + 1 of column g, then rows 2t + 8, 2t + 9
// The rounded sums of two adjacent products are therefore the left fragment of the next product: activations stay in registers.
//
// Macros: RELU (whether the activation is ReLU, else tanh), DEPENDENT_LAUNCH.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short half;  // the bits of an FP16 number

// s += left * right, with 16 columns of left.
__device__ __forceinline__ void mma(float* s, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float* s, const u32* a, u32 b0, u32 b1) { mma(s, a[0], a[1], a[2], a[3], b0, b1); }

// s += left * right, with 8 columns of left.
__device__ __forceinline__ void mma(float* s, u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// Load and store four 8 x 8 blocks in shared memory. Lane l passes the address of row l % 8 of block l / 8.
__device__ __forceinline__ void load_matrix(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void load_matrix_transposed(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void store_matrix(u32 row, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};"
                 :: "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#else
__device__ __forceinline__ void store_matrix(u32 row, const u32* r) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const u32 address = __shfl_sync(~0u, row, 8 * q + (lane >> 2));
        asm volatile("st.shared.u32 [%0],%1;" :: "r"(address + 4 * (lane & 3)), "r"(r[q]) : "memory");
    }
}
#endif

// With programmatic dependent launch a kernel starts before the previous one has ended, and waits for it here. What it reads
// before must be complete when the previous kernel starts: written before a kernel that called launch_dependents after its own
// wait, or before one that was launched as usual.
__device__ __forceinline__ void wait_for_previous() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_dependents() {
#if DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Two numbers, rounded to FP16.
__device__ __forceinline__ u32 pack_halves(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// The same, but a number beyond the range of FP16 becomes the largest one within it; nan remains.
__device__ __forceinline__ u32 pack_halves_saturated(float low, float high) {
    u32 r;
    asm("cvt.rn.satfinite.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
const u32 ONES = 0x3C003C00;  // two halves of 1

// activation(x), and times_derivative(h, d): d times the derivative of the activation whose value is h, for two halves.
#if RELU
__device__ __forceinline__ float activation(float x) { return fmaxf(x, 0.0f); }
__device__ __forceinline__ u32 times_derivative(u32 h, u32 d) {
    u32 is_positive, r;
    asm("set.gt.f16x2.f16x2 %0,%1,%2;" : "=r"(is_positive) : "r"(h), "r"(0u));
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(is_positive), "r"(d));
    return r;
}
#else
__device__ __forceinline__ float activation(float x) {
    float y;
    asm("tanh.approx.f32 %0,%1;" : "=f"(y) : "f"(x));  // the error is below the rounding of FP16
    return y;
}
__device__ __forceinline__ u32 times_derivative(u32 h, u32 d) {
    u32 minus_h, derivative, r;
    asm("neg.f16x2 %0,%1;" : "=r"(minus_h) : "r"(h));
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(derivative) : "r"(minus_h), "r"(h), "r"(ONES));
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(d), "r"(derivative));
    return r;
}
#endif

// h: the activations of the sums of two adjacent products, as the left fragment of the next product. With HALF_TILE rows 8 to
// 15 are not used.
template <bool HALF_TILE = false> __device__ __forceinline__ void activate(u32* h, const float* low, const float* high) {
    h[0] = pack_halves(activation(low[0]), activation(low[1])), h[2] = pack_halves(activation(high[0]), activation(high[1]));
    h[1] = HALF_TILE ? 0 : pack_halves(activation(low[2]), activation(low[3]));
    h[3] = HALF_TILE ? 0 : pack_halves(activation(high[2]), activation(high[3]));
}
// h, the activations: becomes the sums of two adjacent products times the derivatives of these activations. Weights can make the
// sums for one sample larger than FP16 can hold, and infinity times a derivative of 0 would make the whole gradient nan.
__device__ __forceinline__ void backpropagate(u32* h, const float* low, const float* high) {
    h[0] = times_derivative(h[0], pack_halves_saturated(low[0], low[1]));
    h[1] = times_derivative(h[1], pack_halves_saturated(low[2], low[3]));
    h[2] = times_derivative(h[2], pack_halves_saturated(high[0], high[1]));
    h[3] = times_derivative(h[3], pack_halves_saturated(high[2], high[3]));
}

// Reductions over the four lanes with fragments of a row, over the eight with fragments of a column, and over a warp.
__device__ __forceinline__ float sum_over_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float max_over_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float sum_over_column(float x) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}
__device__ __forceinline__ float sum_over_warp(float x) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}
