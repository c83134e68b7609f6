// Replaces accesses to shared memory of the kernel of a population that racecheck does not see: those of stmatrix, ldmatrix and
// wgmma. `sanitizer_learners.py` puts this file into a copy of the kernel.
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

// Each warp reads 16 halves of `rows` rows of the tile at a descriptor, whose swizzle is that of 128 bytes.
__device__ __forceinline__ void read_tile(u64 descriptor, int rows) {
#pragma unroll 1
    for (int row = threadIdx.x & 31; row < rows; row += 32)
#pragma unroll 1
        for (int k = 0; k < 8; k++) {
            const u32 address = (u32)(descriptor & 0x3FFF) * 16 + row / 8 * 1024 + row % 8 * 128 + 4 * k;
            u32 word;
            asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(address ^ (address >> 7 & 7) << 4) : "memory");
        }
}
// What a product with COUNT sums of a thread reads. Of the left tile that are the rows of the warp.
template <int COUNT> __device__ __forceinline__ void read_operands(const u32*, u64 right) { read_tile(right, 2 * COUNT); }
template <int COUNT> __device__ __forceinline__ void read_operands(u64 left, u64 right) {
    read_tile(left, 64), read_tile(right, 2 * COUNT);
}
