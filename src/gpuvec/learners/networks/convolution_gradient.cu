// The gradient of the weights and the bias of a convolution of 3 x 3 with a ReLU, as one partial gradient of each block.
//
// A warp multiplies the gradient of the results of a tile by the pixels of its taps: rows are filters, and columns are taps. The
// column behind the last tap has ones for pixels, so that it is the gradient of the bias. Sums do not depend on the order of
// execution, so that runs are reproducible bit by bit.
#include "image_tiles.cuh"

constexpr int GROUPS = (TAPS + 8) / 8, PARTIAL_SIZE = FILTERS * GROUPS * 8;  // groups of eight columns
constexpr u32 ONE = 0x3F800000u;  // the bits of 1.0f

extern "C" __global__ void __launch_bounds__(THREADS) convolution_gradient(const __grid_constant__ Batch b) {
    __shared__ u32 pixels[IMAGES * IMAGE_SIZE];
    __shared__ float warp_sums[WARPS * PARTIAL_SIZE];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float sums[GROUPS][4] = {};
    int offsets[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) offsets[j] = tap_offset(8 * j + g);
    const bool is_bias = TAPS % 8 == g;  // whether this lane has the column of the bias, in the last group
    for (i64 first = (i64)blockIdx.x * IMAGES; first < b.num_images; first += (i64)gridDim.x * IMAGES) {
        __syncthreads();
        load_images(pixels, b.images, first, b.num_images, (float)b.scale);
        __syncthreads();
        const i64 rest = b.num_images - first;
        const int num_tiles = (int)(rest < IMAGES ? rest : IMAGES) * TILES;
#pragma unroll 4
        for (int tile = warp; tile < num_tiles; tile += WARPS) {
            const int number = tile % TILES * 8 + 2 * t, count = PLACES - number;
            const i64 row = (first + tile / TILES) * FILTERS + g;
            const uint4 bits = ((const uint4*)b.is_positive)[first * TILES + tile];
            const float2 low = load_pair((const Number*)b.out_gradient + row * PLACES + number, count),
                         high = load_pair((const Number*)b.out_gradient + (row + 8) * PLACES + number, count);
            // Columns t and t + 4 of the left fragment are places 2t and 2t + 1, and so are rows t and t + 4 of the right one.
            const u32 left[4] = {bits.x >> lane & 1 ? round_tf32(low.x) : 0u, bits.z >> lane & 1 ? round_tf32(high.x) : 0u,
                bits.y >> lane & 1 ? round_tf32(low.y) : 0u, bits.w >> lane & 1 ? round_tf32(high.y) : 0u};
            const u32 *even = pixels + place_offset(tile, 2 * t), *odd = pixels + place_offset(tile, 2 * t + 1);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                const bool is_one = j == GROUPS - 1 && is_bias;
                mma_tf32(sums[j], left, is_one ? ONE : even[offsets[j]], is_one ? ONE : odd[offsets[j]]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            warp_sums[warp * PARTIAL_SIZE + (g + i / 2 * 8) * GROUPS * 8 + 8 * j + 2 * t + i % 2] = sums[j][i];
    __syncthreads();
    for (int i = threadIdx.x; i < PARTIAL_SIZE; i += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += warp_sums[w * PARTIAL_SIZE + i];
        b.partial_gradients[(i64)blockIdx.x * PARTIAL_SIZE + i] = sum;
    }
}
