// The gradient of a convolution of 3 x 3 with a ReLU, from the gradient of the linear layer behind it. The gradient of the results
// of the convolution, which is a product of the latter by the weights of the linear layer, stays in registers. A block has one
// partial gradient, in the order of convolution_gradient.cu, and sums do not depend on the order of execution.
//
// A warp has IMAGES images at a time. For one place of the filter, a step of a product has filters as rows, images as columns,
// and eight outputs of the linear layer as the dimension that is summed. The sums of columns 2t and 2t + 1 are columns t and t + 4
// of the left fragment of a product by the pixels of the taps at this place, with the images as the dimension that is summed. So
// they need no exchange between lanes.
//
// `packed` has the weights of the linear layer in the order of left fragments: for each place and step the four numbers of each
// lane. Column t of steps 2k and 2k + 1 is output 16 k + 4 t and the second one behind it, and column t + 4 the output behind
// column t, so that a lane loads the gradients of four successive outputs at once. All warps of a block multiply by the same
// weights, those of four places at a time, while the next ones are copied to shared memory.
//
// Macros: those of image_tiles.cuh, with float32 results; OUTPUTS (of the linear layer, a multiple of 16), TILES (of eight images
// of a warp).
#include "image_tiles.cuh"

constexpr int STEPS = OUTPUTS / 8, IMAGES = 8 * TILES, BLOCK_IMAGES = WARPS * IMAGES, ROUNDS = (TAPS + 8) / 8;
constexpr int QUADS = PLACES / 4, GROUP_QUADS = GROUP_PLACES / 4, PARTIAL_SIZE = FILTERS * (TAPS + 1);
// Bytes of the weights of four places, and of an image; twice the latter is 8 words modulo 32, so that lanes have different banks.
constexpr int QUAD_BYTES = 4 * STEPS * 32 * 16, DISTANCE = (IMAGE_SIZE + 47) / 64 * 64 + 16;
constexpr u32 ONE = 0x3F800000u;  // the bits of 1.0f
static_assert(sizeof(PIXEL) == 1 && !IS_BF16 && COLUMNS % 4 == 0 && IMAGE_SIZE % 16 == 0 && OUTPUTS % 16 == 0, "not supported");

// Copies 16 bytes to shared memory; they are there after `wait_for_copies`.
__device__ __forceinline__ void copy(u32 target, const void* source) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void copy_images(u32 target, const PIXEL* images, int count) {
    constexpr int PIECES = IMAGE_SIZE / 16;
    for (int i = threadIdx.x; i < count * PIECES; i += THREADS)
        copy(target + i / PIECES * DISTANCE + i % PIECES * 16, images + 16 * (i64)i);
}

__device__ __forceinline__ void copy_weights(u32 target, const void* packed, int quad) {
    const char* source = (const char*)packed + (i64)quad * QUAD_BYTES;
    for (int i = 16 * threadIdx.x; i < QUAD_BYTES; i += 16 * THREADS) copy(target + i, source + i);
}

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

// The bits of a group of filters g and g + 8, of images 2t and 2t + 1 of each tile, as convolve.cu stores them.
__device__ __forceinline__ void load_bits(uint2 (*bits)[2], const void* is_positive, i64 first, int count, int group, int g, int t) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int image = 8 * tile + 2 * t + i;
            bits[tile][i] = uint2{0u, 0u};
            if (image < count) bits[tile][i] = ((const uint2*)is_positive)[((first + image) * GROUPS + group) * 8 + g];
        }
}

// Stores the sums of a warp, filter by filter, where the bias is behind all taps.
__device__ __forceinline__ void store_sums(float* warp_sums, const float (*sums)[4], float scale, int g, int t) {
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int filter = g + i / 2 * 8, tap = 8 * j + 2 * t + i % 2;
            if (tap < TAPS) warp_sums[filter * TAPS + tap] = sums[j][i] * scale;
            if (tap == TAPS) warp_sums[FILTERS * TAPS + filter] = sums[j][i];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolution_linear_gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char memory[];  // two times the weights of four places, then the images
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 address = (u32)__cvta_generic_to_shared(memory);
    const PIXEL* lane_pixels[ROUNDS];  // those of the taps of this lane at the first place
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        const int tap = 8 * j + g, row = tap < TAPS ? tap / 3 : 0;
        lane_pixels[j] = (const PIXEL*)memory + 2 * QUAD_BYTES + (warp * IMAGES + 2 * t) * DISTANCE + row / 3 * HEIGHT * WIDTH +
            row % 3 * WIDTH + tap % 3;
    }
    float sums[ROUNDS][4] = {};
    for (i64 block_first = (i64)blockIdx.x * BLOCK_IMAGES; block_first < b.num_images; block_first += (i64)gridDim.x * BLOCK_IMAGES) {
        const i64 first = block_first + warp * IMAGES, left_over = b.num_images - block_first;
        const int block_count = (int)(left_over < BLOCK_IMAGES ? left_over : BLOCK_IMAGES), count = block_count - warp * IMAGES;
        u32 right[TILES][STEPS][2];
        uint2 bits[TILES][2];
        __syncthreads();
        copy_images(address + 2 * QUAD_BYTES, b.images + block_first * IMAGE_SIZE, block_count);
        copy_weights(address, b.packed, 0);
        load_gradients(right, b.out_gradient + first * OUTPUTS, count, g, t);
#pragma unroll 1
        for (int quad = 0; quad < QUADS; quad++) {
            wait_for_copies();
            __syncthreads();
            if (quad + 1 < QUADS) copy_weights(address + (quad + 1) % 2 * QUAD_BYTES, b.packed, quad + 1);
            if (quad % GROUP_QUADS == 0) load_bits(bits, b.is_positive, first, count, quad / GROUP_QUADS, g, t);
            const uint4* left = (const uint4*)(memory + quad % 2 * QUAD_BYTES) + lane;
            const int offset = 4 * quad / COLUMNS * WIDTH + 4 * quad % COLUMNS;
            u32 place_bits[TILES][2];  // bits i and i + 8 are of the i-th place and filters g and g + 8
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                const uint2 words = bits[i / 2][i % 2];
                place_bits[i / 2][i % 2] = (quad & 2 ? words.y : words.x) >> (quad % 2 * 16 + quad % GROUP_QUADS / 4 * 4);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float s[TILES][4] = {};
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    const uint4 a = left[(i * STEPS + k) * 32];
                    const u32 words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) mma_tf32(s[tile], words, right[tile][k][0], right[tile][k][1]);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    u32 gradient[4];
#pragma unroll
                    for (int n = 0; n < 4; n++)  // image 2t of filters g and g + 8, then image 2t + 1
                        gradient[n] = round_tf32(s[tile][2 * (n % 2) + n / 2]) &
                            (u32)((int)(place_bits[tile][n / 2] << (31 - i - 8 * (n % 2))) >> 31);
#pragma unroll
                    for (int j = 0; j < ROUNDS; j++) {
                        const PIXEL* taps = lane_pixels[j] + offset + i + 8 * tile * DISTANCE;
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
