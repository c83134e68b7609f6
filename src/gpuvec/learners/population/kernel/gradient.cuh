// The gradient of a minibatch: both layers forward, the objective, and back, for TILES of 64 samples at a time.
//
// Activations stay in registers as left operands, and are stored transposed once, as operands of the weights' gradients. The
// products of one tile are issued before those of the other are awaited.
#pragma once
#include "objective.cuh"

// The operands of a network: their offsets in bytes, the descriptors of tiles, and where a lane stores transposed fragments.
// All are sums of a constant and one of three numbers, which spares registers.
constexpr u32 AT_W2 = 0, AT_W2_TRANSPOSED = AT_W2 + sizeof(NetworkMemory::w2),
              AT_EDGE = AT_W2_TRANSPOSED + sizeof(NetworkMemory::w2_transposed), AT_W3 = AT_EDGE + sizeof(NetworkMemory::edge),
              AT_H1 = AT_W3 + sizeof(NetworkMemory::w3), AT_X = AT_H1 + H * 2 * TILE, AT_H2 = AT_H1 + sizeof(Activations::h1),
              AT_D2 = AT_H2 + sizeof(Activations::d1_or_h2),
              AT_DZ = AT_H1 + SHARED_UNION_BYTES;
struct Operands {
    u32 base, wide, narrow;

    __device__ __forceinline__ Operands(const NetworkMemory& m, const Lane& l) {
        const int block = l.lane >> 3, row = l.lane & 7;
        const u32 column = (u32)((2 * l.warp + (block & 1)) ^ row) << 4;
        base = shared_address(&m);
        wide = base + ((block >> 1) * 8 + row) * 2 * TILE + column, narrow = base + row * 2 * TILE + column;
    }
    __device__ __forceinline__ u64 tile(u32 offset) const { return descriptor_at(base) + offset / 16; }
    // Stores 16 rows of 64 columns transposed to a tile.
    __device__ __forceinline__ void store_transposed(u32 offset, const Fragments& h) const {
#pragma unroll
        for (int k = 0; k < 4; k++) store_matrix_transposed(wide + offset + 2 * 1024 * k, h[k]);
    }
    // Stores eight columns of the rows of TILES tiles, which are `pitch` bytes apart: r has rows g and g + 8 of each.
    __device__ __forceinline__ void store_columns_transposed(u32 offset, u32 pitch, const u32* r) const {
        const int block = computed_here(threadIdx.x) >> 3 & 3;
        if (TILES == 2) store_matrix_transposed(narrow + offset + (block >> 1) * pitch, r);
        else store_two_transposed(narrow + offset, r);
    }
};
constexpr u32 H1_BYTES = (H + X) * 2 * TILE, LAYER_BYTES = H * 2 * TILE, DZ_BYTES = Z * 2 * TILE;  // of a tile

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
typedef float OutputSums[TILES][PADDED_OUTPUTS / 2];

