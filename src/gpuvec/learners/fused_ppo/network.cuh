// A perceptron with one or two hidden layers of H units: its parameters, and what a warp makes of 16 or 32 rows.
//
// Given before: FEATURES, HIDDEN (32, 64 or 128), LAYERS (1 or 2), OUTPUTS (of the actor), RELU.
#pragma once
#include "tensor_core.cuh"

constexpr int D = FEATURES, H = HIDDEN;
constexpr int X = (D + 8) / 8 * 8;  // columns of an input: features, a one whose weights are the first biases, and zeros

// Halves from one row to the next, such that eight rows lie in different banks of shared memory.
__device__ constexpr int pitch(int columns) { return columns % 16 == 8 ? columns : columns + 8; }
constexpr int PX = pitch(X), PH = pitch(H);
constexpr float LOG_SQRT_TWO_PI = 0.918938533f;

// Where a network's parameters are, in floats, as rows of weights for each output of a layer.
template <int OUT> struct Net {
    static constexpr int O = (OUT + 7) / 8 * 8;
    static constexpr int W1 = 0, W2 = H * X, B2 = W2 + (LAYERS == 2 ? H * H : 0), W3 = B2 + (LAYERS == 2 ? H : 0);
    static constexpr int B3 = W3 + O * H, LOG_STD = B3 + O, SIZE = LOG_STD + O;

    // The same, rounded, in shared memory.
    struct Weights {
        half w1[H * PX];
        half w2[LAYERS == 2 ? H * PH : 8];
        half w3[O * PH];
        float b2[H];
        float b3[O];
    };
};
constexpr int PARAMETERS = Net<OUTPUTS>::SIZE + Net<1>::SIZE;  // of the actor, and of the critic behind them

// Weights on their way to shared memory, a part for each thread of a block: all are asked for before one is put down.
template <int ROWS, int COLUMNS, int P> struct Moved {
    static constexpr int PARTS = ROWS * COLUMNS / 4, EACH = (PARTS + 32 * WARPS - 1) / (32 * WARPS), AT_ONCE = EACH < 16 ? EACH : 16;
    float4 x[AT_ONCE];

    __device__ static constexpr bool full(int k) { return (k + 1) * 32 * WARPS <= PARTS; }  // whether all threads have a k-th part
    __device__ __forceinline__ void fetch(const float* __restrict__ from, int first = 0) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = (first + k) * 32 * WARPS + threadIdx.x;
            if (full(first + k) || i < PARTS) x[k] = __ldcg((const float4*)from + i);
        }
    }
    __device__ __forceinline__ void put(half* to, int first = 0) const {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = (first + k) * 32 * WARPS + threadIdx.x;
            u32* at = (u32*)(to + i / (COLUMNS / 4) * P + i % (COLUMNS / 4) * 4);
            if (full(first + k) || i < PARTS) at[0] = pair(x[k].x, x[k].y), at[1] = pair(x[k].z, x[k].w);
        }
    }
    __device__ __forceinline__ void rest(half* to, const float* __restrict__ from) {
        for (int first = AT_ONCE; first < EACH; first += AT_ONCE) fetch(from, first), put(to, first);
    }
};

// By all threads of a block; a barrier must follow.
static_assert(H <= 32 * WARPS, "a thread has one bias of a layer");
template <int OUT> __device__ __forceinline__ void copy(typename Net<OUT>::Weights& w, const float* __restrict__ p) {
    using N = Net<OUT>;
    Moved<H, X, PX> first;
    Moved<H, H, PH> second;
    Moved<N::O, H, PH> last;
    first.fetch(p + N::W1), last.fetch(p + N::W3);
    if (LAYERS == 2) second.fetch(p + N::W2);
    const int i = threadIdx.x;
    const float b2 = LAYERS == 2 && i < H ? p[N::B2 + i] : 0.0f, b3 = i < N::O ? p[N::B3 + i] : 0.0f;
    __syncwarp();  // or the assembler would save registers, and wait for some before it asks for others
    first.put(w.w1), last.put(w.w3);
    if (LAYERS == 2) second.put(w.w2);
    first.rest(w.w1, p + N::W1), last.rest(w.w3, p + N::W3);
    if (LAYERS == 2) second.rest(w.w2, p + N::W2);
    if (i < H) w.b2[i] = b2;
    if (i < N::O) w.b3[i] = b3;
}

