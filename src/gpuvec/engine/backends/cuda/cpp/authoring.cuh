// What functions in CUDA C++ may call: the same as gpuvec.random, gpuvec.angles and gpuvec.fractions, and tuples of numbers.
#pragma once

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Accepts as many numbers as a tuple holds, and no others: too few or too many have no constructor.
template <bool> struct TakesExactly {};
template <> struct TakesExactly<true> { using numbers = int; };

// N numbers. `Floats<N>{}` is N zeros; otherwise all N are given.
template <int N> struct Floats {
    float at[N];
    __device__ Floats() : at{} {}
    template <typename... T, typename TakesExactly<sizeof...(T) == N>::numbers = 0> __device__ Floats(T... x) : at{(float)x...} {}
    __device__ float operator[](int k) const { return at[k]; }
};
template <int N> struct Ints {
    int at[N];
    __device__ Ints() : at{} {}
    template <typename... T, typename TakesExactly<sizeof...(T) == N>::numbers = 0> __device__ Ints(T... x) : at{(int)x...} {}
    __device__ int operator[](int k) const { return at[k]; }
};

// What a draw depends on besides its number.
struct Key { unsigned seed, seed_high, row, episode; int step; };

// Where an episode stands; `limit` is the largest int if it has none.
struct Time { int step, limit; };

// The uint32 of draw number `draw`: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
__device__ __forceinline__ unsigned word(const Key& key, int draw) {
    unsigned x0 = key.episode, x1 = key.step, x2 = draw >> 2, x3 = key.seed_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long p0 = 0xD2511F53ull * x0, p1 = 0xCD9E8D57ull * x2;
        x0 = (unsigned)(p1 >> 32) ^ x1 ^ (key.seed + round * 0x9E3779B9u), x1 = (unsigned)p1;
        x2 = (unsigned)(p0 >> 32) ^ x3 ^ (key.row + round * 0xBB67AE85u), x3 = (unsigned)p0;
    }
    const unsigned low = draw & 1 ? x1 : x0, high = draw & 1 ? x3 : x2;
    return draw & 2 ? high : low;
}

// A uint32 as a float in [0, 1).
__device__ __forceinline__ float unit(unsigned word) { return (float)(word >> 8) * 0x1p-24f; }

// In [low, high).
__device__ __forceinline__ float uniform(const Key& key, int draw, float low, float high) {
    return low + (high - low) * unit(word(key, draw));
}

// From the standard normal distribution; takes `draw` and `draw + 1`.
__device__ __forceinline__ float normal(const Key& key, int draw) {
    const float radius = sqrtf(-2.0f * logf(1.0f - unit(word(key, draw))));
    return radius * cosf(6.28318530717958648f * unit(word(key, draw + 1)));
}

// In [low, high).
__device__ __forceinline__ int randint(const Key& key, int draw, int low, int high) {
    return (int)(low + (long long)(((unsigned long long)word(key, draw) * (unsigned)(high - low)) >> 32));
}

// An angle [rad] less whole turns, in [-pi, pi].
__device__ __forceinline__ float wrap(float angle) {
    const float turns = (angle * 0.159154943091895336f + 12582912.0f) - 12582912.0f;
    return angle - turns * 6.28125f - turns * 0.00193530717958648f;
}

struct SinCos { float sin, cos; };

// Of an angle [rad], without the slow path for huge ones.
__device__ __forceinline__ SinCos sincos(float angle) {
    const float shifted = angle * 0.636619772367581343f + 12582912.0f, quarters = shifted - 12582912.0f;
    const int k = __float_as_int(shifted);
    const float r = angle - quarters * 1.5703125f - quarters * 0.00048382679489662f, r2 = r * r;
    const float s = r + r * r2 * (-1.6666654611e-1f + r2 * (8.3321608736e-3f - r2 * 1.9515295891e-4f));
    const float c = 1.0f - 0.5f * r2 + r2 * r2 * (4.166664568298827e-2f + r2 * (-1.388731625493765e-3f + r2 * 2.443315711809948e-5f));
    const float sin = k & 1 ? c : s, cos = k & 1 ? s : c;
    return {k & 2 ? -sin : sin, (k + 1) & 2 ? -cos : cos};
}

// part / whole for 0 <= part <= whole, correctly rounded; where `whole` is a constant it costs two products.
__device__ __forceinline__ float fraction(int part, int whole) {
    const float a = (float)part, b = (float)whole;
    if (whole > 3146) return a / b;
    const float inverse = 1.0f / b, shifted = inverse * 4097.0f;
    const float high = shifted - (shifted - inverse), low = (1.0f - high * b) / b;
    return a * high + a * low;
}
