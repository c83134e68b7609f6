// Convolutions of 3 x 3 of small images on tensor cores: what the layer and its gradient share. Both have FILTERS filters.
//
// A warp has an image in shared memory. It processes a group of 32 places of the filter as four tiles of 8 columns: a column of
// the tiles has four successive places, one in each tile. The taps of a filter are its pixels, in rows of three. Products are
// those of TF32 operands, which hold pixels of uint8 exactly, and sums are in float32. With g = lane / 4 and t = lane % 4, the
// fragments of a lane are
//     left (16 x 8)    rows g and g + 8 of column t, then the same rows of column t + 4
//     right (8 x 8)    rows t and t + 4 of column g
//     sums (16 x 8)    columns 2t and 2t + 1 of row g, then the same columns of row g + 8
//
// Macros: CHANNELS, HEIGHT, WIDTH, PIXEL (the type of pixels), IS_BF16 (whether results are bfloat16, else float32), THREADS.
#pragma once
#include "number.cuh"

constexpr int FILTERS = 16, WARPS = THREADS / 32, IMAGE_SIZE = CHANNELS * HEIGHT * WIDTH;
constexpr int COLUMNS = WIDTH - 2, PLACES = (HEIGHT - 2) * COLUMNS, TAP_ROWS = 3 * CHANNELS, TAPS = 3 * TAP_ROWS;
constexpr int GROUP_PLACES = 32, GROUP_TILES = 4, GROUPS = (PLACES + GROUP_PLACES - 1) / GROUP_PLACES;
constexpr int VECTORS = 8 / VECTOR;  // of the places of a lane in a group
// Distances in shared memory. With eight columns of places, the lanes of a load have different banks.
constexpr int ROW_STRIDE = (WIDTH + 7) / 32 * 32 + 24, CHANNEL_STRIDE = (HEIGHT * ROW_STRIDE + 23) / 32 * 32 + 8,
              IMAGE_STRIDE = CHANNELS * CHANNEL_STRIDE;

// s += left * right.
__device__ __forceinline__ void mma_tf32(float* s, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 round_tf32(float x) {
    u32 r;
    asm("cvt.rna.tf32.f32 %0,%1;" : "=r"(r) : "f"(x));
    return r;
}

// Copies an image to the shared memory of this warp.
__device__ __forceinline__ void load_image(u32* pixels, const PIXEL* image) {
    constexpr int NUM_LOADS = (IMAGE_SIZE + 31) / 32, BATCH = NUM_LOADS < 16 ? NUM_LOADS : 16;
    const int lane = threadIdx.x & 31;
    __syncwarp();
    for (int first = 0; first < NUM_LOADS; first += BATCH) {
        PIXEL loaded[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int number = (first + k) * 32 + lane;
            if (number < IMAGE_SIZE) loaded[k] = image[number];
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int number = (first + k) * 32 + lane, row = number / WIDTH;
            const float pixel = (float)loaded[k];
            if (number < IMAGE_SIZE)
                pixels[row / HEIGHT * CHANNEL_STRIDE + row % HEIGHT * ROW_STRIDE + number % WIDTH] =
                    sizeof(PIXEL) == 1 ? __float_as_uint(pixel) : round_tf32(pixel);
        }
    }
    __syncwarp();
}

// The number of the first place of a column in a group; tile j has the j-th place behind it. Columns 2t and 2t + 1 have the
// places that lane t loads or stores as vectors.
__device__ __forceinline__ int first_place(int group, int column) {
    return group * GROUP_PLACES + (IS_BF16 ? 4 * column : 16 * (column & 1) + 4 * (column >> 1));
}

// The offset of the first pixel of a place; that of another place if it does not exist.
__device__ __forceinline__ int place_offset(int place) {
    const int existing = place < PLACES ? place : 0;
    return existing / COLUMNS * ROW_STRIDE + existing % COLUMNS;
}

// Loads the three pixels of a row of taps at each of four successive places. Behind the last row they are those of the first.
__device__ __forceinline__ void load_taps(u32 (*taps)[3], const u32* pixels, int first, int tap_row) {
    const u32* row = pixels + (tap_row < TAP_ROWS ? tap_row / 3 * CHANNEL_STRIDE + tap_row % 3 * ROW_STRIDE : 0);
    if (COLUMNS % 4 == 0) {  // the places have successive pixels
        const u32* window = row + place_offset(first);
        const uint4 left = *(const uint4*)window;
        const uint2 right = *(const uint2*)(window + 4);
        const u32 words[6] = {left.x, left.y, left.z, left.w, right.x, right.y};
#pragma unroll
        for (int i = 0; i < 12; i++) taps[i / 3][i % 3] = words[i / 3 + i % 3];
    } else {
#pragma unroll
        for (int i = 0; i < 12; i++) taps[i / 3][i % 3] = row[place_offset(first + i / 3) + i % 3];
    }
}

// Store and load the numbers of the places of a vector, of which `count` exist. Others are 0.
__device__ __forceinline__ void store_places(Number* at, const float* x, int count) {
    const uint4 vector = pack_vector(x);
    if (PLACES % VECTOR == 0) {
        if (count > 0) *(uint4*)at = vector;
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (i < count) at[i] = ((const Number*)&vector)[i];
}
__device__ __forceinline__ void load_places(const Number* at, int count, float* x) {
    uint4 vector = make_uint4(0u, 0u, 0u, 0u);
    if (PLACES % VECTOR == 0) {
        if (count > 0) vector = *(const uint4*)at;
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < count) ((Number*)&vector)[i] = at[i];
    }
    unpack_vector(vector, x);
}
