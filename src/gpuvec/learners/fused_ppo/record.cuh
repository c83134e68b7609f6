// A sample of a rollout in one piece, so that a shuffled one costs one access: features, action, log-probability, advantage, target, and
// where agents leave whether it counts; filled up to whole groups of four.
//
// Given before: FEATURES, ACTIONS (numbers of an action), GAUSSIAN, MASKED, RECORD (floats of a sample).
#pragma once

constexpr int ACTION = FEATURES, LOG_PROB = FEATURES + ACTIONS, ADVANTAGE = LOG_PROB + 1, TARGET = LOG_PROB + 2, COUNTS = LOG_PROB + 3;

struct Sample {
    float x[RECORD];

    // The features and the action of sample `at`, from arrays of their own.
    __device__ __forceinline__ void take(long long at, const float* obs, const void* action) {
        if (FEATURES % 4 == 0) {
#pragma unroll
            for (int k = 0; k < FEATURES / 4; k++) {
                const float4 row = ((const float4*)obs)[at * (FEATURES / 4) + k];
                x[4 * k] = row.x, x[4 * k + 1] = row.y, x[4 * k + 2] = row.z, x[4 * k + 3] = row.w;
            }
        } else {
#pragma unroll
            for (int k = 0; k < FEATURES; k++) x[k] = obs[at * FEATURES + k];
        }
#pragma unroll
        for (int k = 0; k < ACTIONS; k++)
            x[ACTION + k] = GAUSSIAN ? ((const float*)action)[at * ACTIONS + k] : (float)((const long long*)action)[at * ACTIONS + k];
    }

    // With what is known of it besides, as record `at`.
    __device__ __forceinline__ void put(float* records, long long at, float log_prob, float advantage, float target, bool counts) {
        x[LOG_PROB] = log_prob, x[ADVANTAGE] = advantage, x[TARGET] = target;
        if (MASKED) x[COUNTS] = counts ? 1.0f : 0.0f;
#pragma unroll
        for (int k = TARGET + 1 + MASKED; k < RECORD; k++) x[k] = 0.0f;
#pragma unroll
        for (int k = 0; k < RECORD / 4; k++)
            ((float4*)records)[at * (RECORD / 4) + k] = make_float4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
    }
};
