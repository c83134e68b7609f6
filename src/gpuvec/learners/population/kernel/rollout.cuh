// The rollout of one environment by a warp, all of whose lanes have its state and compute its step.
//
// The first layer is two units per lane, in FP32. The second runs on tensor cores with the weights on the left, in 64
// registers, and with eight equal columns of activations on the right: lane 4g + t continues with units 16t + g and 16t + 8 +
// g.
//
// Macros, besides those of layout.cuh: ENV_BATCH (the members of the environment's batch), NUM_FLOAT_FIELDS and NUM_INT_FIELDS
// (of its state), ACTION_START (the smallest discrete action), FIRST_DRAW.
#pragma once
#include "../../fused_ppo/action_draws.cuh"
#include "../../fused_ppo/env_functions.cuh"
#include "layout.cuh"

constexpr bool TWO_ACTIONS = !GAUSSIAN && OUTPUTS == 2;  // the difference of the logits suffices
constexpr int SUMS = TWO_ACTIONS ? 1 : OUTPUTS;          // sums over a warp in each step
constexpr int WORDS = GAUSSIAN ? 2 * K : 1, DRAWS = GAUSSIAN ? K : 1;  // random words, and numbers made of them, of a step

// x summed over a warp as integers, in units of `unit` * 2^-18: the bits of 48 + x / unit count them if |x / unit| < 16.
__device__ __forceinline__ float sum_over_warp_fixed(float x, float unit, float inverse_unit) {
    const u32 sum = sum_words_over_warp(__float_as_uint(x * inverse_unit + 48.0f)) - 32u * 0x42400000u;
    return (float)(int)sum * (unit * (1.0f / 262144.0f));
}
// The power of two from 1 on that is larger than bound / 16.
__device__ __forceinline__ float unit_of(float bound) {
    return bound < 16.0f ? 1.0f : __uint_as_float(__float_as_uint(bound) & 0x7F800000u) * 0.125f;
}

// The first hidden layer of a row: two activations, and the right fragments of the products of the second layer.
struct FirstLayer {
    float low, high;
    uint4 left_half, right_half;
};

// The actor for one row, distributed over a warp.
struct PolicyOfWarp {
    u32 w2[4][4][4];
    float w1[2][D < 16 ? D + 1 : 1], b2[2], w3[2][SUMS], b3[SUMS], log_std[DRAWS], std[DRAWS];
    float unit, inverse_unit;  // of the sums over the last hidden layer if its activation is tanh, whose magnitude is at most 1
    const half* edge;

    __device__ __forceinline__ float edge_weight(int unit, int column) const {
        return to_float(edge[edge_position(unit, column)]);
    }
    __device__ __forceinline__ void load(const NetworkMemory& m, const Lane& l) {
        edge = m.edge;
        if (LAYERS == 2) {
            const u32 weights = shared_address(m.w2);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) 
                    load_matrix(w2[i][k], tile_address(weights, 16 * i + (l.lane & 15), 2 * k + (l.lane >> 4)));
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int first = 2 * l.lane + i, last = LAYERS == 2 ? 16 * l.t + 8 * i + l.g : first;
            if (D < 16)
#pragma unroll
                for (int k = 0; k < (D < 16 ? D + 1 : 1); k++) w1[i][k] = edge_weight(first, k);
            b2[i] = LAYERS == 2 ? edge_weight(last, BIAS_COLUMN) : 0.0f;
#pragma unroll
            for (int k = 0; k < SUMS; k++)
                w3[i][k] = edge_weight(last, OUTPUT_COLUMNS + k + TWO_ACTIONS)
                    - (TWO_ACTIONS ? edge_weight(last, OUTPUT_COLUMNS) : 0.0f);
        }
        float bound = 0.0f;
#pragma unroll
        for (int k = 0; k < SUMS; k++) bound = fmaxf(bound, fabsf(w3[0][k]) + fabsf(w3[1][k]));
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) bound = fmaxf(bound, __shfl_xor_sync(~0u, bound, offset));
        unit = unit_of(bound), inverse_unit = 1.0f / unit;
