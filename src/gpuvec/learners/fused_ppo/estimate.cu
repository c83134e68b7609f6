// How good the steps of a rollout were, and what is told of it: a thread goes back over a row's steps.
//
// Generalised advantages and targets, as in rollouts/advantage.py; the samples' records; returns and lengths of episodes,
// as in rollouts/episodes.py; rows with numbers that are not finite. Blocks leave what they summed up, and the last one adds that up in
// its order, so no sum hangs on chance.
//
// Given before, beside record.cuh's: THREADS, Batch.
#include "record.cuh"
#include "tensor_core.cuh"

static_assert(THREADS == 32, "a block is a warp");
constexpr int AHEAD = 16;  // steps that are read before any is added up
constexpr int TOGETHER = RECORD <= 4 ? 16 : RECORD <= 8 ? 8 : RECORD <= 16 ? 4 : 1;  // samples that are read before any is put down
constexpr int CHECKS = 4;
constexpr int BLANK = 0x7FFFFFFF;

struct BlockResult {
    float rows, episodes, returns, lengths, last, mean_advantage, spread_advantage, mean_target, spread_target;
    int nonfinite_row[CHECKS];  // the lowest row with a reward, log-probability, value or advantage that is not finite
};

struct Step {
    float reward, value, last, log_prob;
    bool terminated, ended;
};

// Sums over a warp, and least numbers, for all its threads: several side by side, so that what one waits, all of them wait together.
template <int N, typename T> __device__ __forceinline__ void sum(T (&x)[N]) {
#pragma unroll
    for (int other = 1; other < 32; other *= 2)
#pragma unroll
        for (int j = 0; j < N; j++) x[j] += __shfl_xor_sync(~0u, x[j], other);
}
template <int N> __device__ __forceinline__ void lowest(int (&x)[N]) {
#pragma unroll
    for (int other = 1; other < 32; other *= 2)
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = min(x[j], __shfl_xor_sync(~0u, x[j], other));
}