// The activations h1 and h2 of a pass, of which h2 are those of the last hidden layer, and the outputs z. Stores inputs and
// activations for the gradients of the weights.
__device__ __forceinline__ void forward(
    const Batch& b, SharedMemory& shared, int network, int update, int pass, TileFragments& h1, TileFragments& h2,
    OutputSums& z) {
    const Lane l(network);
    const Operands o(shared.networks[l.network], l);
    float first[TILES][32], second[TILES][32];
    u32 x[TILES][X_STEPS][4], one[1][4];
    one_column(one, l.t);
    const Samples& samples = samples_of(b, shared);
    const unsigned short* order = samples.order + update * BATCH + pass * TILES * TILE + 16 * l.warp + l.g;
#pragma unroll
    for (int i = 0; i < TILES; i++)
        load_inputs(x[i], samples.records[order[TILE * i]], samples.records[order[TILE * i + 8]], l.t);
    fence_products();
#pragma unroll
    for (int i = 0; i < TILES; i++) multiply_edge<X_STEPS>(first[i], x[i], o.tile(AT_EDGE), 0), commit_products();
#pragma unroll
    for (int k = 0; k < X / 8; k++) {
        u32 columns[4];
#pragma unroll
        for (int r = 0; r < 2 * TILES; r++) columns[r] = x[r / 2][k / 2][k % 2 * 2 + r % 2];
        o.store_columns_transposed(AT_X + 1024 * k, H1_BYTES, columns);
    }
    if constexpr (LAYERS == 2) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            wait_products<TILES - 1>();
            activate(h1[i], first[i]);
            fence_products(), multiply_edge<1>(second[i], one, o.tile(AT_EDGE), BIAS_COLUMN);
            multiply_fragments<true, 4>(second[i], h1[i], o.tile(AT_W2)), commit_products();
            o.store_transposed(AT_H1 + i * H1_BYTES, h1[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        wait_products<TILES - 1>();
        activate(h2[i], LAYERS == 2 ? second[i] : first[i]);  // the last hidden layer
        fence_products(), multiply_fragments<false, 4>(z[i], h2[i], o.tile(AT_W3)), commit_products();
        if (LAYERS == 2) o.store_transposed(AT_H2 + i * LAYER_BYTES, h2[i]);
        else o.store_transposed(AT_H1 + i * H1_BYTES, h2[i]);
    }
    wait_products<0>();
#pragma unroll
    for (int i = 0; i < TILES; i++) complete(z[i]);
}

// Adds the gradients of a pass to `sums`, or sets them in the first pass.
template <bool ADD> __device__ __forceinline__ void add_gradient(
    const Batch& b, SharedMemory& shared, int network, int update, int pass, GradientSums& sums) {
    TileFragments h1, h2;
    float by_last[TILES][32], by_first[TILES][32];
    u32 dz[Z / 8][4];
    {
        OutputSums z;
        forward(b, shared, network, update, pass, h1, h2, z);
        differentiate(b, shared, z, network, update, pass, dz);
    }
    const Lane l(network);
    const Operands o(shared.networks[l.network], l);
    u32 left[TILES][OUTPUT_STEPS][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int q = 0; q < 2 * OUTPUT_STEPS; q++)
#pragma unroll
            for (int r = 0; r < 2; r++) 
                left[i][q / 2][q % 2 * 2 + r] = 8 * q < PADDED_OUTPUTS ? dz[q < Z / 8 ? q : 0][2 * i + r] : 0;
    fence_products();
#pragma unroll
    for (int i = 0; i < TILES; i++)
        multiply_edge<OUTPUT_STEPS>(by_last[i], left[i], o.tile(AT_EDGE), OUTPUT_COLUMNS), commit_products();
#pragma unroll
    for (int q = 0; q < Z / 8; q++) o.store_columns_transposed(AT_DZ + 1024 * q, DZ_BYTES, dz[q]);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (LAYERS == 2 || i < TILES - 1) wait_products<TILES - 1>();
        else wait_products<0>();
        backpropagate(h2[i], by_last[i]);
        if constexpr (LAYERS == 2) {
            fence_products(), multiply_fragments<false, 4>(by_first[i], h2[i], o.tile(AT_W2_TRANSPOSED)), commit_products();
            o.store_transposed(AT_D2 + i * LAYER_BYTES, h2[i]);
        }
    }
    publish_stores();
    // Inputs, activations, and derivatives by the sums of the last hidden layer and by the outputs are stored.
    sync_warpgroup(l.network);
    fence_products();
    multiply_tiles<ADD, TILES>(sums.w3, o.tile(LAYERS == 2 ? AT_H2 : AT_H1), LAYERS == 2 ? LAYER_BYTES : H1_BYTES,
        o.tile(AT_DZ), DZ_BYTES);
    // The first row of the left operand are ones, and the rows behind the inputs are other memory, whose sums are not used.
    multiply_tiles<ADD, TILES>(sums.ones, o.tile(AT_X), H1_BYTES, o.tile(AT_DZ), DZ_BYTES);
    commit_products();
    if constexpr (LAYERS == 2) {
        wait_products<TILES>();
        backpropagate(h1[0], by_first[0]);
        if (TILES == 2) wait_products<1>(), backpropagate(h1[TILES - 1], by_first[TILES - 1]);
        fence_products(), multiply_tiles<ADD, TILES>(sums.w2, o.tile(AT_D2), LAYER_BYTES, o.tile(AT_H1), H1_BYTES),
            commit_products();
    }
    // The products that read h2 and dz, and memory behind the inputs, are complete: d1 takes the place of h2.
    wait_products<LAYERS - 1>();
    sync_warpgroup(l.network);
#pragma unroll
    for (int i = 0; i < TILES; i++) o.store_transposed(AT_H2 + i * LAYER_BYTES, LAYERS == 2 ? h1[i] : h2[i]);
    publish_stores();
    sync_warpgroup(l.network);
    fence_products();
    multiply_tiles<ADD, TILES>(sums.w1, o.tile(AT_H2), LAYER_BYTES, o.tile(AT_X), H1_BYTES), commit_products();
    wait_products<0>();
    if (PASSES > 1) sync_warpgroup(l.network);  // the next pass stores to these tiles
}
