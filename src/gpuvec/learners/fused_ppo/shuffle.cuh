// Random numbers and permutations that depend on a seed and a counter alone, so that each replay of a graph has new ones.
#pragma once
#include "tensor_core.cuh"

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011), as in gpuvec.random.
__device__ __forceinline__ uint4 philox(uint4 c, u64 seed) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = 0xD2511F53ull * c.x, p1 = 0xCD9E8D57ull * c.z;
        c = make_uint4((u32)(p1 >> 32) ^ c.y ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c.w ^ k1, (u32)p0);
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return c;
}

constexpr u32 PERMUTATION = 0x4F524445u;  // distinguishes these numbers from other draws with the same seed

// A permutation of n samples without a sort: a bijection of the numbers of `index_bits` bits, applied until its result is < n.
struct Permutation {
    uint4 k;
    u32 mask, n;
    int shift;

    __device__ __forceinline__ Permutation(u64 seed, i64 iteration, int epoch, u32 n, int index_bits) : n(n) {
        k = philox(make_uint4((u32)iteration, (u32)((u64)iteration >> 32), (u32)epoch, PERMUTATION), seed);
        mask = index_bits < 32 ? (1u << index_bits) - 1u : ~0u, shift = (index_bits + 1) / 2;
    }
    __device__ __forceinline__ u32 operator()(u32 x) const {
        do {
            x = (x * (k.x | 1) + k.y) & mask, x ^= x >> shift;
            x = (x * (k.z | 1) + k.w) & mask, x ^= x >> shift;
            x = (x * (k.y | 1) + k.z) & mask, x ^= x >> shift;
            x = (x * (k.w | 1) + k.x) & mask;
        } while (x >= n);
        return x;
    }
};
