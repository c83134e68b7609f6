// The results max(0, w * x + b) of a convolution of 3 x 3, and a bit for each of them that says whether it is above 0.
//
// A warp multiplies the weights by the pixels of a tile: rows are filters, and columns are places. The rows of taps are
// distributed over the lanes t, so that a lane loads its pixels of four tiles at once; a step multiplies two taps of each lane.
#include "image_tiles.cuh"

constexpr int ROUNDS = (TAP_ROWS + 3) / 4, LANE_TAPS = 3 * ROUNDS, STEPS = (LANE_TAPS + 1) / 2;

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const __grid_constant__ Batch b) {
    __shared__ __align__(16) u32 pixels[WARPS * IMAGE_STRIDE];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32 weights[STEPS][4], *image_pixels = pixels + warp * IMAGE_STRIDE;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int number = 2 * k + i / 2, tap_row = 4 * (number / 3) + t, tap = 3 * tap_row + number % 3;
            const bool exists = number < LANE_TAPS && tap_row < TAP_ROWS;
            weights[k][i] = exists ? round_tf32(b.weight[(g + i % 2 * 8) * TAPS + tap] * (float)b.scale) : 0u;
        }
    const float bias[2] = {b.bias[g], b.bias[g + 8]};
    for (i64 image = (i64)blockIdx.x * WARPS + warp; image < b.num_images; image += (i64)gridDim.x * WARPS) {
        load_image(image_pixels, b.images + image * IMAGE_SIZE);
#pragma unroll 2
        for (int group = 0; group < GROUPS; group++) {
            u32 taps[ROUNDS][GROUP_TILES][3];
            float s[GROUP_TILES][4];
#pragma unroll
            for (int k = 0; k < ROUNDS; k++) load_taps(taps[k], image_pixels, first_place(group, g), 4 * k + t);
#pragma unroll
            for (int j = 0; j < GROUP_TILES; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[j][i] = bias[i / 2];
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    const int first = 2 * k, second = first + 1 < LANE_TAPS ? first + 1 : 0;  // the last step can have one tap
                    mma_tf32(s[j], weights[k], taps[first / 3][j][first % 3], taps[second / 3][j][second % 3]);
                }
            }
            u32 bits = 0u;
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    float x[VECTOR];
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) {
                        const int number = v * VECTOR + i;  // among the eight places of this lane
                        const float sum = s[number % 4][2 * side + number / 4];
                        const bool is_positive = !(sum <= 0.0f);  // as torch has it for nan
                        bits |= is_positive ? 1u << (8 * side + number) : 0u;
                        x[i] = is_positive ? sum : 0.0f;
                    }
                    const int place = first_place(group, 2 * t + v);
                    store_places((Number*)b.out + (image * FILTERS + g + 8 * side) * PLACES + place, x, PLACES - place);
                }
            ((unsigned short*)b.is_positive)[(image * GROUPS + group) * 32 + lane] = (unsigned short)bits;
        }
    }
}
