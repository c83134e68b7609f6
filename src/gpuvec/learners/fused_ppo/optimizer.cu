// A step of Adam (Kingma and Ba, 2015) with the gradient of a minibatch, clipped to a norm, and the metrics of the minibatch.
//
// A thread of the first warp has vectors of four parameters: one, or several in large networks. The norm is that of the whole gradient, so the blocks wait for each
// other once; they are launched only if all of them can be resident at the same time.
//
// With several shards a partial gradient is that of a shard, which send_sums.cu computes. With FROM_INBOX it is read from the inbox
// of this process, as soon as the process of the shard has written it.
//
// Macros, besides those of partials.cuh: VECTORS_PER_BLOCK (that are summed at a time), VECTORS_PER_THREAD, FROM_INBOX, and with it
// those of inbox.cuh.
#include "partials.cuh"
#if FROM_INBOX
#include "inbox.cuh"
#endif

constexpr int KL = 3;  // the index of the KL divergence among the sums of the loss
constexpr int NUM_VECTORS = NUM_PARAMETERS / 4, BLOCK_VECTORS = VECTORS_PER_BLOCK * VECTORS_PER_THREAD,
              NUM_BLOCKS = (NUM_VECTORS + BLOCK_VECTORS - 1) / BLOCK_VECTORS;
constexpr int BLOCKS_PER_LANE = (NUM_BLOCKS + 31) / 32;  // blocks whose squared norms a lane reads
constexpr int SUM_THREADS = VECTORS_PER_BLOCK * THREADS_PER_VECTOR;  // threads that sum gradients; one more warp sums the loss
constexpr float BETA1 = 0.9f, BETA2 = 0.999f, EPS = 1e-5f, SMALLEST_NORMAL = 1.2e-38f;
static_assert(
    VECTORS_PER_BLOCK <= 32 && SUM_THREADS % 32 == 0, "the first warp has all vectors, and the last warp only the loss");

// Values that the last warp computes for the block.
struct StepValues {
    float scale;         // 1 / number of samples that count
    float kl_exceeded;   // 1 if the KL divergence has exceeded its target in this update, else 0
    float step;          // the number of this step of Adam
    float step_size;     // the learning rate / (1 - BETA1^step)
    float root;          // 1 / sqrt(1 - BETA2^step)
    u32 num_launches;    // of this kernel, including this one
};

