// Advantages, targets, records, metrics and fault rows of a rollout. A thread goes through the steps of a row from the last to
// the first.
//
// Advantages and targets are those of estimators/advantage.py, returns and lengths of episodes those of
// estimators/episode_statistics.py. Each block stores its sums, and the last block to finish adds them up in the order of the
// blocks, so that results do not depend on the order of execution.
//
// With IS_SHARD the metrics are the totals of a shard, from which `pool_totals` computes those of all shards.
//
// Macros, besides those of record.cuh and observation.cuh: GAUSSIAN, THREADS, IS_SHARD.
#include "observation.cuh"
#include "record.cuh"

static_assert(THREADS == 32, "a block is a warp");
// Steps that are loaded before one is computed, so that the latencies of these loads overlap.
constexpr int PREFETCHED_STEPS = 16;
// Records that are loaded before one is stored, as many as there are registers for.
constexpr int PREFETCHED_RECORDS = RECORD_SIZE <= 4 ? 16 : RECORD_SIZE <= 8 ? 8 : RECORD_SIZE <= 16 ? 4 : 1;
constexpr int NUM_CHECKS = 4;  // of rewards, log-probabilities, values and advantages
constexpr int NO_FAULT = 0x7FFFFFFF;

// Sums over rows, those of `episode_metrics` in episode_statistics.py, where each row has acted.
enum { EPISODES, RETURNS, LENGTHS, LAST_RETURNS, ENDED_ROWS, ROWS, NUM_ROW_SUMS };

// The sums over the rows of a block; means and sums of squared deviations over its samples; and the lowest rows with a fault.
struct BlockResult {
    double sums[NUM_ROW_SUMS];
    float mean_advantage, squares_advantage, mean_target, squares_target;
    int fault_rows[NUM_CHECKS];
};

struct Record {
    float x[RECORD_SIZE];

    // Loads the features and the action of a sample.
    __device__ __forceinline__ void load(const Batch& b, i64 sample) {
        const float* row = observation(b, b.obs, sample);
        float features[FEATURES];
        if (FEATURES % 4 == 0) {
#pragma unroll
            for (int k = 0; k < FEATURES / 4; k++) {
                const float4 four = ((const float4*)row)[k];
                features[4 * k] = four.x, features[4 * k + 1] = four.y, features[4 * k + 2] = four.z,
                            features[4 * k + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int k = 0; k < FEATURES; k++) features[k] = row[k];
        }
#pragma unroll
        for (int k = 0; k < FEATURE_WORDS; k++)
            x[k] = __uint_as_float(pack_halves(input_column(b.moments, features, 2 * k), input_column(b.moments, features, 2 * k + 1)));
#pragma unroll
        for (int k = 0; k < ACTION_SIZE; k++)
            x[ACTION + k] = GAUSSIAN ? ((const float*)b.action)[sample * ACTION_SIZE + k]
                                     : (float)((const i64*)b.action)[sample * ACTION_SIZE + k];
    }

    // Adds the other fields, and stores the record of a sample.
    __device__ __forceinline__ void store(float* records, i64 sample, float log_prob, float advantage, float target) {
        x[LOG_PROB] = log_prob, x[ADVANTAGE] = advantage, x[TARGET] = target;
#pragma unroll
        for (int k = TARGET + 1; k < RECORD_SIZE; k++) x[k] = 0.0f;
#pragma unroll
        for (int k = 0; k < RECORD_SIZE / 4; k++)
            ((float4*)records)[sample * (RECORD_SIZE / 4) + k] =
                make_float4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
    }
};
static_assert(!HAS_MASK && !HAS_ACTION_MASK, "environments of one agent without masks");

struct Step {
    float reward, value, final_value, log_prob;
    bool terminated, ended;
};

// Reductions of N numbers over a warp, side by side, so that their latencies overlap.
template <int N, typename T> __device__ __forceinline__ void sum_all(T (&x)[N]) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2)
#pragma unroll
        for (int j = 0; j < N; j++) x[j] += __shfl_xor_sync(~0u, x[j], offset);
}
template <int N> __device__ __forceinline__ void min_all(int (&x)[N]) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2)
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = min(x[j], __shfl_xor_sync(~0u, x[j], offset));
}

