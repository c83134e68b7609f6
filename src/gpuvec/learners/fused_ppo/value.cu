// V of all observations of a rollout, and of the final observations of truncated episodes, where there are such observations.
// The kernel also advances the clocks. Without `terminated` V is computed for all episodes that ended.
//
// Macros, besides those of network.cuh and observation.cuh: TILES (of 16 rows, per warp).
#include "network.cuh"
#include "observation.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES, O = Network<1>::O;

struct SharedMemory {
    Network<1>::Weights w;
};

// Computes V of ROWS rows of obs, from `first` on, and stores those below `count` that are wanted. Lane l has row l's flag.
__device__ __forceinline__ void compute_values(const Batch& b, const Network<1>::Weights& w, const float* obs, float* value,
    i64 first, i64 count, bool is_wanted) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    InputFragments x[TILES];
    ActivationFragments h1[TILES], h2[TILES];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float* row = observation(b, obs, min(first + 16 * m + 8 * side + g, count - 1));
#pragma unroll
            for (int k = 0; k < X / 8; k++) x[m][k][side] = input_word(b.moments, row, 8 * k + 2 * t);
        }
    first_layer<TILES>(w.w1, x, h1);
    if (LAYERS == 2) second_layer<TILES>(w.w2, w.b2, h1, h2);
    float z[TILES][O / 8][4];
    last_layer<TILES, O>(w.w3, w.b3, LAYERS == 2 ? h2 : h1, z);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int row = 16 * m + 8 * side + g;
            const bool is_row_wanted = __shfl_sync(~0u, (int)is_wanted, row);
            if (is_row_wanted && t == 0 && first + row < count) value[first + row] = z[m][0][2 * side];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) value(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    SharedMemory& shared = *(SharedMemory*)dynamic_shared;
    // The parameters are loaded before the wait, because a rollout does not change them.
    load_weights<1>(shared.w, b.parameters + Network<OUTPUTS>::SIZE);
    launch_dependents();
    wait_for_previous();
    __syncthreads();
    const int lane = threadIdx.x & 31;
    const i64 warp = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32, num_warps = (i64)gridDim.x * WARPS;
    const i64 num_obs = (b.num_steps + 1) * b.num_rows, num_samples = b.num_steps * b.num_rows,
              num_tiles = (num_obs + ROWS - 1) / ROWS;
    for (i64 tile = warp; b.obs && tile < num_tiles; tile += num_warps)
        compute_values(b, shared.w, b.obs, b.value, tile * ROWS, num_obs, true);
    for (i64 first = warp * 32; b.final_obs && first < num_samples; first += num_warps * 32) {
        const i64 sample = first + lane;
        const bool is_truncated = sample < num_samples && b.ended[(u32)sample / (u32)b.rows_per_end]
            && !(b.terminated && b.terminated[sample]);
        const u32 truncated_lanes = __ballot_sync(~0u, is_truncated);
#pragma unroll
        for (int k = 0; k < 32 / ROWS; k++)
            if (truncated_lanes >> (ROWS * k) & (u32)((1ull << ROWS) - 1)) {
                const bool is_wanted = __shfl_sync(~0u, (int)is_truncated, (lane + ROWS * k) % 32);
                compute_values(b, shared.w, b.final_obs, b.final_value, first + ROWS * k, num_samples, is_wanted);
            }
    }
    if (b.clock) {
        const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x;
        for (i64 i = thread; i < b.num_clocks; i += (i64)gridDim.x * THREADS) b.clock[i] += (u32)b.num_steps;
    }
}
