// The record of a sample of a rollout: features, action, log-probability, advantage, target, with HAS_MASK whether the agent
// was active, and zeros up to a multiple of four floats. A shuffled sample is one access to memory.
//
// Macros: FEATURES, ACTION_SIZE (components of an action), GAUSSIAN, HAS_MASK, RECORD_SIZE (floats of a record).
#pragma once

constexpr int ACTION = FEATURES, LOG_PROB = FEATURES + ACTION_SIZE, ADVANTAGE = LOG_PROB + 1, TARGET = LOG_PROB + 2,
              ACTIVE = LOG_PROB + 3;

struct Record {
    float x[RECORD_SIZE];

    // Loads the features and the action of a sample.
    __device__ __forceinline__ void load(long long sample, const float* obs, const void* action) {
        if (FEATURES % 4 == 0) {
#pragma unroll
            for (int k = 0; k < FEATURES / 4; k++) {
                const float4 row = ((const float4*)obs)[sample * (FEATURES / 4) + k];
                x[4 * k] = row.x, x[4 * k + 1] = row.y, x[4 * k + 2] = row.z, x[4 * k + 3] = row.w;
            }
        } else {
#pragma unroll
            for (int k = 0; k < FEATURES; k++) x[k] = obs[sample * FEATURES + k];
        }
#pragma unroll
        for (int k = 0; k < ACTION_SIZE; k++)
            x[ACTION + k] = GAUSSIAN ? ((const float*)action)[sample * ACTION_SIZE + k]
                                     : (float)((const long long*)action)[sample * ACTION_SIZE + k];
    }

    // Adds the other fields, and stores the record of a sample.
    __device__ __forceinline__ void store(
        float* records, long long sample, float log_prob, float advantage, float target, bool active) {
        x[LOG_PROB] = log_prob, x[ADVANTAGE] = advantage, x[TARGET] = target;
        if (HAS_MASK) x[ACTIVE] = active ? 1.0f : 0.0f;
#pragma unroll
        for (int k = TARGET + 1 + HAS_MASK; k < RECORD_SIZE; k++) x[k] = 0.0f;
#pragma unroll
        for (int k = 0; k < RECORD_SIZE / 4; k++)
            ((float4*)records)[sample * (RECORD_SIZE / 4) + k] =
                make_float4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
    }
};
