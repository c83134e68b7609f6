// The results max(0, w * x + b) of a convolution of 3 x 3, and a bit for each of them that says whether it is above 0.
//
// A block has IMAGES images. A warp multiplies the weights by the pixels of a tile: rows are filters, and columns are places.
#include "image_tiles.cuh"

constexpr int STEPS = (TAPS + 7) / 8;  // of eight taps

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const __grid_constant__ Batch b) {
    __shared__ u32 pixels[IMAGES * IMAGE_SIZE];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const i64 first = (i64)blockIdx.x * IMAGES;
    u32 weights[STEPS][4];
    int offsets[STEPS][2];
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int tap = 8 * k + t + i / 2 * 4;
            weights[k][i] = tap < TAPS ? round_tf32(b.weight[(g + i % 2 * 8) * TAPS + tap]) : 0u;
            offsets[k][i / 2] = tap_offset(tap);
        }
    const float bias[2] = {b.bias[g], b.bias[g + 8]};
    load_images(pixels, b.images, first, b.num_images, (float)b.scale);
    __syncthreads();
    const i64 rest = b.num_images - first;
    const int num_tiles = (int)(rest < IMAGES ? rest : IMAGES) * TILES;
#pragma unroll 4
    for (int tile = warp; tile < num_tiles; tile += WARPS) {
        const u32* place = pixels + place_offset(tile, g);
        float s[4] = {bias[0], bias[0], bias[1], bias[1]};
#pragma unroll
        for (int k = 0; k < STEPS; k++) mma_tf32(s, weights[k], place[offsets[k][0]], place[offsets[k][1]]);
        u32 bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bits[i] = __ballot_sync(~0u, s[i] > 0.0f);
            s[i] = s[i] < 0.0f ? 0.0f : s[i];  // nan stays nan
        }
        const i64 image = first + tile / TILES;
        if (lane == 0) ((uint4*)b.is_positive)[first * TILES + tile] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
        const int number = tile % TILES * 8 + 2 * t;
#pragma unroll
        for (int side = 0; side < 2; side++)
            store_pair((Number*)b.out + (image * FILTERS + g + 8 * side) * PLACES + number, s[2 * side], s[2 * side + 1],
                PLACES - number);
    }
}
