// Matrix products of four warps by `mma`, of any GPU from compute capability 8.0 on: FP16 operands and FP32 sums.
//
// The interface, the fragments and the sums of a lane are those of warpgroup.cuh, so that a product has 64 rows, of which warp w
// has rows 16w to 16w + 15. Products are complete when they are issued.
//
// An operand in shared memory is a tile of 64 rows: groups of eight columns, in which the 16 bytes of a row follow those of the
// row before it. So eight rows of a group are in different banks without a swizzle. `ldmatrix` transposes what it loads, so that
// weights need no transposed copies, and activations are stored as they are in registers, a sample in a row.
#pragma once
#include "instructions.cuh"

constexpr int TILE = 64;                       // rows of a tile
constexpr int ALIGNMENT = 128, EDGE_STEP = 8;  // bytes of a tile's address, and columns of the edge tiles that are read at a time
constexpr bool HAS_TRANSPOSED_COPIES = false, ARE_PRODUCTS_ASYNCHRONOUS = false;
constexpr u32 GROUP_BYTES = TILE * 16, EIGHT_ROWS = 8 * 16;

// The position of an element of a tile, in halves.
__device__ __forceinline__ constexpr int tile_position(int row, int column) {
    return (column >> 3) * (TILE * 8) + row * 8 + (column & 7);
}
// The address of eight columns of a row of a tile.
__device__ __forceinline__ u32 tile_address(u32 tile, int row, int group) { return tile + group * GROUP_BYTES + row * 16; }
// The position of a column of a unit in the edge tiles.
__device__ __forceinline__ constexpr int edge_position(int unit, int column) { return tile_position(unit, column); }

// What asynchronous products need.
__device__ __forceinline__ void fence_products() {}
__device__ __forceinline__ void commit_products() {}
template <int PENDING> __device__ __forceinline__ void wait_products() {}
__device__ __forceinline__ void publish_stores() {}
template <int COUNT> __device__ __forceinline__ void complete(float (&)[COUNT]) {}
// Keeps the assembler from starting the products of the next tile before those of this one are complete, whose sums would occupy
// registers of both.
__device__ __forceinline__ void finish_tile() { __syncwarp(); }

// The operands of a network, whose memory begins at `base`, by their offsets in bytes. A lane loads 32 rows of a group from `rows`,
// 16 rows of two groups from `pair`, and those of the warp's 16 units from `units`; it stores its words of fragments at `store`.
struct Operands {
    u32 rows, units, pair, store;

