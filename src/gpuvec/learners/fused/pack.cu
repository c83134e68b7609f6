// Records of the samples of a rollout, each in one piece, so that a shuffled one costs one access: features, action, log-probability,
// advantage, target, whether it counts.
//
// Given before: FEATURES, ACTIONS, GAUSSIAN, MASKED, RECORD, Batch.
constexpr int FILL = FEATURES + ACTIONS + 3;

extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Batch b) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= b.samples) return;
    float r[RECORD];
#pragma unroll
    for (int k = 0; k < RECORD; k++) r[k] = 0.0f;
#pragma unroll
    for (int k = 0; k < FEATURES; k++) r[k] = b.obs[i * FEATURES + k];
#pragma unroll
    for (int k = 0; k < ACTIONS; k++) r[FEATURES + k] = GAUSSIAN ? ((const float*)b.action)[i * ACTIONS + k] : (float)((const long long*)b.action)[i * ACTIONS + k];
    r[FILL - 3] = b.log_prob[i], r[FILL - 2] = b.advantage[i], r[FILL - 1] = b.target[i];
    if (MASKED) r[FILL] = b.mask[i] ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k < RECORD / 4; k++) ((float4*)b.records)[i * (RECORD / 4) + k] = make_float4(r[4 * k], r[4 * k + 1], r[4 * k + 2], r[4 * k + 3]);
}
