// The components of an action, and the uniform numbers from which those of a step are drawn.
//
// Macros: FIRST_DRAW (the number of the first), GAUSSIAN (whether actions are continuous).
#pragma once
#include "shuffle.cuh"

#if GAUSSIAN
typedef float Component;
#else
typedef int Component;
#endif

// The uniform numbers in [0, 1) of a row in a step, the same as those of sampling/action_kernels.py.
struct UniformDraws {
    u32 iteration, step, row;
    u64 seed;
    __device__ __forceinline__ float operator()(u32 number) const {
        const u32 draw = FIRST_DRAW + number;
        const uint4 w = philox(make_uint4(iteration, step, draw >> 2, (u32)(seed >> 32)), (u64)row << 32 | (u32)seed);
        const u32 k = draw & 3, word = k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w;
        return (float)(word >> 8) * 5.9604645e-08f;
    }
};
