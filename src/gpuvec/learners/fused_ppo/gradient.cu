// The gradient of the loss of PPO on a minibatch, for actor and critic, as one partial gradient of each pair of blocks.
//
// Even blocks have the actor, odd ones the critic. A block processes tiles of samples in the order of the epoch's permutation:
// forward pass, objective, backward pass. Activations stay in registers, and are stored in shared memory only for the products
// that sum over samples. Gradients are sums over samples, divided by their number later, because FP16 would lose the quotients.
// Sums do not depend on the order of execution, so that runs are reproducible bit by bit.
//
// Macros, besides those of network.cuh and objective.cuh: TILES (of 16 rows, per warp), BLOCKS_PER_MULTIPROCESSOR, SHARED_BYTES
// (of a block), IN_PLACE_GRADIENTS (whether gradients of activations overwrite the activations, which costs barriers).
#include "network.cuh"
#include "objective.cuh"
#include "shuffle.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES, BLOCK_ROWS = ROWS * WARPS;
// A warp sums the gradient of 16 W2_ROWS x 8 W2_COLUMNS weights of the second layer; W2_WARPS warps share the same rows.
constexpr int W2_WARPS = WARPS / 2, W2_ROWS = H / 2 / 16, W2_COLUMNS = H / W2_WARPS / 8;

template <int OUT> struct SharedMemory {
    static constexpr int O = Network<OUT>::O, PO = pitch(O);
    float records[BLOCK_ROWS * RECORD_SIZE];
    typename Network<OUT>::Weights w;
    // Inputs, gradients of the outputs, activations of both layers, and gradients of their sums.
    half x[BLOCK_ROWS * PX], z[BLOCK_ROWS * PO], h1[BLOCK_ROWS * PH], h2[LAYERS == 2 ? BLOCK_ROWS * PH : 8];
    half d1[IN_PLACE_GRADIENTS ? 8 : BLOCK_ROWS * PH], d2[!IN_PLACE_GRADIENTS && LAYERS == 2 ? BLOCK_ROWS * PH : 8];
    float warp_sums[WARPS][2 * O + NUM_SUMS];
};
static_assert(sizeof(SharedMemory<OUTPUTS>) == SHARED_BYTES, "the launch allocates another size");