// Computes the metrics and the fault rows from the results of all blocks.
__device__ __forceinline__ void write_metrics(const Batch& b) {
    constexpr int ADVANTAGES = NUM_ROW_SUMS, TARGETS = ADVANTAGES + 1;
    double totals[TARGETS + 1] = {};
    int fault_rows[NUM_CHECKS] = {NO_FAULT, NO_FAULT, NO_FAULT, NO_FAULT};
    const BlockResult* results = (const BlockResult*)b.block_results;
    for (int k = threadIdx.x; k < gridDim.x; k += THREADS) {
        const BlockResult r = results[k];
#pragma unroll
        for (int j = 0; j < NUM_ROW_SUMS; j++) totals[j] += r.sums[j];
        totals[ADVANTAGES] += r.sums[ROWS] * r.mean_advantage, totals[TARGETS] += r.sums[ROWS] * r.mean_target;
#pragma unroll
        for (int j = 0; j < NUM_CHECKS; j++) fault_rows[j] = min(fault_rows[j], r.fault_rows[j]);
    }
    sum_all(totals), min_all(fault_rows);
    const double num_rows = totals[ROWS], episodes = totals[EPISODES], ended_rows = totals[ENDED_ROWS];
    const double mean_advantage = totals[ADVANTAGES] / num_rows, mean_target = totals[TARGETS] / num_rows;
    double squares[2] = {};  // squared deviations of advantages and of targets
    for (int k = threadIdx.x; k < gridDim.x; k += THREADS) {
        const BlockResult r = results[k];
        const double a = r.mean_advantage - mean_advantage, t = r.mean_target - mean_target, count = r.sums[ROWS] * b.num_steps;
        squares[0] += r.squares_advantage + count * a * a, squares[1] += r.squares_target + count * t * t;
    }
    sum_all(squares);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int j = 0; j < NUM_CHECKS; j++) b.fault_rows[j] = fault_rows[j] == NO_FAULT ? -1 : fault_rows[j];
#if IS_SHARD
#pragma unroll
        for (int j = 0; j < NUM_ROW_SUMS; j++) b.metrics[j] = totals[j];
        double* moments = b.metrics + NUM_ROW_SUMS;
        moments[0] = mean_advantage, moments[1] = squares[0], moments[2] = mean_target, moments[3] = squares[1];
#else
        b.metrics[0] = episodes, b.metrics[1] = totals[RETURNS] / episodes, b.metrics[2] = totals[LENGTHS] / episodes;
        b.metrics[3] = totals[LAST_RETURNS] / ended_rows, b.metrics[4] = ended_rows / num_rows;
        // The advantage is target - value, so this is the share of the targets' variance that V explains.
        b.metrics[5] = 1.0 - squares[0] / squares[1];
