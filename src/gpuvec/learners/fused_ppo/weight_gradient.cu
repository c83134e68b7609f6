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
enum Product { SECOND, FIRST, LAST };
constexpr int SECOND_PRODUCTS = LAYERS == 2 ? (H / 8 + COLUMN_BLOCKS - 1) / COLUMN_BLOCKS : 0;

struct Stage {
    u32 left[STEP / 8][H / 8][32], right[STEP / 8][COLUMN_BLOCKS][32];  // blocks of 8 x 8 numbers
};
static_assert(STAGES * sizeof(Stage) == SHARED_BYTES, "the launch allocates another size");
static_assert(STAGES == 3, "one group of copies may be pending");

// Copies STEP samples of COUNT columns of blocks, from `first` on, to rows of PITCH blocks in shared memory.
template <int COUNT, int PITCH>
__device__ __forceinline__ void copy_blocks(u32* target, const Matrix& source, int step, int first) {
#pragma unroll
    for (int k = 0; k < STEP * COUNT; k += THREADS) {
        const int i = k + threadIdx.x, row = i / (8 * COUNT), column = i / 8 % COUNT, part = i % 8 * 4;
        const u32* from = source.words + ((u64)(step * (STEP / 8) + row) * source.blocks + first + column) * 32 + part;
        const u32 to = shared_address(target + (row * PITCH + column) * 32 + part);
        if (k + THREADS <= STEP * COUNT || i < STEP * COUNT)
            asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
    }
}

// Adds a product, from a column of blocks on, of a part of the samples.
template <bool ACTOR, int PRODUCT>
__device__ __forceinline__ void add_product(const Batch& b, char* dynamic_shared, int first, int part) {
    using N = Network<ACTOR ? OUTPUTS : 1>;
    using A = Activations<ACTOR>;
    constexpr int O = N::O, COLUMNS = PRODUCT == SECOND ? H : PRODUCT == FIRST ? X : O;
    constexpr int COUNT = COLUMNS / 8 < COLUMN_BLOCKS ? COLUMNS / 8 : COLUMN_BLOCKS;
    static_assert(COLUMNS / 8 % COUNT == 0 && (PRODUCT == SECOND || COUNT == COLUMNS / 8), "a product has all of its columns");
    Stage* stages = (Stage*)dynamic_shared;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3, q = lane >> 3;
    const int size = min((int)b.minibatch_size - (int)b.chunk * CHUNK_ROWS, CHUNK_ROWS), num_steps = (size + STEP - 1) / STEP,
              begin = (int)((i64)num_steps * part / NUM_PARTIALS), end = (int)((i64)num_steps * (part + 1) / NUM_PARTIALS);
    const Matrix left = PRODUCT == LAST ? A::activations(b.activations, LAYERS)
                                        : A::gradients(b.activations, PRODUCT == SECOND ? 2 : 1),
                 right = PRODUCT == SECOND ? A::activations(b.activations, 1)
                     : PRODUCT == FIRST    ? A::inputs(b.activations)
                                           : A::output_gradients(b.activations);
    float* out = b.partial_gradients + (u64)part * NUM_PARAMETERS + (ACTOR ? 0 : Network<OUTPUTS>::SIZE);
    const bool has_bias = PRODUCT == SECOND && first == 0, is_added = b.chunk > 0;
    auto load = [&](int step) {
        if (step < end) {
            Stage& stage = stages[(step - begin) % STAGES];
            copy_blocks<H / 8, H / 8>(stage.left[0][0], left, step, 0);
            copy_blocks<COUNT, COLUMN_BLOCKS>(stage.right[0][0], right, step, first);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    // The places of the sums of this lane among the parameters; that of the second one of a pair is STRIDE after the first.
    constexpr int OFFSET = PRODUCT == SECOND ? N::W2 : PRODUCT == FIRST ? N::W1 : N::W3, STRIDE = PRODUCT == LAST ? H : 1;
    float sums[2][COUNT + 1][4] = {}, bias_sums[2][4] = {};
    auto unit = [&](int i, int side) { return 32 * warp + 16 * i + 8 * side + g; };
    auto place = [&](int i, int side, int n) {
        const int column = 8 * (first + n) + 2 * t;
        return out + OFFSET + (PRODUCT == LAST ? column * H + unit(i, side) : unit(i, side) * COLUMNS + column);
    };
    launch_dependents();
    wait_for_previous();
    load(begin), load(begin + 1);
    if (is_added) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
#pragma unroll
                for (int n = 0; n < COUNT; n++)
#pragma unroll
                    for (int k = 0; k < 2; k++) sums[i][n][2 * side + k] = place(i, side, n)[k * STRIDE];
                if (has_bias) bias_sums[i][2 * side] = out[N::B2 + unit(i, side)];
            }
    }
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
            for (int n = 0; n < COUNT; n += 2) {
                u32 columns[4];  // of which the last two are not used if the number of blocks is odd
                load_matrix_transposed(columns, shared_address(&stage.right[2 * u + (q & 1)][n + (q >> 1)][(lane & 7) * 4]));
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma(sums[i][n], units[i], columns[0], columns[1]), mma(sums[i][n + 1], units[i], columns[2], columns[3]);
            }
            if (has_bias) mma(bias_sums[0], units[0], ONES, ONES), mma(bias_sums[1], units[1], ONES, ONES);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
                const float *pair = &sums[i][n][2 * side];
                float* at = place(i, side, n);
                if (PRODUCT == LAST) at[0] = pair[0], at[STRIDE] = pair[1];
                else *(float2*)at = make_float2(pair[0], pair[1]);
            }
            if (has_bias && t == 0) out[N::B2 + unit(i, side)] = bias_sums[i][2 * side];
        }
    // The sums of the blocks of the backpropagation, in their order.
    for (int k = thread; PRODUCT == LAST && k < 2 * O + NUM_SUMS; k += THREADS) {
        const bool is_loss = k >= 2 * O;
        if (is_loss && (k - 2 * O == 1) == ACTOR) continue;  // the term of the other network
        float* at = is_loss ? b.loss_sums + part * NUM_SUMS + k - 2 * O : out + N::B3 + k;
        float sum = is_added ? *at : 0.0f;
        for (int block = part; block < NUM_BACKPROPAGATIONS; block += NUM_PARTIALS)
            sum += b.block_sums[(2 * block + !ACTOR) * BLOCK_SUMS + k];
        *at = sum;
    }
}

template <bool ACTOR> __device__ __forceinline__ void add_products(const Batch& b, char* dynamic_shared, int product, int part) {
#if LAYERS == 2
    if (product < SECOND_PRODUCTS) return add_product<ACTOR, SECOND>(b, dynamic_shared, product * COLUMN_BLOCKS, part);
#endif
    if (product == SECOND_PRODUCTS) add_product<ACTOR, FIRST>(b, dynamic_shared, 0, part);
    else add_product<ACTOR, LAST>(b, dynamic_shared, 0, part);
}

extern "C" __global__ void __launch_bounds__(THREADS) weight_gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    // The largest products of all parts come first, so that the small ones fill what they leave.
    const int product = blockIdx.x / (2 * NUM_PARTIALS), part = blockIdx.x / 2 % NUM_PARTIALS;
    if (blockIdx.x & 1) add_products<false>(b, dynamic_shared, product, part);
    else add_products<true>(b, dynamic_shared, product, part);
}
