// Functions of the kernel of a population whose accesses to shared memory racecheck sees, in place of stmatrix, ldmatrix and wgmma.
// `sanitizer_learners.py` puts this file into a copy of the kernel.
#pragma once

template <int BLOCKS> __device__ __forceinline__ void store_transposed_visibly(u32 row, const u32* r) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < BLOCKS; q++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 address = __shfl_sync(~0u, row, 8 * q + (lane & 3) * 2 + i) + 2 * (lane >> 2);
            asm volatile("st.shared.u16 [%0],%1;" ::"r"(address), "h"((half)(r[q] >> 16 * i)) : "memory");
        }
}
__device__ __forceinline__ void store_matrix_transposed(u32 row, const u32* r) { store_transposed_visibly<4>(row, r); }
__device__ __forceinline__ void store_two_transposed(u32 row, const u32* r) { store_transposed_visibly<2>(row, r); }
__device__ __forceinline__ void load_matrix_visibly(u32* r, u32 row) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const u32 address = __shfl_sync(~0u, row, 8 * q + (lane >> 2)) + 4 * (lane & 3);
        asm volatile("ld.shared.u32 %0,[%1];" : "=r"(r[q]) : "r"(address) : "memory");
    }
}

// Each warp reads 16 halves of `rows` rows of the tile at a descriptor, whose swizzle is that of 128 bytes. The assembler leaves out
// loads that are not volatile and whose values are not used.
__device__ __forceinline__ void read_tile(u64 descriptor, int rows) {
#pragma unroll 1
    for (int row = threadIdx.x & 31; row < rows; row += 32)
#pragma unroll 1
        for (int k = 0; k < 8; k++) {
            const u32 address = (u32)(descriptor & 0x3FFF) * 16 + row / 8 * 1024 + row % 8 * 128 + 4 * k;
            u32 word;
            asm volatile("ld.volatile.shared.u32 %0,[%1];" : "=r"(word) : "r"(address ^ (address >> 7 & 7) << 4) : "memory");
        }
}
// What a product with COUNT sums of a thread reads. It adds nothing: no store depends on the values.
template <bool ADD, int COUNT> __device__ __forceinline__ void read_operands(float* sums, const u32*, u64 right) {
    read_tile(right, 2 * COUNT);
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = ADD ? sums[i] : 0.0f;
}
template <bool ADD, int COUNT> __device__ __forceinline__ void read_operands(float* sums, u64 left, u64 right) {
    read_tile(left, 64), read_operands<ADD, COUNT>(sums, (const u32*)nullptr, right);
}
// There is no product to wait for.
__device__ __forceinline__ void fence_products() {}
__device__ __forceinline__ void commit_products() {}
template <int PENDING> __device__ __forceinline__ void wait_products() {}
