// Convolutions of 3 x 3 of small images on tensor cores: what the layer and its gradient share. Both have FILTERS filters.
//
// A block has IMAGES images in shared memory. A warp processes tiles, each of 8 successive places of the filter in one image.
// The taps of a filter are its pixels in all channels, in the order of its weights. Products are those of TF32 operands, which
// hold pixels of uint8 exactly, and sums are in float32. With g = lane / 4 and t = lane % 4, the fragments of a lane are
//     left (16 x 8)    rows g and g + 8 of column t, then the same rows of column t + 4
//     right (8 x 8)    rows t and t + 4 of column g
//     sums (16 x 8)    columns 2t and 2t + 1 of row g, then the same columns of row g + 8
//
// Macros: CHANNELS, HEIGHT, WIDTH, PIXEL (the type of pixels), IS_BF16 (whether results are bfloat16, else float32), IMAGES,
// THREADS.
#pragma once

typedef unsigned int u32;
typedef long long i64;

constexpr int FILTERS = 16, COLUMNS = WIDTH - 2, PLACES = (HEIGHT - 2) * COLUMNS, TAPS = 9 * CHANNELS;
constexpr int IMAGE_SIZE = CHANNELS * HEIGHT * WIDTH, TILES = (PLACES + 7) / 8, WARPS = THREADS / 32;

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

// Two numbers, rounded to bfloat16.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Copies IMAGES images from number `first` on to shared memory, times `scale`; behind the last image it stores zeros.
__device__ __forceinline__ void load_images(u32* pixels, const PIXEL* images, i64 first, i64 num_images, float scale) {
    const i64 rest = (num_images - first) * IMAGE_SIZE;
    const PIXEL* source = images + first * IMAGE_SIZE;
#pragma unroll 8
    for (int i = threadIdx.x; i < IMAGES * IMAGE_SIZE; i += THREADS)
        pixels[i] = i < rest ? round_tf32((float)source[i] * scale) : 0u;
}

// The offset of a tap from the first pixel of its place. Behind the last tap it is that of the first one.
__device__ __forceinline__ int tap_offset(int tap) {
    return tap < TAPS ? (tap / 9 * HEIGHT + tap % 9 / 3) * WIDTH + tap % 3 : 0;
}

// The offset of the first pixel of a place of a tile. Behind the last place of an image it is that of the last one.
__device__ __forceinline__ int place_offset(int tile, int place_in_tile) {
    const int last = PLACES - 1, number = tile % TILES * 8 + place_in_tile, place = number < last ? number : last;
    return tile / TILES * IMAGE_SIZE + place / COLUMNS * WIDTH + place % COLUMNS;
}

// Store and load the numbers of two successive places, of which `count` exist. Others are 0.
#if IS_BF16
typedef unsigned short Number;
__device__ __forceinline__ void store_pair(Number* at, float x, float y, int count) {
    const u32 pair = pack_bf16(x, y);
    if (PLACES % 2 == 0) {
        if (count > 0) *(u32*)at = pair;
    } else {
        if (count > 0) at[0] = (Number)pair;
        if (count > 1) at[1] = (Number)(pair >> 16);
    }
}
__device__ __forceinline__ float2 load_pair(const Number* at, int count) {
    const u32 pair = PLACES % 2 == 0 ? (count > 0 ? *(const u32*)at : 0u)
                                     : (count > 0 ? at[0] : 0u) | (count > 1 ? (u32)at[1] : 0u) << 16;
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
#else
typedef float Number;
__device__ __forceinline__ void store_pair(Number* at, float x, float y, int count) {
    if (PLACES % 2 == 0) {
        if (count > 0) *(float2*)at = make_float2(x, y);
    } else {
        if (count > 0) at[0] = x;
        if (count > 1) at[1] = y;
    }
}
__device__ __forceinline__ float2 load_pair(const Number* at, int count) {
    if (PLACES % 2 == 0) return count > 0 ? *(const float2*)at : make_float2(0.0f, 0.0f);
    return make_float2(count > 0 ? at[0] : 0.0f, count > 1 ? at[1] : 0.0f);
}
#endif
