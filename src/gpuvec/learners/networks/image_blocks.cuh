// A convolution and the linear layer behind it: what the kernel of both layers and that of their gradient share.
//
// A block has the images of its warps in shared memory, and all its warps multiply by the same weights of the linear layer: those
// of four successive places of the filter, while the next ones are copied. A lane loads the weights of two outputs and two filters
// at once, 2q and 2q + 1 of both, as (place, pair of outputs, pair of filters, output, filter).
//
// Macros: those of image_tiles.cuh, with float32 results and pixels of uint8; OUTPUTS (of the linear layer), IMAGES (of a
// warp), DISTANCE (in bytes, from one image to the next in shared memory).
#pragma once
#include "image_tiles.cuh"

constexpr int QUADS = PLACES / 4, QUAD_BYTES = 4 * OUTPUTS * FILTERS * 4;
constexpr int BLOCK_IMAGES = WARPS * IMAGES;
static_assert(sizeof(PIXEL) == 1 && !IS_BF16 && COLUMNS % 4 == 0 && PLACES % 8 == 0 && IMAGE_SIZE % 16 == 0 && OUTPUTS % 16 == 0,
    "these images or outputs are not supported");

// Copies 16 bytes to shared memory; they are there after `wait_for_copies`.
__device__ __forceinline__ void copy(u32 target, const void* source) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Copies `count` rows of BYTES bytes, which are DISTANCE bytes from each other in shared memory.
template <int BYTES> __device__ __forceinline__ void copy_rows(u32 target, const void* rows, int count) {
    constexpr int PIECES = BYTES / 16;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * PIECES; i += THREADS)
        copy(target + i / PIECES * DISTANCE + i % PIECES * 16, (const char*)rows + 16 * (i64)i);
}

// The number of the weights of two pairs in shared memory, which differs from their order in such a way that eight lanes have
// different banks: those with two successive pairs of outputs and each second pair of filters, or the reverse.
__device__ __forceinline__ int weight_number(int outputs, int filters) {
    return 8 * outputs + (filters ^ (outputs & 7));
}
__device__ __forceinline__ void copy_weights(u32 target, const void* packed, int quad) {
    const char* source = (const char*)packed + (i64)quad * QUAD_BYTES;
    for (int i = threadIdx.x; i < QUAD_BYTES / 16; i += THREADS) copy(target + 16 * weight_number(i / 8, i % 8), source + 16 * i);
}

// The number of the first pixel of the places `quad` of an image.
__device__ __forceinline__ int first_pixel(int quad) { return 4 * quad / COLUMNS * WIDTH + 4 * quad % COLUMNS; }
