// A rollout of T steps in one kernel: the policy network, the draw of an action, and the environment's step.
//
// A warp has 8, 16 or 32 environments, which are the rows that the network evaluates. Between evaluations each lane has one
// environment, whose state is in registers. The functions env_load, env_observe, env_step and env_store are compiled from the
// environment's Python and linked with this file.
//
// Macros, besides those of network.cuh: ACTIONS, GAUSSIAN, HEADS, WARPS, TILES (of 16 rows, per warp), EIGHT (whether a warp has 8
// rows), GAME (the members of the environment's batch), NUM_FLOAT_FIELDS and NUM_INT_FIELDS (of its state), STARTS (the smallest
// value of each component of an action).
#include "network.cuh"
#include "shuffle.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = EIGHT ? 8 : 16 * TILES, O = Net<OUTPUTS>::O, ZP = O + 1;

#if GAUSSIAN
typedef float Component;
#else
typedef int Component;
#endif
extern "C" __device__ int env_load(const u64* batch, i64 e, u32* start, u32* stream, float* float_fields, int* int_fields);
extern "C" __device__ int env_observe(const u64* batch, i64 e, const float* float_fields, const int* int_fields, float* row);
extern "C" __device__ int env_step(const u64* batch, i64 e, i64 at, u32 clock, u32* start, const u32* stream, float* float_fields,
                                    int* int_fields, const Component* action, float* row, float* reward);  // 1: terminated, 2: truncated
extern "C" __device__ int env_store(const u64* batch, i64 e, u32 start, const float* float_fields, const int* int_fields);

struct Room {
    Net<OUTPUTS>::Weights w;
    half x[WARPS][ROWS * PX];
    float z[WARPS][ROWS * ZP];
};
static_assert(sizeof(Room) == SPACE, "what is launched has another size");

