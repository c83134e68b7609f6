// The memory of an agent on its multiprocessor, and the layout of its parameters.
//
// A block of 256 threads trains one agent. Threads 0 to 127, a warpgroup, have the actor, and the others the critic. Hidden
// layers have 64 units: those of smaller layers have weights that stay 0.
//
// Macros: FEATURES, OUTPUTS (of the actor), ACTION_SIZE, GAUSSIAN, LAYERS (hidden layers, 1 or 2), RELU, CLIP_VALUE, ENVS,
// STEPS, EPOCHS, MINIBATCHES, TILES_PER_PASS (processed at a time), MAX_TRUNCATIONS (of an environment in a rollout), PORTABLE
// (whether products are those of warps, and not Hopper's), and where what does not fit into shared memory is: TILES_STORED (at a
// time, for the gradients of the weights), OWNED_IN_SHARED (the second weights and first moments between updates),
// D2_IN_SHARED (whether d2 has memory of its own), SECOND_MOMENTS_IN_SHARED (of the second weights), SAMPLES_IN_SHARED,
// SMALL_IN_SHARED; and SAMPLE_BYTES, SHARED_BYTES.
#pragma once
#if PORTABLE
#include "warp.cuh"
#else
#include "warpgroup.cuh"
#endif

__device__ __forceinline__ constexpr int round_up(int count, int multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

__device__ __forceinline__ constexpr int larger(int x, int y) { return x > y ? x : y; }
__device__ __forceinline__ constexpr int bits_of(int x) { return x > 1 ? 1 + bits_of(x >> 1) : 1; }

constexpr int D = FEATURES, H = 64, K = ACTION_SIZE;
constexpr int ROWS = ENVS * STEPS, BATCH = ROWS / MINIBATCHES, UPDATES = EPOCHS * MINIBATCHES;
constexpr int TILES = TILES_PER_PASS, PASSES = BATCH / (TILES * TILE);  // a tile has 64 samples
static_assert(ROWS % MINIBATCHES == 0 && BATCH % (TILES * TILE) == 0, "a minibatch is a multiple of a pass");
constexpr int THREADS = 256, NETWORK_THREADS = 128;

// An input has a one in column 0, whose weights are the first biases, then the features, and zeros.
constexpr int X = round_up(D + 1, 8), X_STEPS = (D + 16) / 16;
// Columns of derivatives: by the outputs, by the logarithms of the standard deviations, then the terms of the metrics.
constexpr int DERIVATIVES = GAUSSIAN ? 2 * K : OUTPUTS, NUM_TERMS = 4, Z = round_up(DERIVATIVES + NUM_TERMS, 8);
constexpr int OUTPUT_STEPS = (OUTPUTS + 15) / 16, PADDED_OUTPUTS = round_up(OUTPUTS, 8);

// The small parameters: columns of 64 units with the first biases, the first weights of each feature, the second biases, and
// the last weights of each output; then the tail, the last biases and the logarithms of the standard deviations.
constexpr int SECOND_BIAS = D + 1, LAST_WEIGHTS = D + LAYERS, COLUMNS = LAST_WEIGHTS + OUTPUTS;
constexpr int TAIL = COLUMNS * H, TAIL_SIZE = round_up(DERIVATIVES, 4),
    SMALL_SLOTS = (TAIL + NETWORK_THREADS - 1) / NETWORK_THREADS;
static_assert(TAIL >= NETWORK_THREADS, "each thread has a small parameter");
// A network in global memory: the small parameters, then the second weights, a row for each output of the layer.
constexpr int SECOND_WEIGHTS = TAIL + TAIL_SIZE, NETWORK_SIZE = SECOND_WEIGHTS + (LAYERS == 2 ? H * H : 0),
    AGENT_SIZE = 2 * NETWORK_SIZE;
constexpr int OWNED = LAYERS == 2 ? 32 : 0;  // second weights of a thread

// A sample: log-probability, features, action, advantage and target. Until the advantages are known, the last two are the
// reward and how the step ended: CONTINUES, TERMINATED, or the row of `extra_inputs` from whose value a truncated episode
// bootstraps.
constexpr int LOG_PROB = 0, ACTION = D + 1, ADVANTAGE = ACTION + K, TARGET = ADVANTAGE + 1, RECORD = round_up(TARGET + 1, 4);
constexpr float CONTINUES = 0.0f, TERMINATED = -1.0f;
// Inputs that are no samples: the observations after the last step, and the final ones of truncated episodes.
constexpr int EXTRA = round_up(ENVS * (1 + MAX_TRUNCATIONS), TILE), EXTRA_PITCH = round_up(D + 1, 4);

// With four environments, the warpgroup without a rollout evaluates the samples of each ROUND of steps while the next ones run.
constexpr int ROUND = 32, EARLY_STEPS = ENVS == 4 && STEPS % ROUND == 0 ? STEPS - ROUND : 0, EARLY_TILES = EARLY_STEPS * ENVS / TILE;

// The tiles of the weights next to the features and to the outputs, which share rows: the first weights, the last weights
// transposed, and the second biases. Each starts at a multiple of EDGE_STEP columns.
constexpr int OUTPUT_COLUMNS = round_up(D + 1, EDGE_STEP), BIAS_COLUMN = OUTPUT_COLUMNS + round_up(OUTPUTS, EDGE_STEP),
              EDGE_COLUMNS = round_up(BIAS_COLUMN + (LAYERS == 2 ? EDGE_STEP : 0), PORTABLE ? EDGE_STEP : TILE);
constexpr int ABSENT = ALIGNMENT / 2;  // halves of an array that is not used

constexpr float LOG_SQRT_TWO_PI = 0.918938533f;
constexpr int GRADIENT_PITCH = H + 4;  // of a column of small gradients, so that four lanes' columns are in different banks
constexpr int SMALL_GRADIENTS = COLUMNS * GRADIENT_PITCH + TAIL_SIZE;

// What the gradients of the weights need, of TILES_STORED tiles of samples.
constexpr bool HAS_D2 = LAYERS == 2 && D2_IN_SHARED;
struct alignas(ALIGNMENT) Activations {
    half h1[TILES_STORED][(H + X) * TILE];  // [unit][sample], and behind it [input][sample]
    half d1_or_h2[TILES_STORED][H * TILE];  // [unit][sample]
    half d2[HAS_D2 ? TILES_STORED : 1][HAS_D2 ? H * TILE : ABSENT];
};
// What is kept meanwhile in registers, and what a rollout needs.
constexpr int OWNED_BETWEEN = OWNED_IN_SHARED ? OWNED * NETWORK_THREADS + 4 : 4;
struct BetweenUpdates {
    float weights[OWNED_BETWEEN], exp_avg[OWNED_BETWEEN];
    float extra_value[EXTRA];
    float extra_inputs[EXTRA * EXTRA_PITCH];
    half h[THREADS / 32][2][H];  // activations of a warp's rollout, of even and odd steps
};
// Small gradients take the place of derivatives by the outputs, or of activations where there are too many of them.
constexpr int SHARED_UNION_BYTES = round_up(
    larger(larger(sizeof(Activations), sizeof(BetweenUpdates)), SMALL_IN_SHARED ? 0 : 4 * SMALL_GRADIENTS), ALIGNMENT);
struct alignas(ALIGNMENT) NetworkMemory {
    half w2[LAYERS == 2 ? H * H : ABSENT];                                      // [output][input]
    half w2_transposed[LAYERS == 2 && HAS_TRANSPOSED_COPIES ? H * H : ABSENT];  // [input][output]
    half edge[H * EDGE_COLUMNS];                                                // [unit][column]
    half w3[HAS_TRANSPOSED_COPIES ? PADDED_OUTPUTS * TILE : ABSENT];            // [output][unit]
    union {
        Activations activations;
        BetweenUpdates between;
        float wide_gradient[SHARED_UNION_BYTES / 4];
    };
    union {  // at a multiple of ALIGNMENT, because the size of the union before it is one
        half dz[TILES_STORED][Z * TILE];  // [output][sample], derivatives by the outputs and terms of the metrics
        float narrow_gradient[SMALL_IN_SHARED ? SMALL_GRADIENTS : 4];
    };
    alignas(16) float exp_avg_sq[SECOND_MOMENTS_IN_SHARED ? OWNED * NETWORK_THREADS + 4 : 4];  // of the second weights
    float tail[3][TAIL_SIZE];                                   // weights and both moments
    float small[3][SMALL_IN_SHARED ? TAIL : 4];                 // the same of the columns of small parameters

    __device__ __forceinline__ float* small_gradient() { return SMALL_IN_SHARED ? narrow_gradient : wide_gradient; }
    __device__ __forceinline__ const float* small_gradient() const { return SMALL_IN_SHARED ? narrow_gradient : wide_gradient; }
};

// The samples of a rollout, with the values of their observations, and the order in which each epoch reads them.
struct alignas(16) Samples {
    float records[round_up(ROWS, TILE)][RECORD];
    float value[round_up(ROWS, TILE)];
    unsigned short order[EPOCHS * ROWS];
};
// Of an environment: the running episode, the return of the last finished one, nan before the first, and those that ended in this
// rollout. Counts of steps are exact in double precision.
struct Episode {
    double running_return, running_length, last_return, sum_returns, sum_lengths;
    float num_ended;
};
struct Settings {
    float learning_rate, ent_coef, vf_coef, gamma, gae_lambda, clip, reward_scale, inverse_max_norm;
    float adam_step;  // the number of steps of Adam before this iteration
};
// Factors of the steps of Adam, see adam.cuh.
struct StepFactors {
    float rate, root, first, second;
};
struct SharedMemory {
    NetworkMemory networks[2];
    alignas(16) char samples[SAMPLES_IN_SHARED ? sizeof(Samples) : 16];
    alignas(16) StepFactors step_factors[UPDATES];
    float squared_norms[2][8];  // of each warp, of even and odd updates: no warp overwrites what another has not read
    float advantage_mean[UPDATES], advantage_scale[UPDATES], terms[2][NUM_TERMS], norm_sum;
    Settings settings;
    Episode episodes[ENVS];
    int is_rollout_nonfinite, is_value_nonfinite;
};
static_assert(sizeof(SharedMemory) == SHARED_BYTES && sizeof(Samples) == SAMPLE_BYTES, "the launch allocates other sizes");

// The samples of this block's agent, in shared memory if they fit there.
__device__ __forceinline__ Samples& samples_of(const Batch& b, SharedMemory& shared) {
    return SAMPLES_IN_SHARED ? *(Samples*)shared.samples : ((Samples*)b.samples)[blockIdx.x];
}

// The columns of small parameters of a network of this block's agent, and their moments: in shared memory if they fit there.
struct SmallParameters {
    float *weights, *exp_avg, *exp_avg_sq;
};
__device__ __forceinline__ SmallParameters small_parameters_of(const Batch& b, SharedMemory& shared, int network) {
    NetworkMemory& m = shared.networks[network];
    if (SMALL_IN_SHARED) return {m.small[0], m.small[1], m.small[2]};
    const i64 offset = (i64)blockIdx.x * AGENT_SIZE + network * NETWORK_SIZE;
    return {b.parameters + offset, b.exp_avg + offset, b.exp_avg_sq + offset};
}

// The position of a thread in its warpgroup. Where it is made, positions and addresses are computed, so that they occupy no
// registers before.
struct Lane {
    int thread, lane, warp, g, t;
    int network;  // 0 for the actor, 1 for the critic; the same in a warp, which the shuffle tells the compiler
    __device__ __forceinline__ explicit Lane(int network) : network(network) {
        thread = computed_here(threadIdx.x) & 127, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    }
    __device__ __forceinline__ Lane() : Lane(__shfl_sync(~0u, (int)threadIdx.x >> 7, 0)) {}
};

typedef u32 Fragments[4][4];  // 16 rows of 64 activations of a warp, as the left operands of four products

// Columns c and c + 1 of an input, of which a one is column 0: row[c] is feature c - 1. Lanes whose columns are padding load
// the first pair, so that the loads of an input are in no branches, which would run one after the other.
__device__ __forceinline__ u32 input_pair(const float* row, int c) {
    const float2 x = *(const float2*)(row + (c > D ? 0 : c));
    const u32 pair = pack_halves(c == 0 ? 1.0f : x.x, c < D ? x.y : 0.0f);
    return c > D ? 0 : pair;
}
// The left fragments of the inputs of rows g and g + 8.
__device__ __forceinline__ void load_inputs(u32 (&x)[X_STEPS][4], const float* row, const float* row_plus_8, int t) {
#pragma unroll
    for (int k = 0; k < 2 * X_STEPS; k++) {
        const bool is_padding = 8 * k >= X;
        x[k / 2][k % 2 * 2] = is_padding ? 0 : input_pair(row, 8 * k + 2 * t);
        x[k / 2][k % 2 * 2 + 1] = is_padding ? 0 : input_pair(row_plus_8, 8 * k + 2 * t);
    }
}
// The left fragment whose column 0 is one.
__device__ __forceinline__ void one_column(u32 (&x)[1][4], int t) {
    x[0][0] = x[0][1] = t == 0 ? 0x3C00u : 0u, x[0][2] = x[0][3] = 0;
}

__device__ __forceinline__ void activate(Fragments& h, float (&sums)[32]) {
    complete(sums);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) h[k][i] = pack_halves(activation(sums[8 * k + 2 * i]), activation(sums[8 * k + 2 * i + 1]));
}
// h, the activations: becomes the sums times the derivatives of these activations. Sums beyond the range of FP16 are saturated,
// as in tensor_core.cuh.
__device__ __forceinline__ void backpropagate(Fragments& h, float (&sums)[32]) {
    complete(sums);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) 
            h[k][i] = times_derivative(h[k][i], pack_halves_saturated(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1]));
}

