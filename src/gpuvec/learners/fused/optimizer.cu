// A step of Adam (Kingma and Ba, 2015) on the sum of a minibatch's parts, clipped to a norm; and what was measured on the way.
//
// A thread has four parameters. The norm is of all, so blocks wait for each other once: as many are launched as find room together.
// Given before: PARAMETERS, PARTS (blocks of the gradient), MEASURED, COLUMNS (threads side by side, four parameters each), LINES
// (threads that share out the parts of one), Batch.
#include "tensor_core.cuh"

static_assert(COLUMNS <= 32 && COLUMNS * LINES >= 64, "the first warp has the parameters, the second looks at what was measured");

constexpr int KL = 3;  // of what was measured
constexpr int CHUNKS = (PARAMETERS / 4 + COLUMNS - 1) / COLUMNS;  // blocks
constexpr int AT_ONCE = 16;  // parts that a thread reads before it adds any up: what one waits for memory, all of them wait together
constexpr float BETA1 = 0.9f, BETA2 = 0.999f, EPS = 1e-5f;

extern "C" __global__ void __launch_bounds__(COLUMNS * LINES, 4) optimizer(const __grid_constant__ Batch b) {
    __shared__ float4 lines[LINES][COLUMNS];
    __shared__ float scale_of_all, far_of_all;
    const int thread = threadIdx.x, column = thread % COLUMNS, line = thread / COLUMNS, warp = thread >> 5, lane = thread & 31;
    const int chunk = blockIdx.x * COLUMNS + column;  // of four parameters
    const bool real = chunk < PARAMETERS / 4, owner = line == 0 && real;
    const float4* partials = (const float4*)b.partials + (real ? chunk : 0);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    launch_next();
    wait_for_earlier();
#pragma unroll 1
    for (int round = 0; round < PARTS; round += LINES * AT_ONCE) {  // lines share warps, which have a barrier: all go as many rounds
        const int first = round + line;
        float4 x[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * LINES < PARTS) x[k] = __ldcg(partials + (first + k * LINES) * (PARAMETERS / 4));
            else x[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncwarp();  // or the assembler would save registers, and wait for one after the other
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum.x += x[k].x, sum.y += x[k].y, sum.z += x[k].z, sum.w += x[k].w;
    }
    lines[line][column] = sum;
    float4 w, m, v;
    if (owner) w = ((float4*)b.parameters)[chunk], m = ((float4*)b.first)[chunk], v = ((float4*)b.second)[chunk];
    const float steps = *b.steps + 1.0f, rate = *b.learning_rate;
    if (warp == 1) {  // what the gradient's blocks measured
        const float scale = 1.0f / fmaxf(over_warp(b.statistics[b.minibatch * 3 * 32 + lane]), 1.0f);
        float found[MEASURED] = {}, mine = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p += 32)
#pragma unroll
            for (int k = 0; k < MEASURED; k++) found[k] += p + lane < PARTS ? __ldcg(b.measured + (p + lane) * MEASURED + k) : 0.0f;
#pragma unroll
        for (int k = 0; k < MEASURED; k++) found[k] = over_warp(found[k]) * scale, mine = lane == k ? found[k] : mine;
        const float far = fmaxf(b.far[b.minibatch], found[KL] > (float)b.target_kl ? 1.0f : 0.0f);
        if (blockIdx.x == 0) {
            if (lane < MEASURED) {
                b.learned[lane] += mine / b.rounds;
                if (!isfinite(mine)) b.odd[0] = 0;
            }
            if (lane == 0) b.far[b.minibatch + 1] = far;
        }
        if (lane == 0) scale_of_all = scale, far_of_all = far;
    }
    __syncthreads();
    if (warp != 0) return;

    const float scale = scale_of_all;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (owner) {
#pragma unroll
        for (int k = 0; k < LINES; k++) g.x += lines[k][column].x, g.y += lines[k][column].y, g.z += lines[k][column].z, g.w += lines[k][column].w;
        g.x *= scale, g.y *= scale, g.z *= scale, g.w *= scale;
    }
    const float squares = over_warp(g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w);
    if (lane == 0) {
        ((volatile float*)b.squares)[blockIdx.x] = squares;
        __threadfence();
        i64 arrived;
        asm volatile("atom.add.acq_rel.gpu.u64 %0,[%1],1;" : "=l"(arrived) : "l"(b.arrived) : "memory");
        const i64 target = (arrived / CHUNKS + 1) * CHUNKS;
        do {
            asm volatile("ld.acquire.gpu.s64 %0,[%1];" : "=l"(arrived) : "l"(b.arrived) : "memory");
        } while (arrived < target);
    }
    __syncwarp();
    float whole = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i += 32) whole += i + lane < CHUNKS ? __ldcg(b.squares + i + lane) : 0.0f;
    const float norm = sqrtf(over_warp(whole));
    const bool moves = far_of_all == 0.0f;
    if (blockIdx.x == 0 && lane == 0) {
        b.learned[MEASURED] += norm / b.rounds;
        if (!isfinite(norm)) b.odd[1] = 0;
        if (moves) *b.steps = steps;  // all blocks have read it
    }
    if (!owner) return;
    if (b.gradient) ((float4*)b.gradient)[chunk] = g;
    if (!moves) return;
    const float clip = fminf((float)b.max_norm / (norm + 1e-6f), 1.0f);
    const float size = rate / (1.0f - powf(BETA1, steps)), root = rsqrtf(1.0f - powf(BETA2, steps));
    float *gs = &g.x, *ws = &w.x, *ms = &m.x, *vs = &v.x;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float x = gs[k] * clip;
        ms[k] += (1.0f - BETA1) * (x - ms[k]), vs[k] = BETA2 * vs[k] + (1.0f - BETA2) * x * x;
        ws[k] -= size * ms[k] / (sqrtf(vs[k]) * root + EPS);
    }
    if (!isfinite(w.x + w.y + w.z + w.w)) b.odd[1] = 0;
    ((float4*)b.parameters)[chunk] = w, ((float4*)b.first)[chunk] = m, ((float4*)b.second)[chunk] = v;
}
