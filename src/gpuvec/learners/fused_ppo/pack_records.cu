// The records of all samples of a rollout. A thread has one word, so that neighbouring threads read and write neighbouring words.
//
// Macros: those of record.cuh and observation.cuh, GAUSSIAN.
#include "observation.cuh"
#include "record.cuh"

__device__ __forceinline__ u32 record_word(const Batch& b, i64 sample, int word) {
    if (word < FEATURE_WORDS) return input_word(b.moments, observation(b, b.obs, sample), 2 * word);
    if (word < LOG_PROB) {
        const i64 i = sample * ACTION_SIZE + word - ACTION;
        return __float_as_uint(GAUSSIAN ? ((const float*)b.action)[i] : (float)((const i64*)b.action)[i]);
    }
    if (word == LOG_PROB) return __float_as_uint(b.log_prob[sample]);
    if (word == ADVANTAGE) return __float_as_uint(b.advantage[sample]);
    if (word == TARGET) return __float_as_uint(b.target[sample]);
    if (HAS_MASK && word == ACTIVE) return __float_as_uint(b.mask[sample] ? 1.0f : 0.0f);
    u32 bits = 0;
#if HAS_ACTION_MASK
    const int first = 32 * (word - ALLOWED);
    const bool* allowed = b.action_mask + sample * OUTPUTS;
    for (int c = first; c < min(first + 32, OUTPUTS); c++) bits |= (u32)allowed[c] << (c - first);
#endif
    return bits;
}

extern "C" __global__ void __launch_bounds__(256) pack_records(const __grid_constant__ Batch b) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, sample = i / RECORD_SIZE;
    if (sample < b.num_samples) ((u32*)b.records)[i] = record_word(b, sample, (int)(i - sample * RECORD_SIZE));
}
