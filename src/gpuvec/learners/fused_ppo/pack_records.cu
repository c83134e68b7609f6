// The records of all samples of a rollout.
#include "record.cuh"

extern "C" __global__ void __launch_bounds__(256) pack_records(const __grid_constant__ Batch b) {
    const long long sample = (long long)blockIdx.x * 256 + threadIdx.x;
    if (sample >= b.num_samples) return;
    Record record;
    record.load(sample, b.obs, b.action);
    record.store(b.records, sample, b.log_prob[sample], b.advantage[sample], b.target[sample], HAS_MASK && b.mask[sample]);
}
