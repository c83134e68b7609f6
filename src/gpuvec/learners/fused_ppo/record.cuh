// The record of a sample of a rollout: the features and a one, in FP16; then the action, its log-probability, the advantage and the
// target as floats; with HAS_MASK whether the agent was active, and with HAS_ACTION_MASK a bit for each output, of the allowed
// actions. Zeros fill it up to a multiple of four words. A shuffled sample is one access to memory.
//
// The kernels round features to FP16 in any case, so that a record has half of the bytes of the observation.
//
// Macros: FEATURES, OUTPUTS, ACTION_SIZE (components of an action), HAS_MASK, HAS_ACTION_MASK, RECORD_SIZE (words of a record).
#pragma once

constexpr int FEATURE_WORDS = (FEATURES + 2) / 2, MASK_WORDS = HAS_ACTION_MASK ? (OUTPUTS + 31) / 32 : 0;
constexpr int ACTION = FEATURE_WORDS, LOG_PROB = ACTION + ACTION_SIZE, ADVANTAGE = LOG_PROB + 1, TARGET = LOG_PROB + 2,
              ACTIVE = LOG_PROB + 3, ALLOWED = ACTIVE + HAS_MASK;
