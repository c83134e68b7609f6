// The gradient of a minibatch: both layers forward, the objective, and back, for TILES of 64 samples at a time.
//
// Activations stay in registers as left operands, and are stored once, as operands of the weights' gradients: those of
// TILES_STORED tiles at a time. Asynchronous products of one tile are issued before those of the other are awaited.
#pragma once
#include "objective.cuh"

// q[i] becomes q[i ^ t].
__device__ __forceinline__ void permute_by_xor(u32 (&q)[4], int t) {
    const bool odd = t & 1, high = t & 2;
    const u32 a = odd ? q[1] : q[0], b = odd ? q[0] : q[1], c = odd ? q[3] : q[2], d = odd ? q[2] : q[3];
    q[0] = high ? c : a, q[1] = high ? d : b, q[2] = high ? a : c, q[3] = high ? b : d;
}
// Transposes a 4 x 4 matrix of words of which each of four adjacent lanes has a row.
__device__ __forceinline__ void transpose_over_lanes(u32 (&q)[4], int t) {
    permute_by_xor(q, t);
#pragma unroll
    for (int i = 1; i < 4; i++) q[i] = __shfl_xor_sync(~0u, q[i], i);
    permute_by_xor(q, t);
}

// The sums of the gradients of a thread: those of the second weights with eight more columns, of which the first is the second
// bias, of the first weights, of the last weights, and of ones, whose row 0 are the last biases and the terms.
struct GradientSums {
    float w2[36], w1[X / 2], w3[Z / 2], ones[Z / 2];
};

// The derivatives of the samples of a pass by the outputs, of which this lane computes one row: the t-th of the 2 * TILES rows
// of its four lanes. `z` are the outputs of all, and `dz` becomes the left fragments: dz[q][r] has columns 8q + 2t and 8q + 2t
// + 1 of row r.
__device__ __forceinline__ void differentiate(
    const Batch& b, SharedMemory& shared, const float (&z)[TILES][PADDED_OUTPUTS / 2], int network, int update, int pass,
    u32 (&dz)[Z / 8][4]) {
    const Lane l(network);
    const Samples& samples = samples_of(b, shared);
    const int tile = pass * TILES + (TILES == 2 ? l.t >> 1 : 0);
    const int sample = samples.order[update * BATCH + TILE * tile + 16 * l.warp + l.g + 8 * (l.t & 1)];
    const float *record = samples.records[sample], *tail = shared.networks[l.network].tail[0];
    float outputs[OUTPUTS], d[Z] = {};
#pragma unroll
    for (int q = 0; q < PADDED_OUTPUTS / 8; q++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 column[4];  // of each row, then of the lane's row
#pragma unroll
            for (int r = 0; r < 4; r++) 
                column[r] = r < 2 * TILES ? __float_as_uint(z[r / 2 < TILES ? r / 2 : 0][4 * q + r % 2 * 2 + i]) : 0;
            transpose_over_lanes(column, l.t);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (8 * q + 2 * c + i < OUTPUTS) outputs[8 * q + 2 * c + i] = __uint_as_float(column[c]);
        }
#pragma unroll
    for (int k = 0; k < OUTPUTS; k++) outputs[k] += tail[k];
    if (l.network == 0) {
        const float advantage = (record[ADVANTAGE] - shared.advantage_mean[update]) * shared.advantage_scale[update];
        actor_derivatives(outputs, tail, record, advantage, shared.settings, d);
    } else critic_derivative(outputs[0], record, shared.settings, d);
    const bool has_row = l.t < 2 * TILES;
#pragma unroll
    for (int q = 0; q < Z / 8; q++) {
#pragma unroll
        for (int c = 0; c < 4; c++) dz[q][c] = has_row ? pack_halves(d[8 * q + 2 * c], d[8 * q + 2 * c + 1]) : 0;
        transpose_over_lanes(dz[q], l.t);
    }
}

typedef Fragments TileFragments[TILES];
typedef u32 InputFragments[TILES][X_STEPS][4];
typedef float OutputSums[TILES][PADDED_OUTPUTS / 2];
constexpr bool STORES_ALL_TILES = TILES_STORED == TILES;

