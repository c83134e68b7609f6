// Iterations of PPO for a population: one block trains one agent, and keeps its weights and moments on its multiprocessor.
//
// layout.cuh has the macros and the memory of an agent. Between iterations, weights and moments are in global memory only when
// a launch begins and ends; the state of the environments is there after each rollout.
#include "rollout.cuh"
#include "update.cuh"
#include "values.cuh"

constexpr int NUM_METRICS = 11;
constexpr int FAULT_ROLLOUT = 1, FAULT_VALUES = 2, FAULT_GRADIENT = 3;

// Loads the parameters and moments of a network.
__device__ __forceinline__ void load_network(const Batch& b, SharedMemory& shared) {
    const Lane l;
    NetworkMemory& m = shared.networks[l.network];
    const i64 offset = (i64)blockIdx.x * AGENT_SIZE + l.network * NETWORK_SIZE;
    const SmallParameters small = small_parameters_of(b, shared, l.network);
    for (int p = l.thread; p < TAIL + TAIL_SIZE; p += NETWORK_THREADS) {
        const float weight = b.parameters[offset + p], second = b.exp_avg_sq[offset + p];
        if (p >= TAIL) {
            m.tail[0][p - TAIL] = weight, m.tail[1][p - TAIL] = b.exp_avg[offset + p], m.tail[2][p - TAIL] = second;
            continue;
        }
        if (SMALL_IN_SHARED) small.weights[p] = weight, small.exp_avg[p] = b.exp_avg[offset + p], small.exp_avg_sq[p] = second;
        store_small_weight(m, p / H, p % H, weight);
    }
#pragma unroll
    for (int j = 0; j < OWNED / 8; j++) {
        float weights[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 source = offset + SECOND_WEIGHTS + owned_output(8 * j + i, l) * H + owned_input(8 * j + i, l);
            const int target = (8 * j + i) / 4 * 4 * NETWORK_THREADS + 4 * l.thread + i % 4;
            weights[i] = b.parameters[source];
            if (OWNED_IN_SHARED) m.between.weights[target] = weights[i], m.between.exp_avg[target] = b.exp_avg[source];
            if (SECOND_MOMENTS_IN_SHARED) m.exp_avg_sq[target] = b.exp_avg_sq[source];
        }
        store_second_weights(m, j, weights, l);
    }
}
__device__ __forceinline__ void store_network(const Batch& b, SharedMemory& shared) {
    const Lane l;
    const NetworkMemory& m = shared.networks[l.network];
    const i64 offset = (i64)blockIdx.x * AGENT_SIZE + l.network * NETWORK_SIZE;
    for (int p = l.thread; p < TAIL && SMALL_IN_SHARED; p += NETWORK_THREADS)
        b.parameters[offset + p] = m.small[0][p], b.exp_avg[offset + p] = m.small[1][p],
            b.exp_avg_sq[offset + p] = m.small[2][p];
    if (const int p = l.thread; p < TAIL_SIZE) {
        b.parameters[offset + TAIL + p] = m.tail[0][p], b.exp_avg[offset + TAIL + p] = m.tail[1][p];
        b.exp_avg_sq[offset + TAIL + p] = m.tail[2][p];
    }
#pragma unroll
    for (int i = 0; i < OWNED; i++) {
        const i64 target = offset + SECOND_WEIGHTS + owned_output(i, l) * H + owned_input(i, l);
        const int source = i / 4 * 4 * NETWORK_THREADS + 4 * l.thread + i % 4;
        if (OWNED_IN_SHARED) b.parameters[target] = m.between.weights[source], b.exp_avg[target] = m.between.exp_avg[source];
        if (SECOND_MOMENTS_IN_SHARED) b.exp_avg_sq[target] = m.exp_avg_sq[source];
    }
}
__device__ __forceinline__ void load_agent(const Batch& b, SharedMemory& shared) {
    const i64 agent = blockIdx.x;
    if (threadIdx.x == 0)
        shared.settings = {(float)b.learning_rate[agent], (float)b.ent_coef[agent], (float)b.vf_coef[agent],
            (float)b.gamma[agent], (float)b.gae_lambda[agent], (float)b.clip[agent], (float)b.reward_scale[agent],
            1.0f / (float)b.max_grad_norm, b.adam_step[agent]};
    for (int e = threadIdx.x; e < ENVS; e += THREADS) {
        const i64 env = agent * ENVS + e;
        shared.episodes[e] = {b.running_return[env], b.running_length[env], b.last_return[env], 0.0, 0.0, 0.0f};
    }
}

__device__ __forceinline__ void store_agent(const Batch& b, const SharedMemory& shared) {
    for (int e = threadIdx.x; e < ENVS; e += THREADS) {
        const i64 env = (i64)blockIdx.x * ENVS + e;
        b.running_return[env] = shared.episodes[e].running_return, b.running_length[env] = shared.episodes[e].running_length;
        b.last_return[env] = shared.episodes[e].last_return;
    }
    if (threadIdx.x == 0) b.adam_step[blockIdx.x] = shared.settings.adam_step;
}