#endif
        *b.iteration += 1, *b.num_finished_blocks = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) estimate(const __grid_constant__ Batch b) {
    launch_dependents();
    wait_for_previous();
    const i64 e = (i64)blockIdx.x * THREADS + threadIdx.x;
    const bool has_row = e < b.num_rows;
    const float gamma = (float)b.gamma, decay = (float)(b.gamma * b.gae_lambda), reward_scale = (float)b.reward_scale;
    BlockResult result = {};
#pragma unroll
    for (int j = 0; j < NUM_CHECKS; j++) result.fault_rows[j] = NO_FAULT;
    float mean[2] = {}, squares[2] = {};  // of advantages and targets
    if (has_row) {
        float total = 0.0f, next_value = b.value[b.num_steps * b.num_rows + e];
        // Of the steps behind those that the loop has come to, up to an end: of the running episode, of the last one that ended,
        // and of all others.
        double later_return = 0.0, rest_return = 0.0, last_return = 0.0;
        float pivot[2], sums[2] = {}, sums_of_squares[2] = {};
        int episodes = 0, length = 0;
        bool has_fault[NUM_CHECKS] = {false, false, !isfinite(next_value), false};
        for (int t = (int)b.num_steps; t > 0;) {
            const int count = t >= PREFETCHED_STEPS ? PREFETCHED_STEPS : 1;
            Step steps[PREFETCHED_STEPS];
            float advantage[PREFETCHED_STEPS];
#pragma unroll
            for (int k = 0; k < PREFETCHED_STEPS; k++)
                if (k < count) {
                    const i64 sample = (t - 1 - k) * b.num_rows + e;
                    steps[k] = {b.reward[sample], b.value[sample], b.final_value[sample], b.log_prob[sample],
                        b.terminated[sample], b.ended[sample]};
                }
#pragma unroll
            for (int k = 0; k < PREFETCHED_STEPS; k++)
                if (k < count) {
                    const Step s = steps[k];
                    const i64 sample = (t - 1 - k) * b.num_rows + e;
                    // A choice and not a product with a flag, because values that are not used may be nan.
                    const float following = s.terminated ? 0.0f : s.ended ? s.final_value : next_value;
                    const float delta = reward_scale * s.reward + gamma * following - s.value;
                    total = s.ended ? delta : delta + decay * total, next_value = s.value;
                    const float estimates[2] = {total, total + s.value};
                    b.advantage[sample] = estimates[0], b.target[sample] = estimates[1];
                    advantage[k] = total;
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        if (t == b.num_steps && k == 0) pivot[j] = estimates[j];
                        const float x = estimates[j] - pivot[j];
                        sums[j] += x, sums_of_squares[j] += x * x;
                    }
                    if (s.ended) {
                        if (episodes == 0) rest_return = later_return, later_return = 0.0, length = t - k;
                        if (episodes == 1) last_return = later_return;
                        episodes++;
                    }
                    later_return += s.reward;
                    has_fault[0] |= !isfinite(s.reward), has_fault[1] |= !isfinite(s.log_prob),
                        has_fault[2] |= !isfinite(s.value), has_fault[3] |= !isfinite(total);
                }
#pragma unroll
            for (int first = 0; first < PREFETCHED_STEPS; first += PREFETCHED_RECORDS) {
                Record records[PREFETCHED_RECORDS];
#pragma unroll
                for (int k = 0; k < PREFETCHED_RECORDS; k++)
                    if (first + k < count) records[k].load(b, (t - 1 - first - k) * b.num_rows + e);
#pragma unroll
                for (int k = 0; k < PREFETCHED_RECORDS; k++)
                    if (first + k < count) {
                        const Step s = steps[first + k];
                        const float a = advantage[first + k];
                        records[k].store(b.records, (t - 1 - first - k) * b.num_rows + e, s.log_prob, a, a + s.value);
                    }
            }
            t -= count;
        }
        const bool any_end = episodes > 0;
        if (!any_end) rest_return = later_return;
        const double running_return = b.running_return[e], running_length = b.running_length[e];
        const double returns = any_end ? running_return + later_return : 0.0, lengths = any_end ? running_length + length : 0.0;
        last_return = episodes > 1 ? last_return : any_end ? returns : b.last_return[e];
        b.last_return[e] = last_return;
        b.running_return[e] = (any_end ? 0.0 : running_return) + rest_return;
        b.running_length[e] = (any_end ? 0.0 : running_length) + (b.num_steps - length);
        const bool has_ended = !isnan(last_return);
        const double row_sums[] = {(double)episodes, returns, lengths, has_ended ? last_return : 0.0, (double)has_ended, 1.0};
#pragma unroll
        for (int j = 0; j < NUM_ROW_SUMS; j++) result.sums[j] = row_sums[j];
#pragma unroll
        for (int j = 0; j < 2; j++)
            mean[j] = pivot[j] + sums[j] / b.num_steps,
            squares[j] = fmaxf(sums_of_squares[j] - sums[j] * sums[j] / b.num_steps, 0.0f);
#pragma unroll
        for (int j = 0; j < NUM_CHECKS; j++) result.fault_rows[j] = has_fault[j] ? (int)e : NO_FAULT;
    }
    float means[] = {mean[0], mean[1]};
    sum_all(result.sums), sum_all(means), min_all(result.fault_rows);
    const float num_rows = (float)result.sums[ROWS];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float deviation = mean[j] - means[j] / num_rows;
        squares[j] = has_row ? squares[j] + (float)b.num_steps * deviation * deviation : 0.0f;
    }
    sum_all(squares);
    result.mean_advantage = means[0] / num_rows, result.squares_advantage = squares[0],
    result.mean_target = means[1] / num_rows, result.squares_target = squares[1];
    bool is_last_block = false;
    if (threadIdx.x == 0) {
        ((BlockResult*)b.block_results)[blockIdx.x] = result;
        __threadfence();
        is_last_block = atomicAdd((u32*)b.num_finished_blocks, 1u) == gridDim.x - 1;
    }
    is_last_block = __shfl_sync(~0u, (int)is_last_block, 0);
    if (is_last_block) {
        __threadfence();
        write_metrics(b);
    }
}