// The draws of the sampler, by its numbers: a row's block of four words in this step.
struct Draws {
    u32 iteration, step, row;
    u64 seed;
    __device__ __forceinline__ float operator()(u32 number) const {  // in [0, 1)
        const u32 draw = FIRST_DRAW + number;
        const uint4 w = philox(make_uint4(iteration, step, draw >> 2, (u32)(seed >> 32)), (u64)row << 32 | (u32)seed);
        const u32 k = draw & 3, word = k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w;
        return (float)(word >> 8) * 5.9604645e-08f;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) rollout(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char given[];
    Room& room = *(Room*)given;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t4 = lane & 3;
    wait_for_earlier();
    launch_next();
    copy<OUTPUTS>(room.w, b.parameters);
    const u64 game[] = {GAME};
    const i64 e = ((i64)blockIdx.x * WARPS + warp) * ROWS + lane;
    const bool mine = lane < ROWS && e < b.rows;
    u32 start = 0, stream[4] = {}, clock = 0;
    float float_fields[NUM_FLOAT_FIELDS ? NUM_FLOAT_FIELDS : 1] = {}, row[D] = {};
    int int_fields[NUM_INT_FIELDS ? NUM_INT_FIELDS : 1] = {};
    if (mine) {
        env_load(game, e, &start, stream, float_fields, int_fields);
        env_observe(game, e, float_fields, int_fields, row);
        clock = b.clock[0];  // blocks have one each, and all say the same
        b.began[e] = b.began[b.steps * b.rows + e];
#pragma unroll
        for (int k = 0; k < D; k++) b.obs[e * D + k] = row[k];
    }
    half* x = room.x[warp];
    float* z = room.z[warp];
    Draws drawn = {(u32)*b.iteration, 0, (u32)e, b.seed};
    __syncthreads();
    for (int t = 0; t < (int)b.steps; t++) {
        drawn.step = (u32)t;
        float chance[GAUSSIAN ? 2 * ACTIONS : ACTIONS];  // drawn while there is nothing to wait for
#pragma unroll
        for (int k = 0; k < (GAUSSIAN ? 2 * ACTIONS : ACTIONS); k++) chance[k] = drawn(k);
        if (lane < ROWS) {
#pragma unroll
            for (int k = 0; k < X; k += 2)
                *(u32*)(x + lane * PX + k) = pair(k < D ? row[k < D ? k : 0] : k == D ? 1.0f : 0.0f, k + 1 < D ? row[k + 1 < D ? k + 1 : 0] : k + 1 == D ? 1.0f : 0.0f);
        }
        __syncwarp();
        {
            Input in[TILES];
            Activation h1[TILES], h2[TILES];
            float out[TILES][O / 8][4];
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int k = 0; k < X / 8; k++)
#pragma unroll
                    for (int side = 0; side < 2; side++) in[m][k][side] = EIGHT && side ? 0 : *(const u32*)(x + (16 * m + 8 * side + g) * PX + 8 * k + 2 * t4);
            }
            first_layer<TILES, EIGHT>(room.w.w1, in, h1);
            if (LAYERS == 2) second_layer<TILES, EIGHT>(room.w.w2, room.w.b2, h1, h2);
            last_layer<TILES, O>(room.w.w3, room.w.b3, LAYERS == 2 ? h2 : h1, out);
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int n = 0; n < O / 8; n++)
#pragma unroll
                    for (int i = 0; i < (EIGHT ? 2 : 4); i++)
                        if (8 * n + 2 * t4 + (i & 1) < OUTPUTS) z[(16 * m + 8 * (i >> 1) + g) * ZP + 8 * n + 2 * t4 + (i & 1)] = out[m][n][i];
        }
        __syncwarp();
        if (mine) {
            const float* numbers_of = z + lane * ZP;
            const i64 at = (i64)t * b.rows + e;
            float log_prob = 0.0f;
            Component action[ACTIONS];
#if GAUSSIAN
#pragma unroll
            for (int k = 0; k < ACTIONS; k++) {
                const float log_std = b.parameters[Net<OUTPUTS>::LOG_STD + k];
                const float radius = sqrtf(-2.0f * __logf(1.0f - chance[2 * k])), normal = radius * __cosf(6.2831853f * chance[2 * k + 1]);
                const float taken = numbers_of[k] + __expf(log_std) * normal;
                log_prob -= 0.5f * normal * normal + log_std + LOG_SQRT_TWO_PI;
                ((float*)b.action)[at * ACTIONS + k] = taken;
                action[k] = fminf(fmaxf(taken, b.low[k]), b.high[k]);
            }
#else
            constexpr int HEAD[] = HEADS, LEAST[] = STARTS;
            int first = 0;
#pragma unroll
            for (int k = 0; k < ACTIONS; k++) {
                float most = -1e30f, total = 0.0f, passed = 0.0f, weights[OUTPUTS], chosen = 0.0f;
#pragma unroll
                for (int j = 0; j < HEAD[k]; j++) most = fmaxf(most, numbers_of[first + j]);
#pragma unroll
                for (int j = 0; j < HEAD[k]; j++) weights[first + j] = __expf(numbers_of[first + j] - most), total += weights[first + j];
                const float goal = chance[k] * total;
                int choice = -1;
#pragma unroll
                for (int j = 0; j < HEAD[k]; j++) {
                    passed += weights[first + j];
                    const bool here = choice < 0 && (passed > goal || j == HEAD[k] - 1);
                    choice = here ? j : choice, chosen = here ? numbers_of[first + j] - most : chosen;
                }
                log_prob += chosen - __logf(total);
                ((i64*)b.action)[at * ACTIONS + k] = choice;
                action[k] = choice + LEAST[k];
                first += HEAD[k];
            }
#endif
            b.log_prob[at] = log_prob;
            float reward;
            const int over = env_step(game, e, at, clock + (u32)t + 1, &start, stream, float_fields, int_fields, action, row, &reward);
            b.reward[at] = reward, b.terminated[at] = over & 1, b.truncated[at] = over >> 1;
#pragma unroll
            for (int k = 0; k < D; k++) b.obs[(at + b.rows) * D + k] = row[k];
        }
        __syncwarp();
    }
    if (mine) env_store(game, e, start, float_fields, int_fields);
}