// Store what the gradients of the weights need of the tiles from `first` on: inputs, and activations of a tile.
__device__ __forceinline__ void store_inputs(const Operands& o, int first, const InputFragments& x) {
#pragma unroll
    for (int k = 0; k < X / 8; k++) {
        u32 columns[4];
#pragma unroll
        for (int r = 0; r < 2 * TILES_STORED; r++) columns[r] = x[first + r / 2][k / 2][k % 2 * 2 + r % 2];
        o.store_columns<TILES_STORED>(AT_X + 1024 * k, H1_BYTES, columns);
    }
}
__device__ __forceinline__ void store_first_layer(const Operands& o, int i, const Fragments& h1) {
    o.store_activations(AT_H1 + i % TILES_STORED * H1_BYTES, h1);
}
__device__ __forceinline__ void store_last_layer(const Operands& o, int i, const Fragments& h2) {
    if (LAYERS == 2) o.store_activations(AT_H2 + i % TILES_STORED * LAYER_BYTES, h2);
    else o.store_activations(AT_H1 + i % TILES_STORED * H1_BYTES, h2);
}

// The inputs x and activations h1 and h2 of a pass, of which h2 are those of the last hidden layer, and the outputs z. Stores
// inputs and activations for the gradients of the weights, if those of all tiles are stored at a time.
__device__ __forceinline__ void forward(
    const Batch& b, SharedMemory& shared, int network, int update, int pass, InputFragments& x, TileFragments& h1,
    TileFragments& h2, OutputSums& z) {
    const Lane l(network);
    const Operands o = operands_of(shared.networks[l.network], l);
    float first[TILES][32], second[TILES][32];
    u32 one[1][4];
    one_column(one, l.t);
    const Samples& samples = samples_of(b, shared);
    const unsigned short* order = samples.order + update * BATCH + pass * TILES * TILE + 16 * l.warp + l.g;
#pragma unroll
    for (int i = 0; i < TILES; i++)
        load_inputs(x[i], samples.records[order[TILE * i]], samples.records[order[TILE * i + 8]], l.t);
    fence_products();
#pragma unroll
    for (int i = 0; i < TILES; i++) o.multiply_edge<X>(first[i], x[i], AT_EDGE, 0), commit_products();
    if (STORES_ALL_TILES) store_inputs(o, 0, x);
    if constexpr (LAYERS == 2) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            wait_products<TILES - 1>();
            activate(h1[i], first[i]);
            fence_products(), o.multiply_edge<8>(second[i], one, AT_EDGE, BIAS_COLUMN);
            o.add_weights(second[i], h1[i], AT_W2), commit_products();
            if (STORES_ALL_TILES) store_first_layer(o, i, h1[i]);
            finish_tile();
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        wait_products<TILES - 1>();
        activate(h2[i], LAYERS == 2 ? second[i] : first[i]);  // the last hidden layer
        fence_products(), o.multiply_transposed(z[i], h2[i], AT_LAST_COPY), commit_products();
        if (STORES_ALL_TILES) store_last_layer(o, i, h2[i]);
    }
    wait_products<0>();
#pragma unroll
    for (int i = 0; i < TILES; i++) complete(z[i]);
}

