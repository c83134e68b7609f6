// A linear layer behind max(0, w * x + b), a convolution of 3 x 3 of small images. The results of the convolution are stored, since
// the gradient of the linear layer needs them, but not read.
//
// A warp has IMAGES images. For each place of the filter it multiplies the pixels of the taps by the weights of the convolution:
// rows are images, and columns are filters. The sums of columns 2t and 2t + 1 are, after the ReLU, columns t and t + 4 of the left
// fragment of the product by the weights of the linear layer. These columns of both halves of the filters are 4t, ..., 4t + 3, so
// that a lane stores 16 bytes at once. Lane t has the rows of taps 4k + t, which are numbered row by row, and a row channel by
// channel: images of 4 mod 16 bytes a channel, as those of 10 x 10, then have different banks for all lanes of a load.
//
// The results of the convolution have the order (image, place, filter), of which lanes store whole sectors. A bit of each says
// whether it is above 0, 16 bits for the filters of a place. Column g of output tiles 2k and 2k + 1 is outputs 16 k + 2 g and
// 16 k + 2 g + 1. Another macro is HAS_RELU (whether a ReLU is behind the linear layer).
#include "image_blocks.cuh"

constexpr int TILES = IMAGES / 16, OUTPUT_TILES = OUTPUTS / 8;
constexpr int ROUNDS = (TAP_ROWS + 3) / 4, LANE_TAPS = 3 * ROUNDS, STEPS = (LANE_TAPS + 1) / 2;

// The filter of a column of one half.
__device__ __forceinline__ int filter_number(int half, int column) { return column / 2 * 4 + 2 * half + column % 2; }

// The weights and biases of the convolution in this lane, of both halves: of column g, and of columns 2t and 2t + 1.
struct Filters {
    u32 weights[STEPS][2][2];
    float bias[2][2];
};
__device__ __forceinline__ void load_filters(Filters& f, const Batch& b, int g, int t) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            f.bias[half][i] = b.bias[filter_number(half, 2 * t + i)];
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                const int number = 2 * k + i, tap_row = 4 * (number / 3) + t;
                const int tap = tap_row % CHANNELS * 9 + tap_row / CHANNELS * 3 + number % 3;
                const bool exists = number < LANE_TAPS && tap_row < TAP_ROWS;
                f.weights[k][half][i] = exists ? round_tf32(b.weight[filter_number(half, g) * TAPS + tap] * (float)b.scale) : 0u;
            }
        }
}

// The results of the convolution at one place, before the ReLU, of a tile of 16 images and both halves of the filters.
__device__ __forceinline__ void convolve_place(float (*x)[4], const Filters& f, const PIXEL* const* place_pixels, int tile) {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = f.bias[i / 4][i % 2];
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        u32 pixels[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {  // of images g and g + 8, and of two taps
            const int number = 2 * k + i / 2 < LANE_TAPS ? 2 * k + i / 2 : 0;  // the last step can have one tap
            pixels[i] = __float_as_uint((float)place_pixels[number / 3][(16 * tile + i % 2 * 8) * DISTANCE + number % 3]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) mma_tf32(x[half], pixels, f.weights[k][half][0], f.weights[k][half][1]);
    }
}

// Applies the ReLU; `bits` says which results are above 0, of image g, and 16 bits above of image g + 8.
__device__ __forceinline__ void apply_relu(float (*x)[4], u32& bits, int t) {
    bits = 0u;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool is_positive = !(x[i / 4][i % 4] <= 0.0f);  // as torch has it for nan
        bits |= is_positive ? 1u << (16 * (i % 4 / 2) + filter_number(i / 4, i % 2)) : 0u;
        x[i / 4][i % 4] = is_positive ? x[i / 4][i % 4] : 0.0f;
    }
    bits <<= 4 * t;
    bits |= __shfl_xor_sync(~0u, bits, 1);
    bits |= __shfl_xor_sync(~0u, bits, 2);
}

__device__ __forceinline__ float relu(float x) { return x <= 0.0f ? 0.0f : x; }  // as torch has it for nan