template <bool ACTOR> __device__ __forceinline__ void compute_gradient(const Batch& b, char* dynamic_shared) {
    constexpr int OUT = ACTOR ? OUTPUTS : 1;
    using N = Network<OUT>;
    constexpr int O = N::O, PO = pitch(O);
    SharedMemory<OUT>& shared = *(SharedMemory<OUT>*)dynamic_shared;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    const int part = blockIdx.x >> 1, num_parts = gridDim.x >> 1, size = (int)b.minibatch_size,
              num_tiles = (size + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int minibatch_begin = (int)(b.minibatch % b.num_minibatches) * size, warp_row = warp * ROWS;
    const Permutation permutation(
        b.seed, *b.iteration, (int)(b.minibatch / b.num_minibatches), (u32)b.num_samples, (int)b.index_bits);
    const float* parameters = b.parameters + (ACTOR ? 0 : Network<OUTPUTS>::SIZE);

    // A warp loads the records of its own rows, so it need not wait for other warps.
    auto load_records = [&](int tile) {
        const u32 lane_sample = permutation((u32)(minibatch_begin + min(tile * BLOCK_ROWS + warp_row + lane % ROWS, size - 1)));
#pragma unroll
        for (int k = 0; k < ROWS * RECORD_SIZE / 4; k += 32) {
            const int row = (k + lane) / (RECORD_SIZE / 4), vector = (k + lane) % (RECORD_SIZE / 4);
            const float* source = b.records + (u64)__shfl_sync(~0u, lane_sample, row % 32) * RECORD_SIZE + 4 * vector;
            const u32 target = shared_address(&shared.records[(warp_row + row) * RECORD_SIZE + 4 * vector]);
            if (k + 32 <= ROWS * RECORD_SIZE / 4 || row < ROWS)
                asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(target), "l"(source) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    launch_dependents();
    if (part < num_tiles) load_records(part);  // before the wait, as the optimizer does not change them
    wait_for_previous();
    Objective<ACTOR, O> objective(b);
    load_weights<OUT>(shared.w, parameters);
    objective.start(parameters);
    // Addresses in shared memory.
    const u32 at_h1 = shared_address(shared.h1), at_h2 = shared_address(shared.h2);
    const u32 at_d1 = IN_PLACE_GRADIENTS ? at_h1 : shared_address(shared.d1),
              at_d2 = IN_PLACE_GRADIENTS ? at_h2 : shared_address(shared.d2);
    const u32 at_x = shared_address(shared.x), at_z = shared_address(shared.z);
    const u32 rows_first = lane_offset_rows_first<PH>(), columns_first = lane_offset_columns_first<PH>(),
              warp_offset = warp_row * PH * 2 + rows_first;
    // Partial gradients of this warp's weights, and sums of the gradients of its rows.
    const int w2_row = warp / W2_WARPS * (H / 2), w2_column = warp % W2_WARPS * (H / W2_WARPS);
    float dw2[W2_ROWS][W2_COLUMNS][4] = {}, dw1[X / 8][4] = {}, dw3[O / 8][4] = {}, db2[4] = {};
    // Tile of the warp's rows of the second layer whose biases the warp sums.
    const int bias_row = min(warp % W2_WARPS, W2_ROWS - 1);

    // Add the gradients of 32 samples, from row s on: each warp has a part of the weights, for the samples of all warps.
    const bool has_units = H / 16 >= WARPS || warp < H / 16;  // whether this warp has 16 units of the first and last layer
    auto add_last_layer = [&](int s) {
        u32 dz[O / 8][4], h[2][4];
        if (!has_units) return;
#pragma unroll
        for (int n = 0; n < O / 8; n++) load_matrix_transposed(dz[n], at_z + ((s + lane) * PO + 8 * n) * 2);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            load_matrix_transposed(h[u], (LAYERS == 2 ? at_h2 : at_h1) + (s + 16 * u) * PH * 2 + columns_first + warp * 32);
#pragma unroll
            for (int n = 0; n < O / 8; n++) mma(dw3[n], h[u], dz[n][2 * u], dz[n][2 * u + 1]);
        }
    };
    auto add_second_layer = [&](int s) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const u32 rows = (s + 16 * u) * PH * 2;
            u32 left[W2_ROWS][4], right[W2_COLUMNS / 2][4];
#pragma unroll
            for (int i = 0; i < W2_ROWS; i++)
                load_matrix_transposed(left[i], at_d2 + rows + columns_first + (w2_row + 16 * i) * 2);
#pragma unroll
            for (int j = 0; j < W2_COLUMNS / 2; j++)
                load_matrix_transposed(right[j], at_h1 + rows + rows_first + (w2_column + 16 * j) * 2);
#pragma unroll
            for (int i = 0; i < W2_ROWS; i++) {
#pragma unroll
                for (int j = 0; j < W2_COLUMNS; j++)
                    mma(dw2[i][j], left[i], right[j >> 1][(j & 1) * 2], right[j >> 1][(j & 1) * 2 + 1]);
            }
#pragma unroll
            for (int i = 1; i < W2_ROWS; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) left[0][k] = i == bias_row ? left[i][k] : left[0][k];
            mma(db2, left[0], ONES, ONES);
        }
    };
    auto add_first_layer = [&](int s) {
        u32 d1[2][4];
        if (!has_units) return;
#pragma unroll
        for (int u = 0; u < 2; u++) load_matrix_transposed(d1[u], at_d1 + (s + 16 * u) * PH * 2 + columns_first + warp * 32);
#pragma unroll
        for (int c = 0; c < X / 8; c++) {
            u32 x[4];
            load_matrix_transposed(x, at_x + ((s + lane) * PX + 8 * c) * 2);
            mma(dw1[c], d1[0], x[0], x[1]), mma(dw1[c], d1[1], x[2], x[3]);
        }
    };
    __syncthreads();

    for (int tile = part; tile < num_tiles; tile += num_parts) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        const float* records = shared.records + warp_row * RECORD_SIZE;

        // Forward pass.
        ActivationFragments h1[TILES], h2[TILES];
        {
            InputFragments x[TILES];
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int c = 0; c < X / 8; c++)
#pragma unroll
                    for (int side = 0; side < 2; side++) {
                        const int row = m * 16 + side * 8 + g;
                        x[m][c][side] = load_input(records + row * RECORD_SIZE, 8 * c);
                        *(u32*)(shared.x + (warp_row + row) * PX + 8 * c + 2 * t) = x[m][c][side];
                    }
            first_layer<TILES>(shared.w.w1, x, h1);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < H / 16; k++) store_matrix(at_h1 + warp_offset + m * 16 * PH * 2 + k * 32, h1[m][k]);
        if (LAYERS == 2) {
            second_layer<TILES>(shared.w.w2, shared.w.b2, h1, h2);
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int k = 0; k < H / 16; k++) store_matrix(at_h2 + warp_offset + m * 16 * PH * 2 + k * 32, h2[m][k]);
        }
        ActivationFragments* h = LAYERS == 2 ? h2 : h1;
        u32 dz[TILES][O / 8][2];
        {
            float z[TILES][O / 8][4];
            last_layer<TILES, O>(shared.w.w3, shared.w.b3, h, z);

            // Objective.
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const int row = m * 16 + side * 8 + g;
                    const float* r = records + row * RECORD_SIZE;
                    const bool active = tile * BLOCK_ROWS + warp_row + row < size && (!HAS_MASK || r[ACTIVE] != 0.0f);
                    objective.differentiate(z[m], side, r, active, dz[m]);
#pragma unroll
                    for (int n = 0; n < O / 8; n++) *(u32*)(shared.z + (warp_row + row) * PO + 8 * n + 2 * t) = dz[m][n][side];
                }
        }
        __syncwarp();
        if (tile + num_parts < num_tiles) load_records(tile + num_parts);  // asynchronously, during the backward pass

        // Backward pass.
        if (IN_PLACE_GRADIENTS) {
            __syncthreads();
            for (int s = 0; s < BLOCK_ROWS; s += 32) add_last_layer(s);
            __syncthreads();
        }
        u32 last[4];