#pragma unroll
        for (int k = 0; k < SUMS; k++) b3[k] = m.tail[0][k + TWO_ACTIONS] - (TWO_ACTIONS ? m.tail[0][0] : 0.0f);
#pragma unroll
        for (int k = 0; k < DRAWS; k++) log_std[k] = GAUSSIAN ? m.tail[0][K + k] : 0.0f, std[k] = exponential(log_std[k]);
    }
    __device__ __forceinline__ float first_sum(const float* row, int i, int lane) const {
        float even = D < 16 ? w1[i][0] : edge_weight(2 * lane + i, 0), odd = 0.0f;
#pragma unroll
        for (int k = 0; k < D; k += 2) {
            even += row[k] * (D < 16 ? w1[i][D < 16 ? k + 1 : 0] : edge_weight(2 * lane + i, k + 1));
            if (k + 1 < D) odd += row[k + 1] * (D < 16 ? w1[i][D < 16 ? k + 2 : 0] : edge_weight(2 * lane + i, k + 2));
        }
        return even + odd;
    }
    // The first layer of a row. `h` is memory of the warp.
    __device__ __forceinline__ FirstLayer first_layer(const float* row, half* h, const Lane& l) const {
        FirstLayer x = {activation(first_sum(row, 0, l.lane)), activation(first_sum(row, 1, l.lane))};
        if (LAYERS == 1) return x;
        // Each lane's 16 numbers of a right fragment are adjacent.
        ((u32*)h)[8 * l.t + 2 * (l.lane >> 3) + (l.lane >> 2 & 1)] = pack_halves(x.low, x.high);
        __syncwarp();
        x.left_half = ((const uint4*)h)[2 * l.t], x.right_half = ((const uint4*)h)[2 * l.t + 1];
        return x;
    }
    // z: the outputs, or the second logit minus the first of two, in all lanes.
    __device__ __forceinline__ void outputs(const FirstLayer& x, const Lane& l, float (&z)[SUMS]) const {
        float low = x.low, high = x.high;
        if (LAYERS == 2) {
            float s[4][4];  // the sums start with the biases of the units with which a lane continues
#pragma unroll
            for (int i = 0; i < 4; i++) s[i][0] = b2[0], s[i][2] = b2[1], s[i][1] = s[i][3] = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) mma(s[i], w2[i][0], x.left_half.x, x.left_half.y);
#pragma unroll
            for (int i = 0; i < 4; i++) mma(s[i], w2[i][1], x.left_half.z, x.left_half.w);
#pragma unroll
            for (int i = 0; i < 4; i++) mma(s[i], w2[i][2], x.right_half.x, x.right_half.y);
#pragma unroll
            for (int i = 0; i < 4; i++) mma(s[i], w2[i][3], x.right_half.z, x.right_half.w);
            low = activation(l.t & 2 ? l.t & 1 ? s[3][0] : s[2][0] : l.t & 1 ? s[1][0] : s[0][0]);
            high = activation(l.t & 2 ? l.t & 1 ? s[3][2] : s[2][2] : l.t & 1 ? s[1][2] : s[0][2]);
        }
#pragma unroll
        for (int k = 0; k < SUMS; k++) z[k] = w3[0][k] * low + w3[1][k] * high;
        sum_outputs(z);
#pragma unroll
        for (int k = 0; k < SUMS; k++) z[k] += b3[k];
    }
    // Sums over a warp as integers, which are one instruction. Activations of ReLU may be too large for them; then the warp adds
    // floats.
    __device__ __forceinline__ void sum_outputs(float (&z)[SUMS]) const {
        bool is_small = true;
        if (RELU) {
            float largest = 0.0f;
#pragma unroll
            for (int k = 0; k < SUMS; k++) largest = fmaxf(largest, fabsf(z[k]));
            is_small = __all_sync(~0u, largest < 16.0f);
        }
#pragma unroll
        for (int k = 0; k < SUMS; k++)
            z[k] = is_small ? sum_over_warp_fixed(z[k], RELU ? 1.0f : unit, RELU ? 1.0f : inverse_unit) : sum_over_warp(z[k]);
    }
};

