// Matrix products of a warpgroup, four warps, on Hopper's tensor cores: FP16 operands and FP32 sums.
//
// A product has 64 rows and adds 16 products to each sum. Warp w of the warpgroup has rows 16w to 16w + 15 of the sums, which
// are distributed over its lanes as those of `mma` in tensor_core.cuh: sums[4j] to sums[4j + 3] of lane 4g + t are columns 8j +
// 2t and 8j + 2t + 1 of row g, then of row g + 8. The rounded sums of a layer are therefore the left operand of the next
// product.
//
// An operand in shared memory is a tile: rows of 64 halves, 128 bytes, at a multiple of 1024 bytes. The eight 16-byte vectors
// of row r are stored at v ^ (r & 7), the 128-byte swizzle. A row of a right tile is a column of the product, a row of a left
// tile is a row of the sums, and the products run along both. The weights therefore have transposed copies.
//
// Products are asynchronous: fence_products, multiply, commit_products, then wait_products and complete before the sums are
// read. Other threads' stores to a tile need publish_stores and a barrier before a product reads it. An array of sums is used
// for one product: the assembler of CUDA 13.0 took the activations of a second product into the same array for those of the
// first.
#pragma once
#include "wgmma.cuh"

constexpr int TILE = 64;  // rows of a warpgroup's product, and halves of a row of a tile
constexpr int ALIGNMENT = 1024, EDGE_STEP = 16;  // bytes of a tile's address, and columns of the edge tiles that are read at a time
constexpr bool HAS_TRANSPOSED_COPIES = true, ARE_PRODUCTS_ASYNCHRONOUS = true;
constexpr u64 NEXT_16_COLUMNS = 2, NEXT_8_ROWS = 64;  // distances of descriptors, in units of 16 bytes

// The position of an element of a tile, in halves.
__device__ __forceinline__ constexpr int tile_position(int row, int column) {
    return row * TILE + ((column >> 3 ^ (row & 7)) << 3) + (column & 7);
}

// Products of a tile run beside those of the next one.
__device__ __forceinline__ void finish_tile() {}

// The address of eight columns of a row of a tile.
__device__ __forceinline__ u32 tile_address(u32 tile, int row, int group) {
    return tile + row * 2 * TILE + (group ^ (row & 7)) * 16;
}
// The position of a column of a unit in the edge tiles.
__device__ __forceinline__ constexpr int edge_position(int unit, int column) {
    return column / TILE * TILE * TILE + tile_position(unit, column % TILE);
}

// The descriptor of a tile: groups of eight rows are 1024 bytes apart, and the swizzle is that of 128 bytes.
__device__ __forceinline__ u64 descriptor_at(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

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

// The operands of a network, whose memory begins at `base`, by their offsets in bytes: the descriptors of tiles, and where a lane
// stores fragments of activations, transposed. All are sums of a constant and one of three numbers, which spares registers.
struct Operands {
    u32 base, wide, narrow;

    __device__ __forceinline__ Operands(u32 base, int warp, int lane) : base(base) {
        const int block = lane >> 3, row = lane & 7;
        const u32 column = (u32)((2 * warp + (block & 1)) ^ row) << 4;
        wide = base + ((block >> 1) * 8 + row) * 2 * TILE + column, narrow = base + row * 2 * TILE + column;
    }
    __device__ __forceinline__ u64 tile(u32 offset) const { return descriptor_at(base) + offset / 16; }
    // Stores 16 rows of 64 columns.
    __device__ __forceinline__ void store_activations(u32 offset, const u32 (&h)[4][4]) const {
#pragma unroll
        for (int k = 0; k < 4; k++) store_matrix_transposed(wide + offset + 2 * 1024 * k, h[k]);
    }
    // Stores eight columns of the rows of NUM_TILES tiles, which are `pitch` bytes apart: r has rows g and g + 8 of each.
    template <int NUM_TILES> __device__ __forceinline__ void store_columns(u32 offset, u32 pitch, const u32* r) const {
        const int block = computed_here(threadIdx.x) >> 3 & 3;
        if (NUM_TILES == 2) store_matrix_transposed(narrow + offset + (block >> 1) * pitch, r);
        else store_two_transposed(narrow + offset, r);
    }
    // sums = left * right for COLUMNS columns of left fragments, and of the edge tiles from `column` on.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_edge(float (&sums)[32], const u32 (*left)[4], u32 edge, int column) const {
#pragma unroll
        for (int k = 0; k < (COLUMNS + 15) / 16; k++) {
            const int c = column + 16 * k;
            const u64 right = tile(edge) + c / TILE * (TILE / 8) * NEXT_8_ROWS + c % TILE / 16 * NEXT_16_COLUMNS;
            if (k == 0) multiply<false, 32>(sums, (const u32*)left[k], right);
            else multiply<true, 32>(sums, (const u32*)left[k], right);
        }
    }
    // sums += left * right for 64 columns of left fragments, and of a tile of weights.
    __device__ __forceinline__ void add_weights(float (&sums)[32], const u32 (*left)[4], u32 right) const {
        multiply_fragments<true, 4>(sums, left, tile(right));
    }
    // sums = left * right, where the rows of weights are the columns of left fragments: of their transposed copy.
    template <int COUNT>
    __device__ __forceinline__ void multiply_transposed(float (&sums)[COUNT], const u32 (*left)[4], u32 copy) const {
        multiply_fragments<false, 4>(sums, left, tile(copy));
    }
    // sums (+)= left * right for the samples of NUM_TILES tiles of activations, which are left_pitch and right_pitch bytes apart.
    template <bool ADD, int NUM_TILES, int COUNT> __device__ __forceinline__ void multiply_activations(
        float (&sums)[COUNT], u32 left, u32 left_pitch, u32 right, u32 right_pitch) const {
        multiply_tiles<ADD, NUM_TILES>(sums, tile(left), left_pitch, tile(right), right_pitch);
    }
    // The same, of which row 0 are sums over samples. The first row of the inputs are ones, and the rows behind them are other
    // memory, whose sums are not used.
    template <bool ADD, int NUM_TILES, int COUNT> __device__ __forceinline__ void sum_samples(
        float (&sums)[COUNT], u32 inputs, u32 input_pitch, u32 right, u32 right_pitch) const {
        multiply_tiles<ADD, NUM_TILES>(sums, tile(inputs), input_pitch, tile(right), right_pitch);
    }
    // Stores 16 rows and columns of the second weights, the fragment `column`-th of four of a warp.
    __device__ __forceinline__ static void store_weights(
        u32 weights, u32 copy, int column, const u32 (&fragment)[4], int warp, int lane) {
        const int block = lane >> 3, row = lane & 7;
        store_matrix(weights + (16 * warp + (block & 1) * 8 + row) * 2 * TILE + ((2 * column + (block >> 1)) ^ row) * 16, fragment);
        store_matrix_transposed(copy + (16 * column + (block >> 1) * 8 + row) * 2 * TILE + ((2 * warp + (block & 1)) ^ row) * 16,
            fragment);
    }
};