#pragma unroll
        for (int j = 0; j < H / 16; j++) {
            float c[TILES][4] = {}, d[TILES][4] = {};
            backpropagate_outputs<TILES, O>(shared.w.w3, dz, j, last, c, d);
#pragma unroll
            for (int m = 0; m < TILES; m++) backpropagate(h[m][j], c[m], d[m]);
        }
        if (LAYERS == 2) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int k = 0; k < H / 16; k++) store_matrix(at_d2 + warp_offset + m * 16 * PH * 2 + k * 32, h2[m][k]);
#pragma unroll
            for (int j = 0; j < H / 16; j++) {
                float c[TILES][4] = {}, d[TILES][4] = {};
                backpropagate_second_layer<TILES>(shared.w.w2, h2, j, c, d);
#pragma unroll
                for (int m = 0; m < TILES; m++) backpropagate(h1[m][j], c[m], d[m]);
            }
        }
        if (IN_PLACE_GRADIENTS && LAYERS == 2) {
            __syncthreads();
            for (int s = 0; s < BLOCK_ROWS; s += 32) add_second_layer(s);
            __syncthreads();
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < H / 16; k++) store_matrix(at_d1 + warp_offset + m * 16 * PH * 2 + k * 32, h1[m][k]);
        __syncthreads();

#pragma unroll
        for (int s = 0; s < BLOCK_ROWS; s += 32) {
            if (!IN_PLACE_GRADIENTS && LAYERS == 2) add_second_layer(s);
            if (!IN_PLACE_GRADIENTS) add_last_layer(s);
            add_first_layer(s);
        }
        __syncthreads();
    }

    // The partial gradient of this block, and its sums of the loss.
    float* out = b.partial_gradients + (u64)part * NUM_PARAMETERS + (ACTOR ? 0 : Network<OUTPUTS>::SIZE);
    if (LAYERS == 2) {
#pragma unroll
        for (int i = 0; i < W2_ROWS; i++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int row = w2_row + 16 * i + 8 * side + g;
#pragma unroll
                for (int j = 0; j < W2_COLUMNS; j++)
                    *(float2*)(out + N::W2 + row * H + w2_column + 8 * j + 2 * t) =
                        make_float2(dw2[i][j][2 * side], dw2[i][j][2 * side + 1]);
                if (i == bias_row && t == 0) out[N::B2 + row] = db2[2 * side];
            }
    }
    if (has_units) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int row = 16 * warp + 8 * side + g;
#pragma unroll
            for (int c = 0; c < X / 8; c++)
                *(float2*)(out + N::W1 + row * X + 8 * c + 2 * t) = make_float2(dw1[c][2 * side], dw1[c][2 * side + 1]);
#pragma unroll
            for (int n = 0; n < O / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) out[N::W3 + (8 * n + 2 * t + i) * H + row] = dw3[n][2 * side + i];
        }
    }
    objective.store_sums(shared.warp_sums[warp]);
    __syncthreads();
    if (thread < 2 * O + NUM_SUMS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared.warp_sums[w][thread];
        if (thread < 2 * O) out[N::B3 + thread] = sum;
        else if ((thread - 2 * O == 1) != ACTOR) b.loss_sums[part * NUM_SUMS + thread - 2 * O] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    if (blockIdx.x & 1) compute_gradient<false>(b, dynamic_shared);
    else compute_gradient<true>(b, dynamic_shared);
}