// Adds the gradients of the TILES_STORED tiles from FIRST on to `sums`, or sets them. The activations h1 and h2 become the
// derivatives by the sums of their layers.
template <bool ADD, int FIRST> __device__ __forceinline__ void add_tiles(
    SharedMemory& shared, int network, const InputFragments& x, TileFragments& h1, TileFragments& h2, const u32 (&dz)[Z / 8][4],
    GradientSums& sums) {
    constexpr int END = FIRST + TILES_STORED;
    const Lane l(network);
    const Operands o = operands_of(shared.networks[l.network], l);
    float by_last[TILES][32], by_first[TILES][32];
    u32 left[TILES][OUTPUT_STEPS][4];
    // From the derivatives by the sums of the second layer to those of the first.
    auto multiply_back = [&](int i) {
        fence_products(), o.multiply_transposed(by_first[i], h2[i], AT_SECOND_COPY), commit_products();
        o.store_activations(AT_D2 + i % TILES_STORED * LAYER_BYTES, h2[i]);
        if (!ARE_PRODUCTS_ASYNCHRONOUS) backpropagate(h1[i], by_first[i]);
    };
#pragma unroll
    for (int i = FIRST; i < END; i++)
#pragma unroll
        for (int q = 0; q < 2 * OUTPUT_STEPS; q++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                left[i][q / 2][q % 2 * 2 + r] = 8 * q < PADDED_OUTPUTS ? dz[q < Z / 8 ? q : 0][2 * i + r] : 0;
    if (!STORES_ALL_TILES) {
        store_inputs(o, FIRST, x);
        if (LAYERS == 2) store_first_layer(o, FIRST, h1[FIRST]);
        store_last_layer(o, FIRST, h2[FIRST]);
    }
    fence_products();
#pragma unroll
    for (int i = FIRST; i < END && ARE_PRODUCTS_ASYNCHRONOUS; i++)
        o.multiply_edge<PADDED_OUTPUTS>(by_last[i], left[i], AT_EDGE, OUTPUT_COLUMNS), commit_products();
#pragma unroll
    for (int q = 0; q < Z / 8; q++) o.store_columns<TILES_STORED>(AT_DZ + 1024 * q, DZ_BYTES, dz[q] + 2 * FIRST);
#pragma unroll
    for (int i = FIRST; i < END; i++) {
        if (LAYERS == 2 || i < END - 1) wait_products<TILES_STORED - 1>();
        else wait_products<0>();
        if (!ARE_PRODUCTS_ASYNCHRONOUS) o.multiply_edge<PADDED_OUTPUTS>(by_last[i], left[i], AT_EDGE, OUTPUT_COLUMNS);
        backpropagate(h2[i], by_last[i]);
        if constexpr (LAYERS == 2) {
            if (D2_IN_SHARED) multiply_back(i);
            finish_tile();
        }
    }
    publish_stores();
    // Inputs, activations, and derivatives by the sums of the last hidden layer and by the outputs are stored.
    sync_warpgroup(l.network);
    fence_products();
    o.multiply_activations<ADD, TILES_STORED>(sums.w3, LAYERS == 2 ? AT_H2 : AT_H1, LAYERS == 2 ? LAYER_BYTES : H1_BYTES, AT_DZ,
        DZ_BYTES);
    o.sum_samples<ADD, TILES_STORED>(sums.ones, AT_X, H1_BYTES, AT_DZ, DZ_BYTES);
    commit_products();
    if constexpr (LAYERS == 2) {
        wait_products<TILES_STORED>();
        if (ARE_PRODUCTS_ASYNCHRONOUS) backpropagate(h1[FIRST], by_first[FIRST]);
        if (TILES_STORED == 2 && ARE_PRODUCTS_ASYNCHRONOUS) wait_products<1>(), backpropagate(h1[END - 1], by_first[END - 1]);
        if (!D2_IN_SHARED) {  // products are synchronous then: h2 has been read, and d2 takes its place
            sync_warpgroup(l.network);
#pragma unroll
            for (int i = FIRST; i < END; i++) multiply_back(i);
            sync_warpgroup(l.network);
        }
        fence_products();
        o.multiply_activations<ADD, TILES_STORED>(sums.w2, AT_D2, LAYER_BYTES, AT_H1, H1_BYTES), commit_products();
    }
    // The products that read h2 and dz, and memory behind the inputs, are complete: d1 takes the place of h2.
    wait_products<LAYERS - 1>();
    sync_warpgroup(l.network);
#pragma unroll
    for (int i = FIRST; i < END; i++)
        o.store_activations(AT_H2 + i % TILES_STORED * LAYER_BYTES, LAYERS == 2 ? h1[i] : h2[i]);
    publish_stores();
    sync_warpgroup(l.network);
    fence_products();
    o.multiply_activations<ADD, TILES_STORED>(sums.w1, AT_H2, LAYER_BYTES, AT_X, H1_BYTES), commit_products();
    wait_products<0>();
    if (PASSES > 1 || END < TILES) sync_warpgroup(l.network);  // the next pass, or the next tile, stores to these tiles
}

// Adds the gradients of a pass to `sums`, or sets them in the first pass.
template <bool ADD> __device__ __forceinline__ void add_gradient(
    const Batch& b, SharedMemory& shared, int network, int update, int pass, GradientSums& sums) {
    InputFragments x;
    TileFragments h1, h2;
    u32 dz[Z / 8][4];
    {
        OutputSums z;
        forward(b, shared, network, update, pass, x, h1, h2, z);
        differentiate(b, shared, z, network, update, pass, dz);
    }
    add_tiles<ADD, 0>(shared, network, x, h1, h2, dz, sums);
    if constexpr (!STORES_ALL_TILES) add_tiles<true, TILES - 1>(shared, network, x, h1, h2, dz, sums);
}
