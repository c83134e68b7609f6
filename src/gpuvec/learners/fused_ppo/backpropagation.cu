// The gradients of the loss of PPO by the sums of each layer, for actor and critic, where those by the weights do not fit into
// registers. weight_gradient.cu computes these from what this kernel keeps in global memory.
//
// Even blocks have the actor, odd ones the critic. A warp processes 32 samples at a time, in the order of the epoch's permutation,
// and waits for no other warp. A launch has a chunk of a minibatch. Gradients are sums over samples, as in gradient.cu.
//
// Macros, besides those of activations.cuh and objective.cuh: SHARED_BYTES (of a block).
#include "objective.cuh"
#include "activations.cuh"
#include "shuffle.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES;
static_assert(ROWS == 32, "a lane has the number of a sample");

template <int OUT> struct SharedMemory {
    typename Network<OUT>::Weights w;
    float warp_sums[WARPS][2 * Network<OUT>::O + NUM_SUMS];
};
static_assert(sizeof(SharedMemory<OUTPUTS>) == SHARED_BYTES, "the launch allocates another size");

// Two rows of blocks, from `row` on, and two columns of blocks, from `column` on, of a matrix: a left fragment.
__device__ __forceinline__ void store_fragment(const Matrix& matrix, int row, int column, const u32* h) {
#pragma unroll
    for (int i = 0; i < 4; i++) matrix.word(row + (i & 1), column + (i >> 1)) = h[i];
}
__device__ __forceinline__ void load_fragment(const Matrix& matrix, int row, int column, u32* h) {
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = matrix.word(row + (i & 1), column + (i >> 1));
}

template <bool ACTOR> __device__ __forceinline__ void backpropagate_chunk(const Batch& b, char* dynamic_shared) {
    constexpr int OUT = ACTOR ? OUTPUTS : 1;
    using N = Network<OUT>;
    using A = Activations<ACTOR>;
    constexpr int O = N::O;
    SharedMemory<OUT>& shared = *(SharedMemory<OUT>*)dynamic_shared;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    const int part = blockIdx.x >> 1, num_parts = gridDim.x >> 1, size = (int)b.minibatch_size, begin = (int)b.chunk * CHUNK_ROWS,
              num_tiles = (min(size - begin, CHUNK_ROWS) + ROWS - 1) / ROWS;
    const int minibatch_begin = (int)(b.minibatch % b.num_minibatches) * size;
    const Permutation permutation(
        b.seed, *b.iteration, (int)(b.minibatch / b.num_minibatches), (u32)b.num_samples, (int)b.index_bits);
    const float* parameters = b.parameters + (ACTOR ? 0 : Network<OUTPUTS>::SIZE);
    launch_dependents();
    wait_for_previous();
    Objective<ACTOR, O> objective(b);
    load_weights<OUT>(shared.w, parameters);
    objective.start(parameters);
    const Matrix x_of = A::inputs(b.activations), h1_of = A::activations(b.activations, 1),
                 h_of = A::activations(b.activations, LAYERS), d1_of = A::gradients(b.activations, 1),
                 d_of = A::gradients(b.activations, LAYERS), z_of = A::output_gradients(b.activations);
    __syncthreads();

    for (int tile = warp * num_parts + part; tile < num_tiles; tile += num_parts * WARPS) {
        const int first = begin + tile * ROWS, block_row = tile * (ROWS / 8);
        const u32 lane_sample = permutation((u32)(minibatch_begin + min(first + lane, size - 1)));
        const float* records[TILES][2];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int side = 0; side < 2; side++)
                records[m][side] = b.records + (u64)__shfl_sync(~0u, lane_sample, 16 * m + 8 * side + g) * RECORD_SIZE;

        // Forward pass.
        ActivationFragments h[TILES];
        {
            InputFragments x[TILES];
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int c = 0; c < X / 8; c++)
#pragma unroll
                    for (int side = 0; side < 2; side++) x[m][c][side] = load_input(records[m][side], 8 * c);
            // Stored after all loads, which would wait for these stores.
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int c = 0; ACTOR && c < X / 8; c++)
#pragma unroll
                    for (int side = 0; side < 2; side++) x_of.word(block_row + 2 * m + side, c) = x[m][c][side];
            first_layer<TILES>(shared.w.w1, x, h);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < H / 16; k++) store_fragment(h1_of, block_row + 2 * m, 2 * k, h[m][k]);
        float z[TILES][O / 8][4];
        start_outputs<TILES, O>(shared.w.b3, z);
        // Activations of the second layer are not kept in registers: 32 columns at a time are added to the outputs.
#pragma unroll 1
        for (int k = 0; LAYERS == 2 && k < H / 32; k++) {
            u32 h2[TILES][2][4];
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float c[TILES][4], d[TILES][4];
                second_layer_sums<TILES>(shared.w.w2, shared.w.b2, 2 * k + u, h, c, d);
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    activate(h2[m][u], c[m], d[m]);
                    store_fragment(h_of, block_row + 2 * m, 4 * k + 2 * u, h2[m][u]);
                }
            }
            add_to_outputs<TILES, O>(shared.w.w3, k, [&](int m, int u) { return h2[m][u]; }, z);
        }
        if (LAYERS == 1) last_layer<TILES, O>(shared.w.w3, shared.w.b3, h, z);

        // Objective.
        u32 dz[TILES][O / 8][2];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const float* r = records[m][side];
                const bool active = first + 16 * m + 8 * side + g < size && (!HAS_MASK || r[ACTIVE] != 0.0f);
                objective.differentiate(z[m], side, r, active, dz[m]);
#pragma unroll
                for (int n = 0; n < O / 8; n++) z_of.word(block_row + 2 * m + side, n) = dz[m][n][side];
            }

        __syncwarp();

        // Backward pass: the gradients by the sums of the last hidden layer replace its activations, and those the first ones.
        constexpr int AHEAD = 3;  // fragments that are loaded before they are used
        u32 last[4];
#pragma unroll
        for (int j = -AHEAD; j < H / 16; j++) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
                if (LAYERS == 2 && j + AHEAD < H / 16)
                    load_fragment(h_of, block_row + 2 * m, 2 * (j + AHEAD), h[m][j + AHEAD]);
            if (j < 0) continue;
            float c[TILES][4] = {}, d[TILES][4] = {};
            backpropagate_outputs<TILES, O>(shared.w.w3, dz, j, last, c, d);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                backpropagate(h[m][j], c[m], d[m]);
                store_fragment(d_of, block_row + 2 * m, 2 * j, h[m][j]);
            }
        }
#pragma unroll 1
        for (int j = 0; LAYERS == 2 && j < H / 16; j++) {
            u32 h1[TILES][4];
#pragma unroll
            for (int m = 0; m < TILES; m++) load_fragment(h1_of, block_row + 2 * m, 2 * j, h1[m]);
            float c[TILES][4] = {}, d[TILES][4] = {};
            backpropagate_second_layer<TILES>(shared.w.w2, h, j, c, d);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                backpropagate(h1[m], c[m], d[m]);
                store_fragment(d1_of, block_row + 2 * m, 2 * j, h1[m]);
            }
        }
    }

    // The sums of this block: gradients of the last biases and of log_std, and the sums of the loss.
    objective.store_sums(shared.warp_sums[warp]);
    __syncthreads();
    if (thread < 2 * O + NUM_SUMS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared.warp_sums[w][thread];
        b.block_sums[blockIdx.x * BLOCK_SUMS + thread] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backpropagation(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    if (blockIdx.x & 1) backpropagate_chunk<false>(b, dynamic_shared);
    else backpropagate_chunk<true>(b, dynamic_shared);
}