// The rollout, by a warp per environment; the other warps meanwhile compute the order of the samples, the factors of Adam's
// steps and, with four environments, values.
__device__ __forceinline__ void run_rollouts(const Batch& b, SharedMemory& shared, int launch_iteration) {
    const Lane l;
    const i64 agent = blockIdx.x, iteration = b.first_iteration + launch_iteration;
    constexpr int FIRST_FREE_WARP = ENVS <= 4 ? 4 : 0, FREE_THREADS = THREADS - 32 * FIRST_FREE_WARP;
    const int warp = 4 * l.network + l.warp, free_thread = (int)threadIdx.x - 32 * FIRST_FREE_WARP;
#pragma unroll 1
    for (int e = warp; e < ENVS; e += THREADS / 32) run_rollout(b, shared, agent, iteration, e, l);
    if (free_thread < 0) return;
    const float annealed = b.anneal_iterations ? fmaxf(1.0f - (float)iteration / (float)b.anneal_iterations, 0.0f) : 1.0f;
    for (int k = free_thread; k < UPDATES; k += FREE_THREADS)
        shared.step_factors[k] = make_step_factors(shared.settings.learning_rate * annealed, shared.settings.adam_step, k);
    constexpr int INDEX_BITS = bits_of(ROWS - 1);
    Samples& samples = samples_of(b, shared);
#pragma unroll 1
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        const Permutation permutation(b.order_seeds[agent], iteration + 1, epoch, ROWS, INDEX_BITS);
        for (int i = free_thread; i < ROWS; i += FREE_THREADS) samples.order[epoch * ROWS + i] = (unsigned short)permutation(i);
    }
    if (EARLY_TILES > 0) evaluate_early(shared, samples, l);
}

// Values, advantages and targets of the rollout, and the means of advantages by minibatch.
__device__ __forceinline__ void estimate(const Batch& b, SharedMemory& shared) {
    const Lane l;
    const int warp = 4 * l.network + l.warp;
    Samples& samples = samples_of(b, shared);
    evaluate_rest(shared, samples, l);
    __syncthreads();
#pragma unroll 1
    for (int e = warp; e < ENVS; e += THREADS / 32) estimate_advantages(shared, samples, e, l.lane);
    __syncthreads();
#pragma unroll 1
    for (int k = warp; k < UPDATES; k += THREADS / 32) summarize_advantages(shared, samples, k, l.lane);
    __syncthreads();
}

// Copies the records to global memory, for tests.
__device__ __forceinline__ void copy_records(const Batch& b, SharedMemory& shared) {
    const float* records = samples_of(b, shared).records[0];
    const i64 agent = blockIdx.x;
    for (int i = threadIdx.x; i < ROWS * RECORD; i += THREADS) b.records[agent * ROWS * RECORD + i] = records[i];
}

// The metrics of an iteration, by the first warp.
__device__ __forceinline__ void store_metrics(const Batch& b, SharedMemory& shared, int launch_iteration) {
    if (threadIdx.x) return;
    float num_ended = 0.0f, num_rows = 0.0f;  // episodes that ended in the iteration, and environments that have ended one
    double returns = 0.0, lengths = 0.0, last_returns = 0.0;
    for (int e = 0; e < ENVS; e++) {
        const Episode& episode = shared.episodes[e];
        num_ended += episode.num_ended, returns += episode.sum_returns, lengths += episode.sum_lengths;
        if (!isnan(episode.last_return)) last_returns += episode.last_return, num_rows += 1.0f;
    }
    constexpr float PER_SAMPLE = 1.0f / ((float)UPDATES * BATCH);
    const float *actor = shared.terms[0], *critic = shared.terms[1];
    const float metrics[NUM_METRICS] = {num_ended, (float)returns / num_ended, (float)lengths / num_ended,
        (float)last_returns / num_rows, num_rows / (float)ENVS, actor[0] * PER_SAMPLE,
        (critic[0] + LOSS_UNIT * critic[1]) * PER_SAMPLE, actor[1] * PER_SAMPLE, actor[2] * PER_SAMPLE, actor[3] * PER_SAMPLE,
        shared.norm_sum * (1.0f / UPDATES)};
    float* target = b.metrics + launch_iteration * NUM_METRICS * b.num_agents + blockIdx.x;
#pragma unroll
    for (int i = 0; i < NUM_METRICS; i++) target[i * b.num_agents] = metrics[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) train_population(const __grid_constant__ Batch b) {
    extern __shared__ __align__(1024) char dynamic_shared[];
    SharedMemory& shared = *(SharedMemory*)dynamic_shared;
    if (b.fault[blockIdx.x]) return;
    for (int i = threadIdx.x; i < (int)sizeof(SharedMemory) / 4; i += THREADS) ((u32*)dynamic_shared)[i] = 0;
    __syncthreads();
    load_agent(b, shared);
    load_network(b, shared);
    publish_stores();
    __syncthreads();
    // Few variables live over the updates, which need all registers.
    int fault = 0, i = 0;
#pragma unroll 1
    for (; i < (int)b.num_iterations && !fault; i++) {
        run_rollouts(b, shared, i);
        __syncthreads();
        estimate(b, shared);
        if (b.records) copy_records(b, shared);
        fault = shared.is_rollout_nonfinite ? FAULT_ROLLOUT : shared.is_value_nonfinite ? FAULT_VALUES : 0;
        if (!fault && !run_updates(b, shared)) fault = FAULT_GRADIENT;
        __syncthreads();
        store_metrics(b, shared, i);
        __syncthreads();
        if (threadIdx.x < 2 * NUM_TERMS) shared.terms[0][threadIdx.x] = 0.0f;
        if (threadIdx.x == 0) shared.norm_sum = 0.0f;
    }
    store_network(b, shared);
    store_agent(b, shared);
    if (fault && threadIdx.x == 0) b.fault[blockIdx.x] = fault, b.stopped_at[blockIdx.x] = b.first_iteration + i;
}
