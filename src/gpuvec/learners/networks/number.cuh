// The numbers that layers store: bfloat16 if IS_BF16, else float32.
#pragma once

typedef unsigned int u32;
typedef long long i64;

#if IS_BF16
typedef unsigned short Number;
#else
typedef float Number;
#endif
constexpr int VECTOR = 16 / sizeof(Number);  // numbers of 16 bytes, which a thread loads and stores at once

// Two numbers, rounded to bfloat16.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ uint4 pack_vector(const float* x) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = IS_BF16 ? pack_bf16(x[2 * i % VECTOR], x[(2 * i + 1) % VECTOR]) : __float_as_uint(x[i]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ void unpack_vector(const uint4& vector, float* x) {
    const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = __uint_as_float(!IS_BF16 ? words[i & 3] : i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16);
}
