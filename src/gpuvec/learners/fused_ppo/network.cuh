// A perceptron with one or two hidden layers of H units: the layout of its parameters, and its layers for the rows of a warp.
//
// Macros: FEATURES, HIDDEN (32, 64, 128 or 256), LAYERS (number of hidden layers, 1 or 2), OUTPUTS (of the actor), WARPS (of a
// block), and those of tensor_core.cuh.
#pragma once
#include "tensor_core.cuh"

constexpr int D = FEATURES, H = HIDDEN;
constexpr int X = (D + 8) / 8 * 8;  // columns of an input: the features, a one whose weights are the first biases, and zeros

// Distance of two rows in shared memory, in halves, with which eight rows are in different banks.
__device__ constexpr int pitch(int columns) { return columns % 16 == 8 ? columns : columns + 8; }
constexpr int PX = pitch(X), PH = pitch(H);
constexpr float LOG_SQRT_TWO_PI = 0.918938533f;

// The offsets of the parameters of a network with OUT outputs, in floats. A weight matrix has a row for each output of a layer.
template <int OUT> struct Network {
    static constexpr int O = (OUT + 7) / 8 * 8;
    static constexpr int W1 = 0, W2 = H * X, B2 = W2 + (LAYERS == 2 ? H * H : 0), W3 = B2 + (LAYERS == 2 ? H : 0);
    static constexpr int B3 = W3 + O * H, LOG_STD = B3 + O, SIZE = LOG_STD + O;

    // The parameters in shared memory, with weights rounded to FP16.
    struct Weights {
        half w1[H * PX];
        half w2[LAYERS == 2 ? H * PH : 8];
        half w3[O * PH];
        float b2[H];
        float b3[O];
    };
};
constexpr int NUM_PARAMETERS = Network<OUTPUTS>::SIZE + Network<1>::SIZE;  // those of the actor, then those of the critic

// The copy of a weight matrix to shared memory by all threads of a block. A thread loads its first vectors before it stores
// one, so that the latencies of these loads overlap.
template <int ROWS, int COLUMNS, int P> struct WeightCopy {
    static constexpr int VECTORS = ROWS * COLUMNS / 4, PER_THREAD = (VECTORS + 32 * WARPS - 1) / (32 * WARPS);
    static constexpr int PREFETCHED = PER_THREAD < 16 ? PER_THREAD : 16;
    float4 x[PREFETCHED];

    __device__ static constexpr bool all_threads_have(int k) { return (k + 1) * 32 * WARPS <= VECTORS; }
    __device__ __forceinline__ void load(const float* __restrict__ source, int first = 0) {
#pragma unroll
        for (int k = 0; k < PREFETCHED; k++) {
            const int i = (first + k) * 32 * WARPS + threadIdx.x;
            if (all_threads_have(first + k) || i < VECTORS) x[k] = __ldcg((const float4*)source + i);
        }
    }
    __device__ __forceinline__ void store(half* target, int first = 0) const {
#pragma unroll
        for (int k = 0; k < PREFETCHED; k++) {
            const int i = (first + k) * 32 * WARPS + threadIdx.x;
            u32* halves = (u32*)(target + i / (COLUMNS / 4) * P + i % (COLUMNS / 4) * 4);
            if (all_threads_have(first + k) || i < VECTORS)
                halves[0] = pack_halves(x[k].x, x[k].y), halves[1] = pack_halves(x[k].z, x[k].w);
        }
    }
    __device__ __forceinline__ void copy_rest(half* target, const float* __restrict__ source) {
        for (int first = PREFETCHED; first < PER_THREAD; first += PREFETCHED) load(source, first), store(target, first);
    }
};

// Copies the parameters p of a network to shared memory. All threads of a block call it, and a barrier must follow.
static_assert(H <= 32 * WARPS, "a thread copies one bias of a layer");
template <int OUT>
__device__ __forceinline__ void load_weights(typename Network<OUT>::Weights& w, const float* __restrict__ p) {
    using N = Network<OUT>;
    WeightCopy<H, X, PX> first;
    WeightCopy<H, H, PH> second;
    WeightCopy<N::O, H, PH> last;
    first.load(p + N::W1), last.load(p + N::W3);
    if (LAYERS == 2) second.load(p + N::W2);
    const int i = threadIdx.x;
    const float b2 = LAYERS == 2 && i < H ? p[N::B2 + i] : 0.0f, b3 = i < N::O ? p[N::B3 + i] : 0.0f;
    __syncwarp();  // without it the assembler saves registers, and waits for some loads before it starts others
    first.store(w.w1), last.store(w.w3);
    if (LAYERS == 2) second.store(w.w2);
    first.copy_rest(w.w1, p + N::W1), last.copy_rest(w.w3, p + N::W3);
    if (LAYERS == 2) second.copy_rest(w.w2, p + N::W2);
    if (i < H) w.b2[i] = b2;
    if (i < N::O) w.b3[i] = b3;
}

