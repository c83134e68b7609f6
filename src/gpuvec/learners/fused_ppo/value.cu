// V of all that was seen in a rollout, and of the last observations of truncated episodes; and time goes on.
//
// A warp takes 16 or 32 rows at a time. Given before, beside network.cuh's: WARPS, TILES (16 rows each), Batch.
#include "network.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES, O = Net<1>::O;

struct Room {
    Net<1>::Weights w;
};

// V of the rows from `first` on, below `count`, where `wanted` says so; lane l asks for row l.
__device__ __forceinline__ void values(const Net<1>::Weights& w, const float* obs, float* value, i64 first, i64 count, bool wanted) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Input x[TILES];
    Activation h1[TILES], h2[TILES];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float* row = obs + min(first + 16 * m + 8 * side + g, count - 1) * D;
#pragma unroll
            for (int k = 0; k < X / 8; k++) {
                const int c = 8 * k + 2 * t;
                float2 pairs = make_float2(0.0f, 0.0f);
                if (D % 2 == 0) {
                    if (c < D) pairs = *(const float2*)(row + c);
                } else {
                    if (c < D) pairs.x = row[c];
                    if (c + 1 < D) pairs.y = row[c + 1];
                }
                if (c == D) pairs.x = 1.0f;
                if (c + 1 == D) pairs.y = 1.0f;
                x[m][k][side] = pair(pairs.x, pairs.y);
            }
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
            const bool write = __shfl_sync(~0u, (int)wanted, row);
            if (write && t == 0 && first + row < count) value[first + row] = z[m][0][2 * side];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) value(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char given[];
    Room& room = *(Room*)given;
    copy<1>(room.w, b.parameters + Net<OUTPUTS>::SIZE);  // which stay as they are while the rollout is played
    launch_next();
    wait_for_earlier();
    __syncthreads();
    const int lane = threadIdx.x & 31;
    const i64 warp = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32, warps = (i64)gridDim.x * WARPS;
    const i64 seen = (b.steps + 1) * b.rows, made = b.steps * b.rows, tiles = (seen + ROWS - 1) / ROWS;
    for (i64 tile = warp; tile < tiles; tile += warps) values(room.w, b.obs, b.value, tile * ROWS, seen, true);
    for (i64 first = warp * 32; first < made; first += warps * 32) {
        const bool late = first + lane < made && b.ended[first + lane] && !b.terminated[first + lane];
        const u32 any = __ballot_sync(~0u, late);
#pragma unroll
        for (int k = 0; k < 32 / ROWS; k++)
            if (any >> (ROWS * k) & (u32)((1ull << ROWS) - 1)) {
                const bool wanted = __shfl_sync(~0u, (int)late, (lane + ROWS * k) % 32);
                values(room.w, b.final_obs, b.last_value, first + ROWS * k, made, wanted);
            }
    }
    if (b.clock) {
        const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x;
        for (i64 i = thread; i < b.clocks; i += (i64)gridDim.x * THREADS) b.clock[i] += (u32)b.steps;
    }
}