    __device__ __forceinline__ Operands(u32 base, int warp, int lane) {
        rows = base + lane * 16, store = base + 2 * warp * EIGHT_ROWS + lane * 4;
        pair = base + (lane & 15) * 16 + (lane >> 4) * GROUP_BYTES, units = pair + 2 * warp * GROUP_BYTES;
    }
    // Stores 16 rows of 64 columns.
    __device__ __forceinline__ void store_activations(u32 offset, const u32 (&h)[4][4]) const {
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) store_word(store + offset + k * GROUP_BYTES + i * EIGHT_ROWS, h[k / 2][k % 2 * 2 + i]);
    }
    // Stores eight columns of the rows of NUM_TILES tiles, which are `pitch` bytes apart: r has rows g and g + 8 of each.
    template <int NUM_TILES> __device__ __forceinline__ void store_columns(u32 offset, u32 pitch, const u32* r) const {
#pragma unroll
        for (int i = 0; i < 2 * NUM_TILES; i++) store_word(store + offset + i / 2 * pitch + i % 2 * EIGHT_ROWS, r[i]);
    }
    // sums = left * right for COLUMNS columns of left fragments, and of the edge tiles from `column` on.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_edge(float (&sums)[32], const u32 (*left)[4], u32 edge, int column) const {
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] = 0.0f;
        add_columns<COLUMNS>(sums, left, edge + column / 8 * GROUP_BYTES);
    }
    // sums += left * right for 64 columns of left fragments, and of a tile of weights.
    __device__ __forceinline__ void add_weights(float (&sums)[32], const u32 (*left)[4], u32 right) const {
        add_columns<64>(sums, left, right);
    }
    // sums = left * right, where the rows of weights are the columns of left fragments.
    template <int COUNT>
    __device__ __forceinline__ void multiply_transposed(float (&sums)[COUNT], const u32 (*left)[4], u32 right) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) sums[i] = 0.0f;
        auto load_left = [&](int k, u32 (&x)[4]) { x[0] = left[k][0], x[1] = left[k][1], x[2] = left[k][2], x[3] = left[k][3]; };
        add_rows(sums, load_left, right);
    }
    // sums (+)= left * right for the samples of NUM_TILES tiles of activations, which are left_pitch and right_pitch bytes apart.
    template <bool ADD, int NUM_TILES, int COUNT> __device__ __forceinline__ void multiply_activations(
        float (&sums)[COUNT], u32 left, u32 left_pitch, u32 right, u32 right_pitch) const {
#pragma unroll
        for (int i = 0; i < COUNT && !ADD; i++) sums[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < NUM_TILES; i++) {
            auto load_left = [&](int k, u32 (&x)[4]) {
                u32 y[4];  // eight samples of eight units, the next eight samples, then the same of the next eight units
                load_matrix_transposed(y, units + left + i * left_pitch + 2 * k * EIGHT_ROWS);
                x[0] = y[0], x[1] = y[2], x[2] = y[1], x[3] = y[3];
            };
            add_rows(sums, load_left, right + i * right_pitch);
        }
    }
    // The same, of which row 0 are sums over samples.
    template <bool ADD, int NUM_TILES, int COUNT> __device__ __forceinline__ void sum_samples(
        float (&sums)[COUNT], u32, u32, u32 right, u32 right_pitch) const {
        const u32 ones = (threadIdx.x & 31) < 4 ? ONES : 0;
        auto load_ones = [&](int, u32 (&x)[4]) { x[0] = x[2] = ones, x[1] = x[3] = 0; };
#pragma unroll
        for (int i = 0; i < COUNT && !ADD; i++) sums[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < NUM_TILES; i++) add_rows(sums, load_ones, right + i * right_pitch);
    }
    // Stores 16 rows and columns of the second weights, the fragment `column`-th of four of a warp.
    __device__ __forceinline__ static void store_weights(
        u32 weights, u32, int column, const u32 (&fragment)[4], int warp, int lane) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_word(weights + (2 * column + i / 2) * GROUP_BYTES + (2 * warp + i % 2) * EIGHT_ROWS + lane * 4, fragment[i]);
    }

private:
    // sums += left * right for COLUMNS columns of both, where the rows of `right` are the 64 columns of the product.
    template <int COLUMNS> __device__ __forceinline__ void add_columns(float* sums, const u32 (*left)[4], u32 right) const {
#pragma unroll
        for (int k = 0; k < (COLUMNS + 15) / 16; k++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 low[4], high[4];
                const u32 address = rows + right + 2 * k * GROUP_BYTES + 4 * j * EIGHT_ROWS;
                load_matrix(low, address);
                if (16 * k + 8 < COLUMNS) load_matrix(high, address + GROUP_BYTES);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (16 * k + 8 < COLUMNS) mma(sums + 16 * j + 4 * i, left[k], low[i], high[i]);
                    else mma(sums + 16 * j + 4 * i, left[k][0], left[k][1], low[i]);
                }
            }
    }
    // sums += left * right for 64 columns of left fragments, which are the rows of `right`. `load_left` loads those of 16 columns.
    template <int COUNT, typename LoadLeft>
    __device__ __forceinline__ void add_rows(float (&sums)[COUNT], LoadLeft load_left, u32 right) const {
        constexpr int GROUPS = COUNT / 4;
        u32 left[4], x[4], last[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            load_left(k, left);
#pragma unroll
            for (int j = 0; j < GROUPS / 2; j++) {
                load_matrix_transposed(x, pair + right + 2 * j * GROUP_BYTES + 2 * k * EIGHT_ROWS);
                mma(sums + 8 * j, left, x[0], x[1]), mma(sums + 8 * j + 4, left, x[2], x[3]);
            }
            if (GROUPS % 2 == 0) continue;
            if (k % 2 == 0) load_matrix_transposed(last, rows + right + (GROUPS - 1) * GROUP_BYTES + 2 * k * EIGHT_ROWS);
            mma(sums + 4 * GROUPS - 4, left, last[k % 2 * 2], last[k % 2 * 2 + 1]);
        }
    }
};