// The offsets of the operands of a network in its memory, in bytes, and the distances of tiles.
constexpr u32 AT_W2 = 0, AT_W2_TRANSPOSED = AT_W2 + sizeof(NetworkMemory::w2),
              AT_EDGE = AT_W2_TRANSPOSED + sizeof(NetworkMemory::w2_transposed), AT_W3 = AT_EDGE + sizeof(NetworkMemory::edge),
              AT_H1 = AT_W3 + sizeof(NetworkMemory::w3), AT_X = AT_H1 + H * 2 * TILE, AT_H2 = AT_H1 + sizeof(Activations::h1),
              AT_D2 = HAS_D2 ? AT_H2 + sizeof(Activations::d1_or_h2) : AT_H2, AT_DZ = AT_H1 + SHARED_UNION_BYTES;
// Those of the weights which products read transposed: of their copies, if there are any.
constexpr u32 AT_SECOND_COPY = HAS_TRANSPOSED_COPIES ? AT_W2_TRANSPOSED : AT_W2,
              AT_LAST_COPY = HAS_TRANSPOSED_COPIES ? AT_W3 : AT_EDGE + 2 * H * OUTPUT_COLUMNS;
constexpr u32 H1_BYTES = (H + X) * 2 * TILE, LAYER_BYTES = H * 2 * TILE, DZ_BYTES = Z * 2 * TILE;  // of a tile
__device__ __forceinline__ Operands operands_of(const NetworkMemory& m, const Lane& l) {
    return Operands(shared_address(&m), l.warp, l.lane);
}