// The offset, in bytes, of the row that a lane passes to load_matrix and store_matrix for a 16 x 16 tile whose rows are P
// halves apart. The four blocks of the tile are in the order of their rows first, or of their columns first.
template <int P> __device__ __forceinline__ u32 lane_offset_rows_first() {
    const int lane = threadIdx.x & 31, q = lane >> 3;
    return ((lane & 7) + (q & 1) * 8) * P * 2 + (q >> 1) * 16;
}
template <int P> __device__ __forceinline__ u32 lane_offset_columns_first() {
    const int lane = threadIdx.x & 31, q = lane >> 3;
    return ((lane & 7) + (q >> 1) * 8) * P * 2 + (q & 1) * 16;
}

// Left fragments of 16 rows: of an input, for each 8 columns, and of activations, for each 16 columns.
typedef u32 InputFragments[X / 8][2];
typedef u32 ActivationFragments[H / 16][4];

// The activations h of the first hidden layer for M tiles of 16 rows, of which with HALF_TILE only rows 0 to 7 are used.
template <int M, bool HALF_TILE = false>
__device__ __forceinline__ void first_layer(const half* w1, const InputFragments* x, ActivationFragments* h) {
    const u32 weights = shared_address(w1) + lane_offset_columns_first<PX>(),
              tail = shared_address(w1) + (threadIdx.x & 31) * PX * 2 + X / 16 * 32;
    u32 last[4];
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        float c[M][4] = {}, d[M][4] = {};
#pragma unroll
        for (int k = 0; k < X / 16; k++) {
            u32 b[4];
            load_matrix(b, weights + j * 16 * PX * 2 + k * 32);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m], x[m][2 * k][0], x[m][2 * k][1], x[m][2 * k + 1][0], x[m][2 * k + 1][1], b[0], b[1]);
                mma(d[m], x[m][2 * k][0], x[m][2 * k][1], x[m][2 * k + 1][0], x[m][2 * k + 1][1], b[2], b[3]);
            }
        }
        if (X % 16) {
            if (j % 2 == 0) load_matrix(last, tail + j * 16 * PX * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m], x[m][X / 8 - 1][0], x[m][X / 8 - 1][1], last[j % 2 * 2]);
                mma(d[m], x[m][X / 8 - 1][0], x[m][X / 8 - 1][1], last[j % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) activate<HALF_TILE>(h[m][j], c[m], d[m]);
    }
}

// The sums c and d of units 16 j to 16 j + 7, and 16 j + 8 to 16 j + 15, of the second hidden layer for the activations h1 of the first.
template <int M> __device__ __forceinline__ void second_layer_sums(
    const half* w2, const float* b2, int j, const ActivationFragments* h1, float (*c)[4], float (*d)[4]) {
    const u32 weights = shared_address(w2) + lane_offset_columns_first<PH>() + j * 16 * PH * 2;
    const int t = threadIdx.x & 3;
    const float2 low = *(const float2*)(b2 + 16 * j + 2 * t), high = *(const float2*)(b2 + 16 * j + 8 + 2 * t);
#pragma unroll
    for (int m = 0; m < M; m++) {
        c[m][0] = c[m][2] = low.x, c[m][1] = c[m][3] = low.y;
        d[m][0] = d[m][2] = high.x, d[m][1] = d[m][3] = high.y;
    }
#pragma unroll
    for (int k = 0; k < H / 16; k++) {
        u32 b[4];
        load_matrix(b, weights + k * 32);
#pragma unroll
        for (int m = 0; m < M; m++) mma(c[m], h1[m][k], b[0], b[1]), mma(d[m], h1[m][k], b[2], b[3]);
    }
}

// The activations h2 of the second hidden layer.
template <int M, bool HALF_TILE = false> __device__ __forceinline__ void second_layer(
    const half* w2, const float* b2, const ActivationFragments* h1, ActivationFragments* h2) {
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        float c[M][4], d[M][4];
        second_layer_sums<M>(w2, b2, j, h1, c, d);
#pragma unroll
        for (int m = 0; m < M; m++) activate<HALF_TILE>(h2[m][j], c[m], d[m]);
    }
}