// The random numbers of the actions of 32 steps: lane l has those of step `first` + l. For two actions it is the difference of
// logits from which on the second is taken, for more a uniform number, and for normal components their deviations.
struct ActionDraws {
    float x[DRAWS];
    __device__ __forceinline__ void draw(u64 seed, i64 iteration, int step, int e) {
        const UniformDraws uniform = {(u32)iteration, (u32)step, (u32)e, seed};
#pragma unroll
        for (int k = 0; k < DRAWS; k++) {
            const float u = uniform(GAUSSIAN ? 2 * k : k);
            if (GAUSSIAN) x[k] = sqrtf(-2.0f * __logf(1.0f - u)) * __cosf(6.2831853f * uniform(2 * k + 1));
            else x[k] = TWO_ACTIONS ? __logf(1.0f - u) - __logf(u) : u;
        }
    }
};

// Chooses an action: `action` is that of the environment, `recorded` that of the record. Returns the log-probability; for two
// actions it is by how much the logit of the action exceeds the other, of which `log_prob_of_two` makes it for all rows at
// once.
__device__ __forceinline__ float choose_action(
    const Batch& b, const PolicyOfWarp& policy, const float (&z)[SUMS], const ActionDraws& draws, int j, Component* action,
    float* recorded) {
    float log_prob = 0.0f;
    if (TWO_ACTIONS) {
        const bool second = z[0] >= __shfl_sync(~0u, draws.x[0], j);
        action[0] = ACTION_START + second, recorded[0] = second;
        return second ? z[0] : -z[0];
    }
#if GAUSSIAN
#pragma unroll
    for (int k = 0; k < K; k++) {
        const float normal = __shfl_sync(~0u, draws.x[k], j);
        recorded[k] = z[k] + policy.std[k] * normal;
        action[k] = fminf(fmaxf(recorded[k], b.low[k]), b.high[k]);
        log_prob -= 0.5f * normal * normal + policy.log_std[k] + LOG_SQRT_TWO_PI;
    }
#else
    float max_logit = z[0], total = 0.0f, weights[SUMS], cumulative = 0.0f, shifted = 0.0f;
#pragma unroll
    for (int k = 1; k < SUMS; k++) max_logit = fmaxf(max_logit, z[k]);
#pragma unroll
    for (int k = 0; k < SUMS; k++) weights[k] = exponential(z[k] - max_logit), total += weights[k];
    const float threshold = __shfl_sync(~0u, draws.x[0], j) * total;
    int choice = -1;
#pragma unroll
    for (int k = 0; k < SUMS; k++) {
        cumulative += weights[k];
        const bool is_choice = choice < 0 && (cumulative > threshold || k == SUMS - 1);
        choice = is_choice ? k : choice, shifted = is_choice ? z[k] - max_logit : shifted;
    }
    log_prob = shifted - logarithm(total), action[0] = ACTION_START + choice, recorded[0] = (float)choice;
#endif
    return log_prob;
}
__device__ __forceinline__ float log_prob_of_two(float difference) {
    return fminf(difference, 0.0f) - logarithm(1.0f + exponential(-fabsf(difference)));
}

// Stores vectors of four numbers of a record: those of which all are known before the step, or the others.
template <bool BEFORE_STEP> __device__ __forceinline__ void store_record(float* target, const float* record) {
#pragma unroll
    for (int k = 0; k < RECORD / 4; k++)
        if ((4 * k + 3 < ADVANTAGE) == BEFORE_STEP)
            ((float4*)target)[k] = make_float4(record[4 * k], record[4 * k + 1], record[4 * k + 2], record[4 * k + 3]);
}

