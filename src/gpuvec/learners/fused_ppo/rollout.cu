// A rollout of T steps in one kernel: the policy network, the draw of an action, and the environment's step.
//
// A warp has 8, 16 or 32 environments, which are the rows that the network evaluates. Between evaluations each lane has one
// environment, whose state is in registers.
//
// Macros, besides those of network.cuh: ACTION_SIZE, GAUSSIAN, HEAD_SIZES, TILES (of 16 rows, per warp), EIGHT_ROWS (whether a
// warp has 8 rows, half a tile), ENV_BATCH (the members of the environment's batch), NUM_FLOAT_FIELDS and NUM_INT_FIELDS (of
// its state), ACTION_STARTS (the smallest value of each component of an action), FIRST_DRAW, FIRST_ROW
// (number of the first row, on which draws depend), SHARED_BYTES (of a block), and NORMALIZE of observation.cuh.
#include "draw_action.cuh"
#include "env_functions.cuh"
#include "observation.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = EIGHT_ROWS ? 8 : 16 * TILES, O = Network<OUTPUTS>::O;
constexpr int PZ = O + 1;  // distance of two rows of outputs in shared memory, in floats

struct SharedMemory {
    Network<OUTPUTS>::Weights w;
    float moments[NORMALIZE ? 2 * D : 1];
    half x[WARPS][ROWS * PX];   // inputs of the network
    float z[WARPS][ROWS * PZ];  // outputs
};
static_assert(sizeof(SharedMemory) == SHARED_BYTES, "the launch allocates another size");

extern "C" __global__ void __launch_bounds__(THREADS) rollout(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char dynamic_shared[];
    SharedMemory& shared = *(SharedMemory*)dynamic_shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t4 = lane & 3;
    wait_for_previous();
    launch_dependents();
    load_weights<OUTPUTS>(shared.w, b.parameters);
    for (int k = threadIdx.x; NORMALIZE && k < 2 * D; k += THREADS) shared.moments[k] = b.moments[k];
    const u64 env_batch[] = {ENV_BATCH};
    const i64 e = ((i64)blockIdx.x * WARPS + warp) * ROWS + lane;
    const bool has_env = lane < ROWS && e < b.num_rows;
    u32 start = 0, rng_stream[4] = {}, clock = 0;
    float float_fields[NUM_FLOAT_FIELDS ? NUM_FLOAT_FIELDS : 1] = {}, row[D] = {};
    int int_fields[NUM_INT_FIELDS ? NUM_INT_FIELDS : 1] = {};
    if (has_env) {
        env_load(env_batch, e, &start, rng_stream, float_fields, int_fields);
        env_observe(env_batch, e, float_fields, int_fields, row);
        clock = b.clock[0];  // each block of the environment's own kernels has a clock, and all are equal
        b.episode_start[e] = b.episode_start[b.num_steps * b.num_rows + e];
#pragma unroll
        for (int k = 0; k < D; k++) b.obs[e * D + k] = row[k];
    }
    half* x = shared.x[warp];
    float* z = shared.z[warp];
    UniformDraws draw_uniform = {(u32)*b.iteration, 0, (u32)(e + FIRST_ROW), b.seed};
    __syncthreads();
    for (int t = 0; t < (int)b.num_steps; t++) {
        draw_uniform.step = (u32)t;
        float uniform[NUM_DRAWS];  // drawn before the network is evaluated, as no draw depends on its outputs
#pragma unroll
        for (int k = 0; k < NUM_DRAWS; k++) uniform[k] = draw_uniform(k);
        if (lane < ROWS) {
#pragma unroll
            for (int k = 0; k < X; k += 2)
                *(u32*)(x + lane * PX + k) = pack_halves(
                    input_column(shared.moments, row, k), input_column(shared.moments, row, k + 1));
        }
        __syncwarp();
        // The outputs z of the network for the inputs x.
        {
            InputFragments in[TILES];
            ActivationFragments h1[TILES], h2[TILES];
            float out[TILES][O / 8][4];
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int k = 0; k < X / 8; k++)
#pragma unroll
                    for (int side = 0; side < 2; side++)
                        in[m][k][side] =
                            EIGHT_ROWS && side ? 0 : *(const u32*)(x + (16 * m + 8 * side + g) * PX + 8 * k + 2 * t4);
            }
            first_layer<TILES, EIGHT_ROWS>(shared.w.w1, in, h1);
            if (LAYERS == 2) second_layer<TILES, EIGHT_ROWS>(shared.w.w2, shared.w.b2, h1, h2);
            last_layer<TILES, O>(shared.w.w3, shared.w.b3, LAYERS == 2 ? h2 : h1, out);
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int n = 0; n < O / 8; n++)
#pragma unroll
                    for (int i = 0; i < (EIGHT_ROWS ? 2 : 4); i++)
                        if (8 * n + 2 * t4 + (i & 1) < OUTPUTS)
                            z[(16 * m + 8 * (i >> 1) + g) * PZ + 8 * n + 2 * t4 + (i & 1)] = out[m][n][i];
        }
        __syncwarp();
        if (has_env) {
            const i64 sample = (i64)t * b.num_rows + e;
            Component action[ACTION_SIZE];
            b.log_prob[sample] = draw_action(b, sample, z + lane * PZ, uniform, nullptr, action);
            float reward;
            const int end = env_step(
                env_batch, e, sample, clock + (u32)t + 1, &start, rng_stream, float_fields, int_fields, action, row, &reward);
            b.reward[sample] = reward, b.terminated[sample] = end & 1, b.truncated[sample] = end >> 1;
#pragma unroll
            for (int k = 0; k < D; k++) b.obs[(sample + b.num_rows) * D + k] = row[k];
        }
        __syncwarp();
    }
    if (has_env) env_store(env_batch, e, start, float_fields, int_fields);
}
