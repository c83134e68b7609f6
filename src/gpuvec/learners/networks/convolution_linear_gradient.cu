// The gradient of a convolution of 3 x 3 with a ReLU, from the gradient of the linear layer behind it. The gradient of the results
// of the convolution, which is a product of the latter by the weights of the linear layer, stays in registers. A block has one
// partial gradient, in the order of convolution_gradient.cu, and sums do not depend on the order of execution.
//
// A warp has IMAGES images at a time. For one place of the filter, a step of a product has filters as rows, images as columns,
// and eight outputs of the linear layer as the dimension that is summed. The sums of columns 2t and 2t + 1 are columns t and t + 4
// of the left fragment of a product by the pixels of the taps at this place, with the images as the dimension that is summed. So
// they need no exchange between lanes.
//
// Rows g and g + 8 are filters 2g and 2g + 1. Columns t and t + 4 of steps 2k and 2k + 1 are four successive outputs.
#include "image_blocks.cuh"

constexpr int STEPS = OUTPUTS / 8, TILES = IMAGES / 8, ROUNDS = (TAPS + 8) / 8;
constexpr int PARTIAL_SIZE = FILTERS * (TAPS + 1);
// In shared memory an image has the bits of its results behind its pixels.
constexpr int BITS_SIZE = 2 * PLACES;
constexpr u32 ONE = 0x3F800000u;  // the bits of 1.0f

// The right fragments of the images of this lane, of which `count` exist: the gradients of the outputs.
__device__ __forceinline__ void load_gradients(u32 (*right)[STEPS][2], const float* out_gradient, int count, int g, int t) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int k = 0; k < STEPS; k += 2) {
            const int image = 8 * tile + g;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (image < count) x = *(const float4*)(out_gradient + image * OUTPUTS + 8 * k + 4 * t);
            right[tile][k][0] = round_tf32(x.x), right[tile][k][1] = round_tf32(x.y);
            right[tile][k + 1][0] = round_tf32(x.z), right[tile][k + 1][1] = round_tf32(x.w);
        }
}

// The bits of images 2t and 2t + 1 of each tile at the places `quad`: bits 0, 1, 16 and 17 of a word are those of filters 2g and
// 2g + 1 at a place, and then at the next one. `records` are those of image 2t.
__device__ __forceinline__ void load_bits(uint2 (*bits)[2], const PIXEL* records, int quad, int g) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 words = *(const uint2*)(records + (8 * tile + i) * DISTANCE + IMAGE_SIZE + 8 * quad);
            bits[tile][i] = uint2{words.x >> (2 * g), words.y >> (2 * g)};
        }
}

// Stores the sums of a warp, filter by filter, where the bias is behind all taps.
__device__ __forceinline__ void store_sums(float* warp_sums, const float (*sums)[4], float scale, int g, int t) {
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int filter = 2 * g + i / 2, tap = 8 * j + 2 * t + i % 2;
            if (tap < TAPS) warp_sums[filter * TAPS + tap] = sums[j][i] * scale;
            if (tap == TAPS) warp_sums[FILTERS * TAPS + filter] = sums[j][i];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolution_linear_gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char memory[];  // two times the weights of four places, then the images
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 address = (u32)__cvta_generic_to_shared(memory), images = address + 2 * QUAD_BYTES;
    const PIXEL *lane_images = (const PIXEL*)memory + 2 * QUAD_BYTES + (warp * IMAGES + 2 * t) * DISTANCE, *lane_pixels[ROUNDS];
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {  // those of the taps of this lane at the first place
        const int tap = 8 * j + g, row = tap < TAPS ? tap / 3 : 0;
        lane_pixels[j] = lane_images + row / 3 * HEIGHT * WIDTH + row % 3 * WIDTH + tap % 3;
    }
    const int numbers[2] = {weight_number(2 * t, g), weight_number(2 * t + 1, g)};
    float sums[ROUNDS][4] = {};
    for (i64 first = (i64)blockIdx.x * BLOCK_IMAGES; first < b.num_images; first += (i64)gridDim.x * BLOCK_IMAGES) {
        const i64 left_over = b.num_images - first, warp_first = first + warp * IMAGES;
        const int count = (int)(left_over < BLOCK_IMAGES ? left_over : BLOCK_IMAGES);
        u32 right[TILES][STEPS][2];
        __syncthreads();
        copy_rows<IMAGE_SIZE>(images, b.images + first * IMAGE_SIZE, count);
        copy_rows<BITS_SIZE>(images + IMAGE_SIZE, (const char*)b.is_positive + first * BITS_SIZE, count);
        copy_weights(address, b.packed, 0);
        load_gradients(right, b.out_gradient + warp_first * OUTPUTS, count - warp * IMAGES, g, t);
#pragma unroll 1
        for (int quad = 0; quad < QUADS; quad++) {
            wait_for_copies();
            __syncthreads();
            if (quad + 1 < QUADS) copy_weights(address + (quad + 1) % 2 * QUAD_BYTES, b.packed, quad + 1);
            const uint4* left = (const uint4*)(memory + quad % 2 * QUAD_BYTES);
            uint2 bits[TILES][2];
            load_bits(bits, lane_images, quad, g);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float s[TILES][4] = {};
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    const uint4 a = left[i * OUTPUTS * 4 + k / 2 * 64 + numbers[k % 2]];
                    const u32 words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) mma_tf32(s[tile], words, right[tile][k][0], right[tile][k][1]);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    u32 gradient[4];
#pragma unroll
                    for (int n = 0; n < 4; n++) {  // image 2t of both filters, then image 2t + 1
                        const u32 word = i < 2 ? bits[tile][n / 2].x : bits[tile][n / 2].y;
                        const u32 mask = (u32)((int)(word << (31 - 16 * (i % 2) - n % 2)) >> 31);
                        gradient[n] = round_tf32(s[tile][2 * (n % 2) + n / 2]) & mask;
                    }
#pragma unroll
                    for (int j = 0; j < ROUNDS; j++) {
                        const PIXEL* taps = lane_pixels[j] + first_pixel(quad) + i + 8 * tile * DISTANCE;
                        const bool is_bias = 8 * j + g == TAPS;
                        const u32 pixels[2] = {__float_as_uint((float)taps[0]), __float_as_uint((float)taps[DISTANCE])};
                        mma_tf32(sums[j], gradient, is_bias ? ONE : pixels[0], is_bias ? ONE : pixels[1]);
                    }
                }
            }
        }
    }
    __syncthreads();
    store_sums((float*)memory + warp * PARTIAL_SIZE, sums, (float)b.scale, g, t);
    __syncthreads();
    for (int i = threadIdx.x; i < PARTIAL_SIZE; i += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += ((const float*)memory)[w * PARTIAL_SIZE + i];
        b.partial_gradients[(i64)blockIdx.x * PARTIAL_SIZE + i] = sum;
    }
}