// Where a lane points at of four 8 x 8 blocks, in bytes: the rows of the second half of its number and the columns of the first, or
// the other way about.
template <int P> __device__ __forceinline__ u32 rows_first() {
    const int lane = threadIdx.x & 31, q = lane >> 3;
    return ((lane & 7) + (q & 1) * 8) * P * 2 + (q >> 1) * 16;
}
template <int P> __device__ __forceinline__ u32 columns_first() {
    const int lane = threadIdx.x & 31, q = lane >> 3;
    return ((lane & 7) + (q >> 1) * 8) * P * 2 + (q & 1) * 16;
}

typedef u32 Input[X / 8][2];     // of 16 rows, as the left side of a product, 8 columns at a time
typedef u32 Activation[H / 16][4];  // likewise, 16 columns at a time

// What the first hidden layer makes of M times 16 rows, or of half a tile.
template <int M, bool HALF = false> __device__ __forceinline__ void first_layer(const half* w1, const Input* x, Activation* h) {
    const u32 at = address(w1) + columns_first<PX>(), tail = address(w1) + (threadIdx.x & 31) * PX * 2 + X / 16 * 32;
    u32 last[4];
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        float c[M][4] = {}, d[M][4] = {};
#pragma unroll
        for (int k = 0; k < X / 16; k++) {
            u32 b[4];
            load(b, at + j * 16 * PX * 2 + k * 32);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(c[m], x[m][2 * k][0], x[m][2 * k][1], x[m][2 * k + 1][0], x[m][2 * k + 1][1], b[0], b[1]);
                multiply(d[m], x[m][2 * k][0], x[m][2 * k][1], x[m][2 * k + 1][0], x[m][2 * k + 1][1], b[2], b[3]);
            }
        }
        if (X % 16) {
            if (j % 2 == 0) load(last, tail + j * 16 * PX * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(c[m], x[m][X / 8 - 1][0], x[m][X / 8 - 1][1], last[j % 2 * 2]);
                multiply(d[m], x[m][X / 8 - 1][0], x[m][X / 8 - 1][1], last[j % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) activate<HALF>(h[m][j], c[m], d[m]);
    }
}

// What the second one makes of it.
template <int M, bool HALF = false> __device__ __forceinline__ void second_layer(const half* w2, const float* b2, const Activation* h1, Activation* h2) {
    const u32 at = address(w2) + columns_first<PH>();
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int j = 0; j < H / 16; j++) {
        const float2 low = *(const float2*)(b2 + 16 * j + 2 * t), high = *(const float2*)(b2 + 16 * j + 8 + 2 * t);
        float c[M][4], d[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            c[m][0] = c[m][2] = low.x, c[m][1] = c[m][3] = low.y;
            d[m][0] = d[m][2] = high.x, d[m][1] = d[m][3] = high.y;
        }
#pragma unroll
        for (int k = 0; k < H / 16; k++) {
            u32 b[4];
            load(b, at + j * 16 * PH * 2 + k * 32);
#pragma unroll
            for (int m = 0; m < M; m++) multiply(c[m], h1[m][k], b[0], b[1]), multiply(d[m], h1[m][k], b[2], b[3]);
        }
#pragma unroll
        for (int m = 0; m < M; m++) activate<HALF>(h2[m][j], c[m], d[m]);
    }
}

// What comes out: sums of O / 8 times 8 columns.
template <int M, int O> __device__ __forceinline__ void last_layer(const half* w3, const float* b3, const Activation* h, float (*z)[O / 8][4]) {
    const int lane = threadIdx.x & 31, t = lane & 3;
    const u32 at = address(w3) + (lane & 7) * PH * 2 + (lane >> 3) * 16;
#pragma unroll
    for (int n = 0; n < O / 8; n++) {
        const float2 bias = *(const float2*)(b3 + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < M; m++) z[m][n][0] = z[m][n][2] = bias.x, z[m][n][1] = z[m][n][3] = bias.y;
#pragma unroll
        for (int k = 0; k < H / 32; k++) {
            u32 b[4];
            load(b, at + n * 8 * PH * 2 + k * 64);
#pragma unroll
            for (int m = 0; m < M; m++) multiply(z[m][n], h[m][2 * k], b[0], b[1]), multiply(z[m][n], h[m][2 * k + 1], b[2], b[3]);
        }
    }
}

// The left side of the first product, from eight columns of a row of D floats; what lies behind them may be anything.
__device__ __forceinline__ u32 input(const float* row, int at) {
    const int c = at + 2 * (threadIdx.x & 3);
    const float2 x = *(const float2*)(row + c);
    if (at + 8 <= D) return pair(x.x, x.y);
    return pair(c < D ? x.x : c == D ? 1.0f : 0.0f, c + 1 < D ? x.y : c + 1 == D ? 1.0f : 0.0f);
}