__device__ __forceinline__ void finish(const Batch& b) {
    enum { ROWS, EPISODES, RETURNS, LENGTHS, LAST, OF_ADVANTAGE, OF_TARGET, WHOLE };
    double whole[WHOLE] = {};
    int nonfinite[CHECKS] = {BLANK, BLANK, BLANK, BLANK};
    const BlockResult* results = (const BlockResult*)b.found;
    for (int k = threadIdx.x; k < gridDim.x; k += THREADS) {
        const BlockResult f = results[k];
        whole[ROWS] += f.rows, whole[EPISODES] += f.episodes, whole[RETURNS] += f.returns, whole[LENGTHS] += f.lengths, whole[LAST] += f.last;
        whole[OF_ADVANTAGE] += f.rows * f.mean_advantage, whole[OF_TARGET] += f.rows * f.mean_target;
#pragma unroll
        for (int j = 0; j < CHECKS; j++) nonfinite[j] = min(nonfinite[j], f.nonfinite_row[j]);
    }
    sum(whole), lowest(nonfinite);
    const double rows = whole[ROWS], episodes = whole[EPISODES];
    const double mean_advantage = whole[OF_ADVANTAGE] / rows, mean_target = whole[OF_TARGET] / rows;
    double spread[2] = {};  // of advantages and of targets
    for (int k = threadIdx.x; k < gridDim.x; k += THREADS) {
        const BlockResult f = results[k];
        const double a = f.mean_advantage - mean_advantage, t = f.mean_target - mean_target, count = f.rows * b.steps;
        spread[0] += f.spread_advantage + count * a * a, spread[1] += f.spread_target + count * t * t;
    }
    sum(spread);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int j = 0; j < CHECKS; j++) b.nonfinite_row[j] = nonfinite[j] == BLANK ? -1 : nonfinite[j];
        b.metrics[0] = episodes, b.metrics[1] = whole[RETURNS] / episodes, b.metrics[2] = whole[LENGTHS] / episodes;
        b.metrics[3] = whole[LAST] / rows, b.metrics[4] = 1.0 - spread[0] / spread[1];  // target - value is the advantage
        *b.iteration += 1, *b.arrived = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) estimate(const __grid_constant__ Batch b) {
    launch_next();
    wait_for_earlier();
    const i64 e = (i64)blockIdx.x * THREADS + threadIdx.x;
    const bool mine = e < b.rows;
    const float gamma = (float)b.gamma, decay = (float)(b.gamma * b.lambda), factor = (float)b.reward_scale;
    BlockResult f = {};
#pragma unroll
    for (int j = 0; j < CHECKS; j++) f.nonfinite_row[j] = BLANK;
    float mean[2] = {}, spread[2] = {};
    if (mine) {
        float total = 0.0f, after = b.value[b.steps * b.rows + e], done = 0.0f, rest = 0.0f, pivot[2], sums[2] = {}, squares[2] = {};
        int episodes = 0, length = 0;
        bool nonfinite[CHECKS] = {false, false, !isfinite(after), false};
        for (int t = (int)b.steps; t > 0;) {
            const int count = t >= AHEAD ? AHEAD : 1;
            Step steps[AHEAD];
            float advantage[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (k < count) {
                    const i64 at = (t - 1 - k) * b.rows + e;
                    steps[k] = {b.reward[at], b.value[at], b.last_value[at], b.log_prob[at], b.terminated[at], b.ended[at]};
                }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (k < count) {
                    const Step s = steps[k];
                    const i64 at = (t - 1 - k) * b.rows + e;
                    const float following = s.terminated ? 0.0f : s.ended ? s.last : after;  // chosen, not multiplied: it may be nan
                    const float delta = factor * s.reward + gamma * following - s.value;
                    total = s.ended ? delta : delta + decay * total, after = s.value;
                    const float both[2] = {total, total + s.value};
                    b.advantage[at] = both[0], b.target[at] = both[1];
                    advantage[k] = total;
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        if (t == b.steps && k == 0) pivot[j] = both[j];
                        const float x = both[j] - pivot[j];
                        sums[j] += x, squares[j] += x * x;
                    }
                    if (s.ended) length = episodes == 0 ? t - k : length, episodes++;
                    if (episodes) done += s.reward;
                    else rest += s.reward;
                    nonfinite[0] |= !isfinite(s.reward), nonfinite[1] |= !isfinite(s.log_prob), nonfinite[2] |= !isfinite(s.value), nonfinite[3] |= !isfinite(total);
                }
#pragma unroll
            for (int first = 0; first < AHEAD; first += TOGETHER) {
                Sample samples[TOGETHER];
#pragma unroll
                for (int k = 0; k < TOGETHER; k++)
                    if (first + k < count) samples[k].take((t - 1 - first - k) * b.rows + e, b.obs, b.action);
#pragma unroll
                for (int k = 0; k < TOGETHER; k++)
                    if (first + k < count) {
                        const Step s = steps[first + k];
                        const float a = advantage[first + k];
                        samples[k].put(b.records, (t - 1 - first - k) * b.rows + e, s.log_prob, a, a + s.value, true);
                    }
            }
            t -= count;
        }
        const bool any = episodes > 0;
        const float returns = any ? b.running_return[e] + done : 0.0f, lengths = any ? b.running_length[e] + length : 0.0f;
        const float last = any ? returns / episodes : b.last_return[e];
        b.last_return[e] = last;
        b.running_return[e] = (any ? 0.0f : b.running_return[e]) + rest;
        b.running_length[e] = (any ? 0.0f : b.running_length[e]) + (float)(b.steps - length);
        f.rows = 1.0f, f.episodes = (float)episodes, f.returns = returns, f.lengths = lengths, f.last = last;
#pragma unroll
        for (int j = 0; j < 2; j++) mean[j] = pivot[j] + sums[j] / b.steps, spread[j] = fmaxf(squares[j] - sums[j] * sums[j] / b.steps, 0.0f);
#pragma unroll
        for (int j = 0; j < CHECKS; j++) f.nonfinite_row[j] = nonfinite[j] ? (int)e : BLANK;
    }
    float whole[] = {f.rows, f.episodes, f.returns, f.lengths, f.last, mean[0], mean[1]};
    sum(whole), lowest(f.nonfinite_row);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float off = mean[j] - whole[5 + j] / whole[0];
        spread[j] = mine ? spread[j] + (float)b.steps * off * off : 0.0f;
    }
    sum(spread);
    f.rows = whole[0], f.episodes = whole[1], f.returns = whole[2], f.lengths = whole[3], f.last = whole[4];
    f.mean_advantage = whole[5] / whole[0], f.spread_advantage = spread[0], f.mean_target = whole[6] / whole[0], f.spread_target = spread[1];
    bool closes = false;
    if (threadIdx.x == 0) {
        ((BlockResult*)b.found)[blockIdx.x] = f;
        __threadfence();
        closes = atomicAdd((u32*)b.arrived, 1u) == gridDim.x - 1;
    }
    closes = __shfl_sync(~0u, (int)closes, 0);
    if (closes) {
        __threadfence();
        finish(b);
    }
}
