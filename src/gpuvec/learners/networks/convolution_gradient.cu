// The gradient of the weights and the bias of a convolution of 3 x 3 with a ReLU, as one partial gradient of each block: first
// that of the weights, filter by filter, then that of the bias.
//
// A warp multiplies the gradient of the results of a tile by the pixels of its taps: rows are filters, and columns are taps.
// The rows of taps are distributed over the lanes g. Behind the last one is a row of ones, whose column is the gradient of the
// bias. Columns t and t + 4 of the left fragment are the places of columns 2t and 2t + 1 of the tile, and so are the rows of
// the right one. Sums do not depend on the order of execution, so that runs are reproducible bit by bit.
#include "image_tiles.cuh"

constexpr int ROUNDS = (TAP_ROWS + 8) / 8, PARTIAL_SIZE = FILTERS * (TAPS + 1);
constexpr u32 ONE = 0x3F800000u;  // the bits of 1.0f

extern "C" __global__ void __launch_bounds__(THREADS) convolution_gradient(const __grid_constant__ Batch b) {
    // The images, then the sums of the warps.
    __shared__ __align__(16) u32 memory[WARPS * (IMAGE_STRIDE > PARTIAL_SIZE ? IMAGE_STRIDE : PARTIAL_SIZE)];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    u32* image_pixels = memory + warp * IMAGE_STRIDE;
    float sums[ROUNDS][3][4] = {};
    for (i64 image = (i64)blockIdx.x * WARPS + warp; image < b.num_images; image += (i64)gridDim.x * WARPS) {
        load_image(image_pixels, b.images + image * IMAGE_SIZE);
#pragma unroll 2
        for (int group = 0; group < GROUPS; group++) {
            const u32 bits = ((const unsigned short*)b.is_positive)[(image * GROUPS + group) * 32 + lane];
            u32 gradient[2][8];  // of the eight places of this lane
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    const int place = first_place(group, 2 * t + v);
                    float x[VECTOR];
                    load_places((const Number*)b.out_gradient + (image * FILTERS + g + 8 * side) * PLACES + place,
                        PLACES - place, x);
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) {
                        const int number = v * VECTOR + i;
                        const u32 rounded = IS_BF16 ? __float_as_uint(x[i]) : round_tf32(x[i]);
                        gradient[side][number] = bits >> (8 * side + number) & 1u ? rounded : 0u;
                    }
                }
#pragma unroll
            for (int k = 0; k < ROUNDS; k++) {
                u32 taps[2][GROUP_TILES][3];
#pragma unroll
                for (int i = 0; i < 2; i++) load_taps(taps[i], image_pixels, first_place(group, 2 * t + i), 8 * k + g);
                const bool is_bias = 8 * k + g == TAP_ROWS;
#pragma unroll
                for (int j = 0; j < GROUP_TILES; j++) {
                    const u32 left[4] = {gradient[0][j], gradient[1][j], gradient[0][4 + j], gradient[1][4 + j]};
#pragma unroll
                    for (int d = 0; d < 3; d++)
                        mma_tf32(sums[k][d], left, is_bias ? ONE : taps[0][j][d], is_bias ? ONE : taps[1][j][d]);
                }
            }
        }
    }
    __syncthreads();
    float* warp_sums = (float*)memory;
#pragma unroll
    for (int k = 0; k < ROUNDS; k++)
#pragma unroll
        for (int d = 0; d < 3; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int filter = g + i / 2 * 8, tap = 3 * (8 * k + 2 * t + i % 2) + d;
                if (tap <= TAPS)
                    warp_sums[warp * PARTIAL_SIZE + (tap < TAPS ? filter * TAPS + tap : FILTERS * TAPS + filter)] =
                        sums[k][d][i] * (tap < TAPS ? (float)b.scale : 1.0f);
            }
    __syncthreads();
    for (int i = threadIdx.x; i < PARTIAL_SIZE; i += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += warp_sums[w * PARTIAL_SIZE + i];
        b.partial_gradients[(i64)blockIdx.x * PARTIAL_SIZE + i] = sum;
    }
}
