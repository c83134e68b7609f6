// A sample of a rollout in one piece, so that a shuffled one costs one access: features, action, log-probability, advantage, target, and
// where agents leave whether it counts; filled up to whole groups of four.
//
// Given before: FEATURES, ACTIONS (numbers of an action), GAUSSIAN, MASKED, RECORD (floats of a sample).
#pragma once

constexpr int ACTION = FEATURES, LOG_PROB = FEATURES + ACTIONS, ADVANTAGE = LOG_PROB + 1, TARGET = LOG_PROB + 2, COUNTS = LOG_PROB + 3;

// Puts together sample `at` of what lies in arrays of their own.
__device__ __forceinline__ void record(
    float* records, long long at, const float* obs, const void* action, float log_prob, float advantage, float target, bool counts) {
    float r[RECORD] = {};
#pragma unroll
    for (int k = 0; k < FEATURES; k++) r[k] = obs[at * FEATURES + k];
#pragma unroll
    for (int k = 0; k < ACTIONS; k++)
        r[ACTION + k] = GAUSSIAN ? ((const float*)action)[at * ACTIONS + k] : (float)((const long long*)action)[at * ACTIONS + k];
    r[LOG_PROB] = log_prob, r[ADVANTAGE] = advantage, r[TARGET] = target;
    if (MASKED) r[COUNTS] = counts ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k < RECORD / 4; k++)
        ((float4*)records)[at * (RECORD / 4) + k] = make_float4(r[4 * k], r[4 * k + 1], r[4 * k + 2], r[4 * k + 3]);
}
