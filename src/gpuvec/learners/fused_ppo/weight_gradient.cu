// The gradients of the weights of PPO's networks, from what the backpropagation kept of a chunk of a minibatch, as partial gradients.
//
// A block computes a matrix product, or 128 columns of one, for a part of the samples: for each layer the sum over samples of the
// gradients of its units, or of its inputs, times the other ones. The first chunk writes a partial gradient, and the others add to
// it. Sums do not depend on the order of execution.
//
// Macros, besides those of activations.cuh: WARPS (HIDDEN / 32), NUM_PARTIALS (parts of the samples), NUM_BACKPROPAGATIONS (blocks of
// the backpropagation for each network), SHARED_BYTES (of a block).
#include "activations.cuh"

constexpr int THREADS = 32 * WARPS, STEP = 32, STAGES = 3, COLUMN_BLOCKS = 16;  // STEP samples are loaded at a time
static_assert(H == THREADS, "a warp has 32 units");
// The products of a network: of the second layer, of the first one, and of the last one, whose result is transposed.
constexpr int W2_PRODUCTS = LAYERS == 2 ? (H / 8 + COLUMN_BLOCKS - 1) / COLUMN_BLOCKS : 0,
              W1_PRODUCTS = (X / 8 + COLUMN_BLOCKS - 1) / COLUMN_BLOCKS, PRODUCTS = W2_PRODUCTS + W1_PRODUCTS + 1;

struct Stage {
    u32 left[STEP / 8][H / 8][32], right[STEP / 8][COLUMN_BLOCKS][32];  // blocks of 8 x 8 numbers
};
static_assert(STAGES * sizeof(Stage) == SHARED_BYTES, "the launch allocates another size");
static_assert(STAGES == 3 && Network<OUTPUTS>::O / 8 <= COLUMN_BLOCKS, "one group of copies may be pending, and z is one product");

// Copies STEP samples of `count` columns of blocks, from `first` on, to rows of `pitch` blocks in shared memory.
__device__ __forceinline__ void copy_blocks(u32* target, int pitch, const Matrix& source, int step, int first, int count) {
    for (int i = threadIdx.x; i < STEP / 8 * count * 8; i += THREADS) {
        const int row = i / (8 * count), column = i / 8 % count, part = i % 8 * 4;
        const u32* from = source.words + ((u64)(step * (STEP / 8) + row) * source.blocks + first + column) * 32 + part;
        const u32 to = shared_address(target + (row * pitch + column) * 32 + part);
        asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
    }
}

template <bool ACTOR> __device__ __forceinline__ void add_products(const Batch& b, char* dynamic_shared, int product, int part) {
    using N = Network<ACTOR ? OUTPUTS : 1>;
    using A = Activations<ACTOR>;
    constexpr int O = N::O;
    Stage* stages = (Stage*)dynamic_shared;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3, q = lane >> 3;
    const int size = min((int)b.minibatch_size - (int)b.chunk * CHUNK_ROWS, CHUNK_ROWS), num_steps = (size + STEP - 1) / STEP,
              begin = (int)((i64)num_steps * part / NUM_PARTIALS), end = (int)((i64)num_steps * (part + 1) / NUM_PARTIALS);
    const bool is_second = product < W2_PRODUCTS, is_last = product == PRODUCTS - 1;
    const int first = is_last ? 0 : COLUMN_BLOCKS * (is_second ? product : product - W2_PRODUCTS);
    const Matrix left = is_last ? A::activations(b.activations, LAYERS) : A::gradients(b.activations, is_second ? 2 : 1),
                 right = is_second ? A::activations(b.activations, 1)
                     : is_last     ? A::output_gradients(b.activations)
                                   : A::inputs(b.activations);
    const int num_blocks = min(right.blocks - first, COLUMN_BLOCKS);
    float* out = b.partial_gradients + (u64)part * NUM_PARAMETERS + (ACTOR ? 0 : Network<OUTPUTS>::SIZE);
    auto add = [&](float* at, float x) { *at = b.chunk ? *at + x : x; };
    auto load = [&](int step) {
        if (step < end) {
            Stage& stage = stages[(step - begin) % STAGES];
            copy_blocks(stage.left[0][0], H / 8, left, step, 0, H / 8);
            copy_blocks(stage.right[0][0], COLUMN_BLOCKS, right, step, first, num_blocks);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    launch_dependents();
    wait_for_previous();
    load(begin), load(begin + 1);
    float sums[2][COLUMN_BLOCKS][4] = {}, bias_sums[2][4] = {};
    for (int step = begin; step < end; step++) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();  // the copies of all threads are there, and all have used the stage that is loaded now
        load(step + STAGES - 1);
        const Stage& stage = stages[(step - begin) % STAGES];
#pragma unroll
        for (int u = 0; u < STEP / 16; u++) {
            u32 units[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_matrix_transposed(
                    units[i], shared_address(&stage.left[2 * u + (q >> 1)][4 * warp + 2 * i + (q & 1)][(lane & 7) * 4]));
#pragma unroll
            for (int n = 0; n < COLUMN_BLOCKS; n += 2) {
                if (n >= num_blocks) break;
                u32 columns[4];  // of which the last two are not used if the number of blocks is odd
                load_matrix_transposed(columns, shared_address(&stage.right[2 * u + (q & 1)][n + (q >> 1)][(lane & 7) * 4]));
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma(sums[i][n], units[i], columns[0], columns[1]), mma(sums[i][n + 1], units[i], columns[2], columns[3]);
            }
            if (is_second && product == 0) mma(bias_sums[0], units[0], ONES, ONES), mma(bias_sums[1], units[1], ONES, ONES);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int unit = 32 * warp + 16 * i + 8 * side + g;
#pragma unroll
            for (int n = 0; n < COLUMN_BLOCKS; n++) {
                if (n >= num_blocks) break;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int column = 8 * (first + n) + 2 * t + k;
                    float* at = out
                        + (is_last         ? N::W3 + column * H + unit
                                : is_second ? N::W2 + unit * H + column
                                            : N::W1 + unit * X + column);
                    add(at, sums[i][n][2 * side + k]);
                }
            }
            if (is_second && product == 0 && t == 0) add(out + N::B2 + unit, bias_sums[i][2 * side]);
        }
    // The sums of the blocks of the backpropagation, in their order.
    for (int k = thread; is_last && k < 2 * O + NUM_SUMS; k += THREADS) {
        float sum = 0.0f;
        for (int block = part; block < NUM_BACKPROPAGATIONS; block += NUM_PARTIALS)
            sum += b.block_sums[(2 * block + !ACTOR) * BLOCK_SUMS + k];
        if (k < 2 * O) add(out + N::B3 + k, sum);
        else if ((k - 2 * O == 1) != ACTOR) add(b.loss_sums + part * NUM_SUMS + k - 2 * O, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) weight_gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    // The largest products of all parts come first, so that the small ones fill what they leave.
    const int product = blockIdx.x / (2 * NUM_PARTIALS), network = blockIdx.x & 1, part = blockIdx.x / 2 % NUM_PARTIALS;
    if (network) add_products<false>(b, dynamic_shared, product, part);
    else add_products<true>(b, dynamic_shared, product, part);
}
