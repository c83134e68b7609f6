// Types and functions for authors of CUDA C++: tuples of numbers, and the functions of gpuvec.random, gpuvec.angles and
// gpuvec.fractions, which return the same numbers as in Python.
#pragma once

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Selects a template only if its condition holds, as std::enable_if does. NVRTC compiles without the standard library.
template <bool> struct EnableIf {};
template <> struct EnableIf<true> { using type = int; };

// A tuple of N floats, constructed from N numbers. `Floats<N>{}` is N zeros; any other number of arguments does not compile.
template <int N> struct Floats {
    float values[N];
    __device__ Floats() : values{} {}
    template <typename... T, typename EnableIf<sizeof...(T) == N>::type = 0> __device__ Floats(T... x) : values{(float)x...} {}
    __device__ float operator[](int k) const { return values[k]; }
};

// A tuple of N ints, constructed as `Floats<N>` is.
template <int N> struct Ints {
    int values[N];
    __device__ Ints() : values{} {}
    template <typename... T, typename EnableIf<sizeof...(T) == N>::type = 0> __device__ Ints(T... x) : values{(int)x...} {}
    __device__ int operator[](int k) const { return values[k]; }
};

// The key of random numbers: a draw is a function of the key and the draw number.
struct Key { unsigned seed, seed_high, row, episode; int step; };

// The number of steps in the episode so far, and their limit, which is the largest int if there is none.
struct Time { int step, limit; };

// Returns the random uint32 of draw number `draw`: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
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

// Maps a uint32 to a float in [0, 1).
__device__ __forceinline__ float unit(unsigned word) { return (float)(word >> 8) * 0x1p-24f; }

// Returns a uniformly distributed float in [low, high).
__device__ __forceinline__ float uniform(const Key& key, int draw, float low, float high) {
    return low + (high - low) * unit(word(key, draw));
}

// Returns a float from the standard normal distribution. It uses the draw numbers `draw` and `draw + 1`.
__device__ __forceinline__ float normal(const Key& key, int draw) {
    const float radius = sqrtf(-2.0f * logf(1.0f - unit(word(key, draw))));
    return radius * cosf(6.28318530717958648f * unit(word(key, draw + 1)));
}

// Returns a uniformly distributed int in [low, high).
__device__ __forceinline__ int randint(const Key& key, int draw, int low, int high) {
    return (int)(low + (long long)(((unsigned long long)word(key, draw) * (unsigned)(high - low)) >> 32));
}

// Wraps an angle [rad] to [-pi, pi].
__device__ __forceinline__ float wrap(float angle) {
    const float turns = (angle * 0.159154943091895336f + 12582912.0f) - 12582912.0f;
    return angle - turns * 6.28125f - turns * 0.00193530717958648f;
}

struct SinCos { float sin, cos; };

// Returns the sine and cosine of an angle [rad]. Unlike sincosf it has no slow path for huge angles.
__device__ __forceinline__ SinCos sincos(float angle) {
    const float shifted = angle * 0.636619772367581343f + 12582912.0f, quarters = shifted - 12582912.0f;
    const int k = __float_as_int(shifted);
    const float r = angle - quarters * 1.5703125f - quarters * 0.00048382679489662f, r2 = r * r;
    const float s = r + r * r2 * (-1.6666654611e-1f + r2 * (8.3321608736e-3f - r2 * 1.9515295891e-4f));
    const float c = 1.0f - 0.5f * r2 + r2 * r2 * (4.166664568298827e-2f + r2 * (-1.388731625493765e-3f + r2 * 2.443315711809948e-5f));
    const float sin = k & 1 ? c : s, cos = k & 1 ? s : c;
    return {k & 2 ? -sin : sin, (k + 1) & 2 ? -cos : cos};
}

// Returns part / whole for 0 <= part <= whole, correctly rounded. If `whole` is a constant, this takes two multiplications.
__device__ __forceinline__ float fraction(int part, int whole) {
    const float a = (float)part, b = (float)whole;
    if (whole > 3146) return a / b;
    const float inverse = 1.0f / b, shifted = inverse * 4097.0f;
    const float high = shifted - (shifted - inverse), low = (1.0f - high * b) / b;
    return a * high + a * low;
}