// Starts the outputs z, as sums of 8 columns each, with their biases.
template <int M, int O> __device__ __forceinline__ void start_outputs(const float* b3, float (*z)[O / 8][4]) {
#pragma unroll
    for (int n = 0; n < O / 8; n++) {
        const float2 bias = *(const float2*)(b3 + 8 * n + 2 * (threadIdx.x & 3));
#pragma unroll
        for (int m = 0; m < M; m++) z[m][n][0] = z[m][n][2] = bias.x, z[m][n][1] = z[m][n][3] = bias.y;
    }
}

// Adds the products of units 32 k to 32 k + 31 of the last hidden layer, with their activations h, to the outputs z.
template <int M, int O, typename Fragments>
__device__ __forceinline__ void add_to_outputs(const half* w3, int k, const Fragments& h, float (*z)[O / 8][4]) {
    const int lane = threadIdx.x & 31;
    const u32 weights = shared_address(w3) + (lane & 7) * PH * 2 + (lane >> 3) * 16 + k * 64;
#pragma unroll
    for (int n = 0; n < O / 8; n++) {
        u32 b[4];
        load_matrix(b, weights + n * 8 * PH * 2);
#pragma unroll
        for (int m = 0; m < M; m++) mma(z[m][n], h(m, 0), b[0], b[1]), mma(z[m][n], h(m, 1), b[2], b[3]);
    }
}

// The outputs z of the last layer for the last activations h.
template <int M, int O> __device__ __forceinline__ void last_layer(
    const half* w3, const float* b3, const ActivationFragments* h, float (*z)[O / 8][4]) {
    start_outputs<M, O>(b3, z);
#pragma unroll
    for (int k = 0; k < H / 32; k++)
        add_to_outputs<M, O>(w3, k, [&](int m, int u) { return h[m][2 * k + u]; }, z);
}

// Adds the gradients by the activations of units 16 j to 16 j + 15 of the last hidden layer to c and d, for those dz of the outputs.
// `last` has the weights of the last eight outputs between two calls.
template <int M, int O> __device__ __forceinline__ void backpropagate_outputs(
    const half* w3, const u32 (*dz)[O / 8][2], int j, u32* last, float (*c)[4], float (*d)[4]) {
    const int lane = threadIdx.x & 31;
    const u32 at_w3 = shared_address(w3), weights = at_w3 + lane_offset_rows_first<PH>(),
              tail = at_w3 + (O / 16 * 16 + (lane & 7)) * PH * 2 + (lane >> 3) * 16;
#pragma unroll
    for (int k = 0; k < O / 16; k++) {
        u32 w[4];
        load_matrix_transposed(w, weights + k * 16 * PH * 2 + j * 32);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma(c[m], dz[m][2 * k][0], dz[m][2 * k][1], dz[m][2 * k + 1][0], dz[m][2 * k + 1][1], w[0], w[1]);
            mma(d[m], dz[m][2 * k][0], dz[m][2 * k][1], dz[m][2 * k + 1][0], dz[m][2 * k + 1][1], w[2], w[3]);
        }
    }
    if (O % 16) {
        if (j % 2 == 0) load_matrix_transposed(last, tail + j * 32);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma(c[m], dz[m][O / 8 - 1][0], dz[m][O / 8 - 1][1], last[j % 2 * 2]);
            mma(d[m], dz[m][O / 8 - 1][0], dz[m][O / 8 - 1][1], last[j % 2 * 2 + 1]);
        }
    }
}

// Adds the gradients by the activations of units 16 j to 16 j + 15 of the first hidden layer to c and d, for those d2 of the sums
// of the second.
template <int M> __device__ __forceinline__ void backpropagate_second_layer(
    const half* w2, const ActivationFragments* d2, int j, float (*c)[4], float (*d)[4]) {
    const u32 weights = shared_address(w2) + lane_offset_rows_first<PH>() + j * 32;
#pragma unroll
    for (int k = 0; k < H / 16; k++) {
        u32 w[4];
        load_matrix_transposed(w, weights + k * 16 * PH * 2);
#pragma unroll
        for (int m = 0; m < M; m++) mma(c[m], d2[m][k], w[0], w[1]), mma(d[m], d2[m][k], w[2], w[3]);
    }
}

// The left fragment of columns `first` to `first + 7` of an input, from the words of a record, which has the features and the one.
__device__ __forceinline__ u32 load_input(const float* record, int first) {
    constexpr int FEATURE_WORDS = (D + 2) / 2;
    const int word = first / 2 + (threadIdx.x & 3);
    return first + 8 <= 2 * FEATURE_WORDS || word < FEATURE_WORDS ? __float_as_uint(record[word]) : 0u;
}