// T steps of environment e of the agent: records, extra inputs and episodes.
__device__ __forceinline__ void run_rollout(
    const Batch& b, SharedMemory& shared, i64 agent, i64 iteration, int e, const Lane& l) {
    BetweenUpdates& between = shared.networks[0].between;
    Samples& samples = samples_of(b, shared);
    PolicyOfWarp policy;
    policy.load(shared.networks[0], l);
    const u64 env_batch[] = {ENV_BATCH};
    const i64 env = agent * ENVS + e;
    const u64 seed = b.action_seeds[agent];
    const u32 clock = *b.clock + (u32)((iteration - b.first_iteration) * STEPS);
    const float reward_scale = shared.settings.reward_scale;
    u32 start = 0, rng_stream[4] = {};
    float float_fields[NUM_FLOAT_FIELDS ? NUM_FLOAT_FIELDS : 1] = {}, row[D] = {};
    int int_fields[NUM_INT_FIELDS ? NUM_INT_FIELDS : 1] = {}, num_truncated = 0;
    env_load(env_batch, env, &start, rng_stream, float_fields, int_fields);
    env_observe(env_batch, env, float_fields, int_fields, row);
    Episode episode = shared.episodes[e];
    episode.sum_returns = episode.sum_lengths = 0.0, episode.num_ended = 0.0f;
    float record[RECORD] = {}, reward = 0.0f, *target = samples.records[0];
    int end = 0;
    // Ends a step, while the next one waits for its first layer.
    auto end_step = [&](bool has_step) {
        if (end) {
            if (end == 2) {  // the final observation is in global memory
                const int slot = ENVS + e * MAX_TRUNCATIONS + num_truncated++;
                record[TARGET] = (float)slot;
                for (int k = l.lane; k < D; k += 32)
                    between.extra_inputs[slot * EXTRA_PITCH + 1 + k] = __ldcg(b.final_obs + env * D + k);
            }
            episode.num_ended += 1.0f, episode.last_return = episode.running_return;
            episode.sum_returns += episode.running_return, episode.sum_lengths += episode.running_length;
            episode.running_return = episode.running_length = 0.0;
        }
        if (l.lane == 0 && has_step) store_record<false>(target, record);
    };
#pragma unroll 1
    for (int first = 0; first < STEPS; first += ROUND) {
        ActionDraws draws;
        draws.draw(seed, iteration, first + l.lane, e);
#pragma unroll 2
        for (int j = 0; j < ROUND && first + j < STEPS; j++) {
            float z[SUMS];
            Component action[K];
            const FirstLayer first_layer = policy.first_layer(row, between.h[4 * l.network + l.warp][j & 1], l);
            end_step(j > 0);
            policy.outputs(first_layer, l, z);
            record[LOG_PROB] = choose_action(b, policy, z, draws, j, action, record + ACTION);
#pragma unroll
            for (int k = 0; k < D; k++) record[1 + k] = row[k];
            target = samples.records[(first + j) * ENVS + e];
            if (l.lane == 0) store_record<true>(target, record);
            end = env_step(env_batch, env, env, clock + (u32)(first + j) + 1, &start, rng_stream, float_fields, int_fields,
                action, row, &reward);
            record[ADVANTAGE] = reward * reward_scale, record[TARGET] = end & 1 ? TERMINATED : CONTINUES;
            episode.running_return += reward, episode.running_length += 1.0;
        }
        end_step(true), end = 0;
        if (first < EARLY_STEPS) sync_warpgroups(true);
    }
    env_store(env_batch, env, start, float_fields, int_fields);
    if (l.lane == 0) {
        shared.episodes[e] = episode;
#pragma unroll
        for (int k = 0; k < D; k++) between.extra_inputs[e * EXTRA_PITCH + 1 + k] = b.obs[env * D + k] = row[k];
    }
}
