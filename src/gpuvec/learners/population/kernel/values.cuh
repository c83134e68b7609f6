// Between a rollout and its updates: values of the observations, advantages and targets, and their means by minibatch.
#pragma once
#include "rollout.cuh"

// The values of 64 inputs, by the four warps of a warpgroup, with the critic's network.
__device__ __forceinline__ void evaluate_critic(const NetworkMemory& m, const float* inputs, int pitch, float* value,
    const Lane& l) {
    const Operands o = operands_of(m, l);
    const int row = 16 * l.warp + l.g;
    u32 x[X_STEPS][4], one[1][4];
    load_inputs(x, inputs + row * pitch, inputs + (row + 8) * pitch, l.t);
    one_column(one, l.t);
    float first[32], second[32], z[4];
    Fragments h1, h2;
    fence_products(), o.multiply_edge<X>(first, x, AT_EDGE, 0), commit_products(), wait_products<0>();
    activate(h1, first);
    if (LAYERS == 2) {
        fence_products(), o.multiply_edge<8>(second, one, AT_EDGE, BIAS_COLUMN);
        o.add_weights(second, h1, AT_W2), commit_products(), wait_products<0>();
        activate(h2, second);
    }
    fence_products(), o.multiply_transposed(z, LAYERS == 2 ? h2 : h1, AT_LAST_COPY), commit_products(), wait_products<0>();
    complete(z);
    if (l.t == 0) value[row] = z[0] + m.tail[0][0], value[row + 8] = z[2] + m.tail[0][0];
}

// While the rollout runs: the values of the observations of all rounds but the last, by the critic's warpgroup.
__device__ __forceinline__ void evaluate_early(SharedMemory& shared, Samples& samples, const Lane& l) {
#pragma unroll 1
    for (int i = 0; i < EARLY_TILES; i++) {
        if (i % (ROUND * ENVS / TILE) == 0) sync_warpgroups(false);  // the end of a round
        evaluate_critic(shared.networks[1], samples.records[TILE * i], RECORD, samples.value + TILE * i, l);
    }
}
// The values of the other observations, by both warpgroups.
__device__ __forceinline__ void evaluate_rest(SharedMemory& shared, Samples& samples, const Lane& l) {
    BetweenUpdates& between = shared.networks[0].between;
    constexpr int SAMPLE_TILES = round_up(ROWS, TILE) / TILE, NUM_TILES = SAMPLE_TILES + EXTRA / TILE;
#pragma unroll 1
    for (int i = EARLY_TILES + l.network; i < NUM_TILES; i += 2) {
        const bool is_sample = i < SAMPLE_TILES;
        const int extra = TILE * (i - SAMPLE_TILES);
        const float* inputs = is_sample ? samples.records[TILE * i] : between.extra_inputs + extra * EXTRA_PITCH;
        float* value = is_sample ? samples.value + TILE * i : between.extra_value + extra;
        evaluate_critic(shared.networks[1], inputs, is_sample ? RECORD : EXTRA_PITCH, value, l);
    }
}

// The advantages and targets of an environment, by a warp (Schulman et al., 2016). A lane has consecutive steps, for which the
// advantage is sum + factor * the advantage of the step after them.
__device__ __forceinline__ void estimate_advantages(SharedMemory& shared, Samples& samples, int e, int lane) {
    constexpr int PER_LANE = (STEPS + 31) / 32;
    const float *value = samples.value, *extra_value = shared.networks[0].between.extra_value;
    const float gamma = shared.settings.gamma, decay = gamma * shared.settings.gae_lambda;
    const int begin = lane * PER_LANE;
    // The temporal difference of a step; `factor` becomes that of the advantage of the next.
    auto difference = [&](int step, float& factor) {
        const float *record = samples.records[step * ENVS + e], end = record[TARGET];
        const float next = end == TERMINATED ? 0.0f
            : end != CONTINUES               ? extra_value[(int)end]
            : step == STEPS - 1              ? extra_value[e]
                                             : value[(step + 1) * ENVS + e];
        factor = end == CONTINUES ? decay : 0.0f;
        return record[ADVANTAGE] + gamma * next - value[step * ENVS + e];
    };
    float sum = 0.0f, factor = 1.0f, step_factor;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; i--)
        if (begin + i < STEPS) {
            const float x = difference(begin + i, step_factor);
            sum = x + step_factor * sum, factor *= step_factor;
        }
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float later_sum = __shfl_down_sync(~0u, sum, offset), later_factor = __shfl_down_sync(~0u, factor, offset);
        if (lane + offset < 32) sum += factor * later_sum, factor *= later_factor;
    }
    float advantage = __shfl_down_sync(~0u, sum, 1);
    if (lane == 31) advantage = 0.0f;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; i--)
        if (begin + i < STEPS) {
            float* record = samples.records[(begin + i) * ENVS + e];
            const float x = difference(begin + i, step_factor), old_value = value[(begin + i) * ENVS + e];
            advantage = x + step_factor * advantage;
            // Not before: the loads of inputs touch the log-probability, too.
            if (TWO_ACTIONS) record[LOG_PROB] = log_prob_of_two(record[LOG_PROB]);
            if (!isfinite(record[ADVANTAGE]) || !isfinite(record[LOG_PROB])) shared.is_rollout_nonfinite = 1;
            if (!isfinite(old_value) || !isfinite(advantage)) shared.is_value_nonfinite = 1;
            record[ADVANTAGE] = advantage, record[TARGET] = advantage + old_value;
        }
}

// The mean of a minibatch's advantages and 1 / their standard deviation, by a warp.
__device__ __forceinline__ void summarize_advantages(SharedMemory& shared, const Samples& samples, int update, int lane) {
    const unsigned short* order = samples.order + update * BATCH;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
    for (int i = lane; i < BATCH; i += 32) sum += samples.records[order[i]][ADVANTAGE];
    const float mean = sum_over_warp(sum) * (1.0f / BATCH);
#pragma unroll 4
    for (int i = lane; i < BATCH; i += 32) {
        const float x = samples.records[order[i]][ADVANTAGE] - mean;
        squares += x * x;
    }
    squares = sum_over_warp(squares);
    if (lane == 0) {
        shared.advantage_mean[update] = mean;
        shared.advantage_scale[update] = 1.0f / (sqrtf(squares * (1.0f / (BATCH - 1))) + 1e-8f);
    }
}
