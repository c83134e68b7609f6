// Records of the samples of a rollout.
#include "record.cuh"

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Batch b) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= b.samples) return;
    Sample sample;
    sample.take(i, b.obs, b.action);
    sample.put(b.records, i, b.log_prob[i], b.advantage[i], b.target[i], MASKED && b.mask[i]);
}
