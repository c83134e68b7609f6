// Matrix products of a warpgroup, four warps, on Hopper's tensor cores: FP16 operands and FP32 sums.
//
// A product has 64 rows and adds 16 products to each sum. Warp w of the warpgroup has rows 16w to 16w + 15 of the sums, which
// are distributed over its lanes as those of `mma` in tensor_core.cuh: sums[4j] to sums[4j + 3] of lane 4g + t are columns 8j +
// 2t and 8j + 2t + 1 of row g, then of row g + 8. The rounded sums of a layer are therefore the left operand of the next
// product.
//
// An operand in shared memory is a tile: rows of 64 halves, 128 bytes, at a multiple of 1024 bytes. The eight 16-byte vectors
// of row r are stored at v ^ (r & 7), the 128-byte swizzle. A row of a right tile is a column of the product, a row of a left
// tile is a row of the sums, and the products run along both.
//
// Products are asynchronous: fence_products, multiply, commit_products, then wait_products and complete before the sums are
// read. Other threads' stores to a tile need publish_stores and a barrier before a product reads it. An array of sums is used
// for one product: the assembler of CUDA 13.0 took the activations of a second product into the same array for those of the
// first.
#pragma once
#include "wgmma.cuh"

constexpr int TILE = 64;  // rows of a warpgroup's product, and halves of a row of a tile
constexpr u64 NEXT_16_COLUMNS = 2, NEXT_8_ROWS = 64;  // distances of descriptors, in units of 16 bytes

// The position of an element of a tile, in halves.
__device__ __forceinline__ constexpr int tile_position(int row, int column) {
    return row * TILE + ((column >> 3 ^ (row & 7)) << 3) + (column & 7);
}

// The descriptor of a tile: groups of eight rows are 1024 bytes apart, and the swizzle is that of 128 bytes.
__device__ __forceinline__ u64 descriptor_at(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ u64 descriptor(const void* tile) { return descriptor_at(shared_address(tile)); }

// sums (+)= left * right, where `left` has 16 columns, in four registers or at a descriptor.
template <bool ADD, int COUNT, typename Left> __device__ __forceinline__ void multiply(float* sums, Left left, u64 right) {
    constexpr int FIRST = COUNT == 36 ? 36 : COUNT >= 32 ? 32 : COUNT >= 16 ? 16 : COUNT >= 8 ? 8 : 4;
    Products<FIRST>::template multiply<ADD>(sums, left, right);
    if constexpr (COUNT > FIRST) multiply<ADD, COUNT - FIRST>(sums + FIRST, left, right + FIRST / 4 * NEXT_8_ROWS);
}

// The same for STEPS times 16 columns of left fragments in registers, and of the tile at `right`.
template <bool ADD, int STEPS_OF_16, int COUNT>
__device__ __forceinline__ void multiply_fragments(float (&sums)[COUNT], const u32 (*left)[4], u64 right) {
    multiply<ADD, COUNT>(sums, (const u32*)left[0], right);
#pragma unroll
    for (int k = 1; k < STEPS_OF_16; k++) multiply<true, COUNT>(sums, (const u32*)left[k], right + k * NEXT_16_COLUMNS);
}

// The same for TILES of 64 columns each, with both operands in tiles, which are left_pitch and right_pitch bytes apart.
template <bool ADD, int TILES, int COUNT>
__device__ __forceinline__ void multiply_tiles(float (&sums)[COUNT], u64 left, u32 left_pitch, u64 right, u32 right_pitch) {
#pragma unroll
    for (int k = 0; k < 4 * TILES; k++) {
        const u64 a = left + k / 4 * (left_pitch / 16) + k % 4 * NEXT_16_COLUMNS;
        const u64 b = right + k / 4 * (right_pitch / 16) + k % 4 * NEXT_16_COLUMNS;
        if (k == 0) multiply<ADD, COUNT>(sums, a, b);
        else multiply<true, COUNT>(sums, a, b);
    }
}
