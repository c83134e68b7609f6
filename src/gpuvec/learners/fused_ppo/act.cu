// The actions of the rows of a policy in one step: the observations where the environment wrote them, the network, and the draws.
//
// A warp evaluates the network for 16 TILES rows at a time, and then each lane draws for one row.
//
// Macros, besides those of network.cuh, observation.cuh and draw_action.cuh: TILES (of 16 rows, per warp), SHARED_BYTES (of a block).
#include "draw_action.cuh"
#include "observation.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES, O = Network<OUTPUTS>::O;
constexpr int PZ = O + 1;  // distance of two rows of outputs in shared memory, in floats

struct SharedMemory {
    Network<OUTPUTS>::Weights w;
    float z[WARPS][ROWS * PZ];  // outputs
};
static_assert(sizeof(SharedMemory) == SHARED_BYTES, "the launch allocates another size");

// Draws the action of a row from its outputs, and stores it as the policy has it and as the environment takes it.
__device__ __forceinline__ void act_in_row(const Batch& b, i64 row, const float* outputs) {
    const UniformDraws draw_uniform = {(u32)*b.iteration, (u32)b.step, (u32)(row + b.first_row), b.seed};
    float uniform[NUM_DRAWS];
#pragma unroll
    for (int k = 0; k < NUM_DRAWS; k++) uniform[k] = draw_uniform(k);
    u32 allowed[(OUTPUTS + 31) / 32] = {};
#if HAS_ACTION_MASK
    const bool* mask = b.action_mask + row * OUTPUTS;
#pragma unroll
    for (int c = 0; c < OUTPUTS; c++) allowed[c / 32] |= (u32)mask[c] << c % 32;
#endif
    Component action[ACTION_SIZE];
    b.log_prob[row] = draw_action(b, row, outputs, uniform, allowed, action);
#pragma unroll
    for (int k = 0; k < ACTION_SIZE; k++)
        if (GAUSSIAN) ((float*)b.env_action)[row * ACTION_SIZE + k] = action[k];
        else ((i64*)b.env_action)[row * ACTION_SIZE + k] = (i64)action[k];
}

extern "C" __global__ void __launch_bounds__(THREADS) act(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    SharedMemory& shared = *(SharedMemory*)dynamic_shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    load_weights<OUTPUTS>(shared.w, b.parameters);
    __syncthreads();
    float* z = shared.z[warp];
    const i64 num_tiles = (b.num_rows + ROWS - 1) / ROWS;
    for (i64 tile = (i64)blockIdx.x * WARPS + warp; tile < num_tiles; tile += (i64)gridDim.x * WARPS) {
        const i64 first = tile * ROWS;
        InputFragments x[TILES];
        ActivationFragments h1[TILES], h2[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const float* row = observation(b, b.obs, min(first + 16 * m + 8 * side + g, b.num_rows - 1));
#pragma unroll
                for (int k = 0; k < X / 8; k++) x[m][k][side] = input_word(b.moments, row, 8 * k + 2 * t);
            }
        first_layer<TILES>(shared.w.w1, x, h1);
        if (LAYERS == 2) second_layer<TILES>(shared.w.w2, shared.w.b2, h1, h2);
        float out[TILES][O / 8][4];
        last_layer<TILES, O>(shared.w.w3, shared.w.b3, LAYERS == 2 ? h2 : h1, out);
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int n = 0; n < O / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    z[(16 * m + 8 * (i >> 1) + g) * PZ + 8 * n + 2 * t + (i & 1)] = out[m][n][i];
        __syncwarp();
        if (lane < ROWS && first + lane < b.num_rows) act_in_row(b, first + lane, z + lane * PZ);
        __syncwarp();
    }
}
