// A step of Adam (Kingma and Ba, 2015) on the sum of a minibatch's parts, clipped to a norm; and what was measured on the way.
//
// A thread has four parameters. The norm is of all, so blocks wait for each other once: as many are launched as find room together.
// Given before: PARAMETERS, PARTS (blocks of the gradient), MEASURED, COLUMNS (threads side by side, four parameters each), LINES
// (threads that share out the parts of one), Batch.
#include "tensor_core.cuh"

constexpr int KL = 3;  // of what was measured
constexpr int CHUNKS = (PARAMETERS / 4 + COLUMNS - 1) / COLUMNS, EACH = (CHUNKS + 31) / 32;  // blocks, and what a lane has of their sums
constexpr int SUMMING = COLUMNS * LINES;  // threads; a warp beside them looks at what was measured
constexpr int AT_ONCE = 16;  // parts that a thread reads before it adds any up: what one waits for memory, all of them wait together
constexpr float BETA1 = 0.9f, BETA2 = 0.999f, EPS = 1e-5f, LEAST = 1.2e-38f;
static_assert(COLUMNS <= 32 && SUMMING % 32 == 0, "the first warp has the parameters, and no warp does two things");

struct Common {
    float scale, far, steps, size, root;  // of a gradient; whether learning has stopped; this one's number, size, and what divides it
    u32 turn;  // how often this kernel has run
};

extern "C" __global__ void __launch_bounds__(SUMMING + 32, 4) optimizer(const __grid_constant__ Batch b) {
    __shared__ float4 lines[LINES][COLUMNS];
    __shared__ Common common;
    const int thread = threadIdx.x, column = thread % COLUMNS, line = thread / COLUMNS, lane = thread & 31;
    const int chunk = blockIdx.x * COLUMNS + column;  // of four parameters
    const bool real = chunk < PARAMETERS / 4, owner = line == 0 && real, first_block = blockIdx.x == 0;
    launch_next();
    wait_for_earlier();
    float4 w, m, v;
    if (thread < SUMMING) {
        const float4* partials = (const float4*)b.partials + (real ? chunk : 0);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
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
        if (owner) w = ((float4*)b.parameters)[chunk], m = ((float4*)b.first)[chunk], v = ((float4*)b.second)[chunk];
    } else {  // what the gradient's blocks measured
        float found[MEASURED] = {}, mine = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p += 32)
#pragma unroll
            for (int k = 0; k < MEASURED; k++) found[k] += p + lane < PARTS ? __ldcg(b.measured + (p + lane) * MEASURED + k) : 0.0f;
        const float steps = *b.steps + 1.0f, rate = *b.learning_rate, stopped = b.far[b.minibatch];
        const u32 turn = (u32)*b.turn + 1;
        const float scale = 1.0f / fmaxf(over_warp(b.statistics[b.minibatch * 3 * 32 + lane]), 1.0f);
#pragma unroll
        for (int k = 0; k < MEASURED; k++) found[k] = over_warp(found[k]) * scale, mine = lane == k ? found[k] : mine;
        const float far = fmaxf(stopped, found[KL] > (float)b.target_kl ? 1.0f : 0.0f);
        if (lane == 0) common = {scale, far, steps, rate / (1.0f - powf(BETA1, steps)), rsqrtf(1.0f - powf(BETA2, steps)), turn};
        if (first_block) {
            if (lane < MEASURED) {
                b.learned[lane] += mine / b.rounds;
                if (!isfinite(mine)) b.nonfinite_row[0] = 0;
            }
            if (lane == 0) b.far[b.minibatch + 1] = far;
        }
    }
    __syncthreads();
    if (thread >= 32) return;

    const auto [scale, far, steps, size, root, turn] = common;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (owner) {
#pragma unroll
        for (int k = 0; k < LINES; k++) g.x += lines[k][column].x, g.y += lines[k][column].y, g.z += lines[k][column].z, g.w += lines[k][column].w;
        g.x *= scale, g.y *= scale, g.z *= scale, g.w *= scale;
    }
    const float squares = over_warp(g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w);

    // A block's sum is put down with the number of the turn, so a sum that is there can be told from that of the turn before: nothing
    // else need be waited for. Who puts down a sum has read what the first block moves on when it has seen all of them.
    volatile u64* sums = (volatile u64*)b.squares;
    const double before = first_block && lane == 0 ? b.learned[MEASURED] : 0.0;
    if (lane == 0) sums[blockIdx.x] = (u64)turn << 32 | __float_as_uint(squares);
    u64 x[EACH];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int k = 0; k < EACH; k++) x[k] = sums[min(32 * k + lane, CHUNKS - 1)];
#pragma unroll
        for (int k = 0; k < EACH; k++) there = there && (u32)(x[k] >> 32) == turn;
    } while (!__all_sync(~0u, there));
    float whole = 0.0f;
#pragma unroll
    for (int k = 0; k < EACH; k++) whole += 32 * k + lane < CHUNKS ? __uint_as_float((u32)x[k]) : 0.0f;
    const float norm = sqrtf(over_warp(whole));
    if (first_block && lane == 0) {
        b.learned[MEASURED] = before + norm / b.rounds;
        if (!isfinite(norm)) b.nonfinite_row[1] = 0;
        if (far == 0.0f) *b.steps = steps;
        *b.turn = turn;
    }
    if (!owner) return;
    if (b.gradient) ((float4*)b.gradient)[chunk] = g;
    if (far != 0.0f) return;
    const float clip = fminf(__fdividef((float)b.max_norm, norm + 1e-6f), 1.0f);
    float *gs = &g.x, *ws = &w.x, *ms = &m.x, *vs = &v.x;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float x = gs[k] * clip;
        ms[k] += (1.0f - BETA1) * (x - ms[k]), vs[k] = BETA2 * vs[k] + (1.0f - BETA2) * x * x;
        ws[k] -= __fdividef(size * ms[k], vs[k] * rsqrtf(fmaxf(vs[k], LEAST)) * root + EPS);  // v / sqrt(v), and 0 where v is
    }
    if (!isfinite(w.x + w.y + w.z + w.w)) b.nonfinite_row[1] = 0;
    ((float4*)b.parameters)[chunk] = w, ((float4*)b.first)[chunk] = m, ((float4*)b.second)[chunk] = v;
}