// Stores the results of this lane, those of four successive outputs at once, where an image exists: of images g, g + 8, ...
__device__ __forceinline__ void store_outputs(
    float* out, const float* linear_bias, const float (*sums)[OUTPUT_TILES][4], int count, int t) {
#pragma unroll
    for (int k = 0; k < OUTPUT_TILES; k += 2) {
        const float* lane_bias = linear_bias + 8 * k + 4 * t;
        const float bias[4] = {lane_bias[0], lane_bias[1], lane_bias[2], lane_bias[3]};  // before stores, which could change it
#pragma unroll
        for (int n = 0; n < 2 * TILES; n++) {
            const float *even = sums[n / 2][k] + n % 2 * 2, *odd = sums[n / 2][k + 1] + n % 2 * 2;
            const float4 x = make_float4(even[0] + bias[0], odd[0] + bias[1], even[1] + bias[2], odd[1] + bias[3]);
            if (8 * n < count)
                *(float4*)(out + 8 * n * OUTPUTS + 8 * k + 4 * t) =
                    HAS_RELU ? make_float4(relu(x.x), relu(x.y), relu(x.z), relu(x.w)) : x;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolution_linear(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char memory[];  // two times the weights of four places, then the images
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 address = (u32)__cvta_generic_to_shared(memory), images = address + 2 * QUAD_BYTES;
    const PIXEL* lane_pixels[ROUNDS];  // those of the rows of taps of this lane at the first place
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        const int row = 4 * k + t < TAP_ROWS ? 4 * k + t : 0;
        lane_pixels[k] = (const PIXEL*)memory + 2 * QUAD_BYTES + (warp * IMAGES + g) * DISTANCE +
            row % CHANNELS * HEIGHT * WIDTH + row / CHANNELS * WIDTH;
    }
    const int numbers[2] = {weight_number(g, 2 * t), weight_number(g, 2 * t + 1)};
    Filters filters;
    load_filters(filters, b, g, t);
    for (i64 group = blockIdx.x; group * BLOCK_IMAGES < b.num_images; group += gridDim.x) {
        const i64 group_first = group * BLOCK_IMAGES, left_over = b.num_images - group_first, first = group_first + warp * IMAGES;
        const int group_count = (int)(left_over < BLOCK_IMAGES ? left_over : BLOCK_IMAGES), count = group_count - warp * IMAGES;
        float sums[TILES][OUTPUT_TILES][4] = {};
        __syncthreads();
        copy_rows<IMAGE_SIZE>(images, b.images + group_first * IMAGE_SIZE, group_count);
        copy_weights(address, b.packed, 0);
        float* lane_features = b.features + (first + g) * PLACES * FILTERS + 4 * t;
        unsigned short* lane_bits = (unsigned short*)b.is_positive + (first + g) * PLACES + t;
#pragma unroll 1
        for (int quad = 0; quad < QUADS; quad++) {
            wait_for_copies();
            __syncthreads();
            if (quad + 1 < QUADS) copy_weights(address + (quad + 1) % 2 * QUAD_BYTES, b.packed, quad + 1);
            const uint4* right = (const uint4*)(memory + quad % 2 * QUAD_BYTES);
            u32 quad_bits[TILES];  // those of the place that this lane stores
#pragma unroll 1
            for (int i = 0; i < 4; i++) {
                const PIXEL* place_pixels[ROUNDS];
#pragma unroll
                for (int k = 0; k < ROUNDS; k++) place_pixels[k] = lane_pixels[k] + first_pixel(quad) + i;
                u32 left[TILES][2][4];
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    float x[2][4];
                    u32 bits;
                    convolve_place(x, filters, place_pixels, tile);
                    apply_relu(x, bits, t);
                    if (i == 0 || i == t) quad_bits[tile] = bits;
#pragma unroll
                    for (int n = 0; n < 8; n++) left[tile][n / 4][n % 2 * 2 + n % 4 / 2] = round_tf32(x[n / 4][n % 4]);
#pragma unroll
                    for (int row = 0; row < 2; row++) {
                        const int image = 16 * tile + 8 * row;
                        float* at = lane_features + (image * PLACES + 4 * quad + i) * FILTERS;
                        const float4 results = make_float4(x[0][2 * row], x[0][2 * row + 1], x[1][2 * row], x[1][2 * row + 1]);
                        if (image + g < count) __stcg((float4*)at, results);
                    }
                }
#pragma unroll
                for (int k = 0; k < OUTPUT_TILES; k++) {  // two output tiles and a half of the filters
                    const uint4 w = right[i * OUTPUTS * 4 + k / 2 * 64 + numbers[k % 2]];
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        mma_tf32(sums[tile][k / 2 * 2], left[tile][k % 2], w.x, w.y);
                        mma_tf32(sums[tile][k / 2 * 2 + 1], left[tile][k % 2], w.z, w.w);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < 2 * TILES; n++)
                if (8 * n + g < count) lane_bits[8 * n * PLACES + 4 * quad] = (unsigned short)(quad_bits[n / 2] >> (16 * (n % 2)));
        }
        store_outputs(b.out + (first + g) * OUTPUTS, b.linear_bias, sums, count - g, t);
    }
}