extern "C" __global__ void __launch_bounds__(SUM_THREADS + 32, 4) optimizer(const __grid_constant__ Batch b) {
    __shared__ float4 sums[THREADS_PER_VECTOR][BLOCK_VECTORS];
    __shared__ StepValues step_values;
    const int thread = threadIdx.x, column = thread % VECTORS_PER_BLOCK, line = thread / VECTORS_PER_BLOCK, lane = thread & 31;
    const int first_vector = blockIdx.x * BLOCK_VECTORS + column;  // of this thread; the next ones are VECTORS_PER_BLOCK apart
    const bool is_first_block = blockIdx.x == 0;
    auto exists = [&](int i) { return first_vector + i * VECTORS_PER_BLOCK < NUM_VECTORS; };
    auto is_owner = [&](int i) { return line == 0 && exists(i); };
    launch_dependents();
    wait_for_previous();
    float4 w[VECTORS_PER_THREAD], m[VECTORS_PER_THREAD], v[VECTORS_PER_THREAD];
    if (thread < SUM_THREADS) {
#pragma unroll
        for (int i = 0; i < VECTORS_PER_THREAD; i++) {
            const int vector = first_vector + i * VECTORS_PER_BLOCK;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if FROM_INBOX
            // Lines add the rows of the shards as they add partial gradients, so that the sums have the same bits.
            const u32 launch = (u32)*b.num_launches + 1;
            for (int shard = line; shard < NUM_PARTIALS && exists(i); shard += THREADS_PER_VECTOR) {
                float x[4];
                receive<4>(inbox_row(b.inbox, launch, shard) + 4 * vector, launch, b.is_aborted, x);
                sum.x += x[0], sum.y += x[1], sum.z += x[2], sum.w += x[3];
            }
#else
            const float4* partials = (const float4*)b.partial_gradients + (exists(i) ? vector : 0);
            // Lines share warps, and the loop has a barrier of a warp, so all lines have the same number of iterations.
#pragma unroll 1
            for (int begin = 0; begin < NUM_PARTIALS; begin += THREADS_PER_VECTOR * PREFETCHED) {
                const int first = begin + line;
                float4 x[PREFETCHED];
#pragma unroll
                for (int k = 0; k < PREFETCHED; k++)
                    if (first + k * THREADS_PER_VECTOR < NUM_PARTIALS)
                        x[k] = __ldcg(partials + (first + k * THREADS_PER_VECTOR) * (PARTIAL_SIZE / 4));
                    else x[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                __syncwarp();  // without it the assembler saves registers, and waits for one load after the other
#pragma unroll
                for (int k = 0; k < PREFETCHED; k++) sum.x += x[k].x, sum.y += x[k].y, sum.z += x[k].z, sum.w += x[k].w;
            }
#endif
            sums[line][i * VECTORS_PER_BLOCK + column] = sum;
        }
#pragma unroll
        for (int i = 0; i < VECTORS_PER_THREAD; i++) {
            const int vector = first_vector + i * VECTORS_PER_BLOCK;
            if (is_owner(i))
                w[i] = ((float4*)b.parameters)[vector], m[i] = ((float4*)b.exp_avg)[vector],
                v[i] = ((float4*)b.exp_avg_sq)[vector];
        }
    } else {  // the last warp
        float loss_sums[NUM_SUMS] = {}, lane_sum = 0.0f;
#if FROM_INBOX
        const u32 launch = (u32)*b.num_launches + 1;
        for (int shard = lane; shard < NUM_PARTIALS; shard += 32) {
            float x[NUM_SUMS];
            receive<NUM_SUMS>(inbox_row(b.inbox, launch, shard) + NUM_PARAMETERS, launch, b.is_aborted, x);
#pragma unroll
            for (int k = 0; k < NUM_SUMS; k++) loss_sums[k] += x[k];
        }
        __syncwarp();
#else
        add_loss_sums(b.loss_sums, lane, loss_sums);
#endif
        const float step = *b.step + 1.0f, learning_rate = *b.learning_rate, was_exceeded = b.kl_exceeded[b.minibatch];
        const u32 num_launches = (u32)*b.num_launches + 1;
        const float scale = 1.0f / fmaxf(sum_over_warp(b.advantage_sums[b.minibatch * 3 * 32 + lane]), 1.0f);
#pragma unroll
        for (int k = 0; k < NUM_SUMS; k++)
            loss_sums[k] = sum_over_warp(loss_sums[k]) * scale, lane_sum = lane == k ? loss_sums[k] : lane_sum;
        const float kl_exceeded = fmaxf(was_exceeded, loss_sums[KL] > (float)b.target_kl ? 1.0f : 0.0f);
        if (lane == 0)
            step_values = {scale, kl_exceeded, step, learning_rate / (1.0f - powf(BETA1, step)),
                rsqrtf(1.0f - powf(BETA2, step)), num_launches};
        if (is_first_block) {
            if (lane < NUM_SUMS) {
                b.metrics[lane] += lane_sum / b.num_updates;
                if (!isfinite(lane_sum)) b.fault_rows[0] = 0;
            }
            if (lane == 0) b.kl_exceeded[b.minibatch + 1] = kl_exceeded;
        }
    }
    __syncthreads();
    if (thread >= 32) return;

    const auto [scale, kl_exceeded, step, step_size, root, num_launches] = step_values;
    float4 g[VECTORS_PER_THREAD];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS_PER_THREAD; i++) {
        float4& x = g[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (is_owner(i)) {
#pragma unroll
            for (int k = 0; k < THREADS_PER_VECTOR; k++) {
                const float4 sum = sums[k][i * VECTORS_PER_BLOCK + column];
                x.x += sum.x, x.y += sum.y, x.z += sum.z, x.w += sum.w;
            }
            x.x *= scale, x.y *= scale, x.z *= scale, x.w *= scale;
        }
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    const float squared_norm = sum_over_warp(squares);

    // Each block stores its squared norm together with the number of launches in one word, so that a norm of this launch is
    // distinguished from one of the launch before, and no other synchronisation is needed. The first block changes the metrics,
    // the step and the number of launches only after it has read the norms of all blocks, which have read these values by then.
    volatile u64* squared_norms = (volatile u64*)b.squared_norms;
    const double previous_norm = is_first_block && lane == 0 ? b.metrics[NUM_SUMS] : 0.0;
    if (lane == 0) squared_norms[blockIdx.x] = (u64)num_launches << 32 | __float_as_uint(squared_norm);
    u64 x[BLOCKS_PER_LANE];
    bool is_complete;
    do {
        is_complete = true;
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_LANE; k++) x[k] = squared_norms[min(32 * k + lane, NUM_BLOCKS - 1)];
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_LANE; k++) is_complete = is_complete && (u32)(x[k] >> 32) == num_launches;
    } while (!__all_sync(~0u, is_complete));
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < BLOCKS_PER_LANE; k++) sum += 32 * k + lane < NUM_BLOCKS ? __uint_as_float((u32)x[k]) : 0.0f;
    const float norm = sqrtf(sum_over_warp(sum));
    if (is_first_block && lane == 0) {
        b.metrics[NUM_SUMS] = previous_norm + norm / b.num_updates;
        if (!isfinite(norm)) b.fault_rows[1] = 0;
        if (kl_exceeded == 0.0f) *b.step = step;
        *b.num_launches = num_launches;
    }
    const float clip = fminf(__fdividef((float)b.max_grad_norm, norm + 1e-6f), 1.0f);
#pragma unroll
    for (int i = 0; i < VECTORS_PER_THREAD; i++) {
        if (!is_owner(i)) continue;
        const int vector = first_vector + i * VECTORS_PER_BLOCK;
        if (b.gradient) ((float4*)b.gradient)[vector] = g[i];
        if (kl_exceeded != 0.0f) continue;
        float *gs = &g[i].x, *ws = &w[i].x, *ms = &m[i].x, *vs = &v[i].x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float x = gs[k] * clip;
            ms[k] += (1.0f - BETA1) * (x - ms[k]), vs[k] = BETA2 * vs[k] + (1.0f - BETA2) * x * x;
            // v * rsqrt(v) is sqrt(v), and 0 for v = 0 because of the bound.
            ws[k] -= __fdividef(step_size * ms[k], vs[k] * rsqrtf(fmaxf(vs[k], SMALLEST_NORMAL)) * root + EPS);
        }
        if (!isfinite(w[i].x + w[i].y + w[i].z + w[i].w)) b.fault_rows[1] = 0;
        ((float4*)b.parameters)[vector] = w[i], ((float4*)b.exp_avg)[vector] = m[i], ((float4*)b.exp_avg_sq)[vector] = v[i];
    }
}
