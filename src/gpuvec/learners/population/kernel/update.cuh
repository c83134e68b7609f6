// The updates of an iteration: gradients, their norm over both networks, and the steps of Adam.
//
// FP32 weights and moments of the second layer belong to the thread that has the matching sum of the gradient, in registers,
// but for the second moments, which are in shared memory, or in global memory where they do not fit. The small parameters are
// distributed over the threads in order.
#pragma once
#include "adam.cuh"
#include "gradient.cuh"

// Sum i of a thread of the second weights is the weight of this output and input.
__device__ __forceinline__ int owned_output(int i, const Lane& l) { return 16 * l.warp + l.g + (i >> 1 & 1) * 8; }
__device__ __forceinline__ int owned_input(int i, const Lane& l) { return i / 4 * 8 + 2 * l.t + (i & 1); }

// Stores 16 columns of the second weights as FP16, j-th of four, and in the transposed copy, if there is one.
__device__ __forceinline__ void store_second_weights(NetworkMemory& m, int j, const float* weights, const Lane& l) {
    u32 fragment[4];
#pragma unroll
    for (int i = 0; i < 4; i++) fragment[i] = pack_halves(weights[2 * i], weights[2 * i + 1]);
    Operands::store_weights(shared_address(m.w2), shared_address(m.w2_transposed), j, fragment, l.warp, l.lane);
}
// Stores a small parameter as FP16 to the places where products read it.
__device__ __forceinline__ void store_small_weight(NetworkMemory& m, int column, int unit, float weight) {
    const half x = to_half(weight);
    auto edge = [&](int c) -> half& { return m.edge[edge_position(unit, c)]; };
    const int output = column - LAST_WEIGHTS;
    edge(column <= D ? column : output >= 0 ? OUTPUT_COLUMNS + output : BIAS_COLUMN) = x;
    if (HAS_TRANSPOSED_COPIES && output >= 0) m.w3[tile_position(output, unit)] = x;
}

// Stores the gradients of the small parameters by column, and returns the sum of the squares of this thread's gradients.
__device__ __forceinline__ float store_small_gradients(NetworkMemory& m, const GradientSums& sums, const Lane& l) {
    float squares = 0.0f, other_squares = 0.0f, *gradients = m.small_gradient();
    auto store = [&](int column, int i, float gradient) {
        gradients[column * GRADIENT_PITCH + owned_output(i, l)] = gradient;
        squares += gradient * gradient;
    };
#pragma unroll
    for (int i = 0; i < OWNED; i += 2) squares += sums.w2[i] * sums.w2[i], other_squares += sums.w2[i + 1] * sums.w2[i + 1];
#pragma unroll
    for (int i = 0; i < X / 2; i++)
        if (owned_input(i, l) <= D) store(owned_input(i, l), i, sums.w1[i]);
    if (LAYERS == 2 && l.t == 0) store(SECOND_BIAS, 0, sums.w2[32]), store(SECOND_BIAS, 2, sums.w2[34]);
#pragma unroll
    for (int i = 0; i < Z / 2; i++) {
        const int column = owned_input(i, l);
        if (column < OUTPUTS) store(LAST_WEIGHTS + column, i, sums.w3[i]);
        if (i % 4 < 2 && column < DERIVATIVES && l.warp == 0 && l.g == 0) {
            gradients[COLUMNS * GRADIENT_PITCH + column] = sums.ones[i];
            squares += sums.ones[i] * sums.ones[i];
        }
    }
    return squares + other_squares;
}
// Adds the terms of the metrics of a minibatch, and the norm of its gradient.
__device__ __forceinline__ void add_terms(SharedMemory& shared, const Lane& l, const GradientSums& sums, float norm) {
#pragma unroll
    for (int i = 0; i < Z / 2; i++) {
        const int term = owned_input(i, l) - DERIVATIVES;
        if (i % 4 < 2 && l.warp == 0 && l.g == 0 && term >= 0 && term < NUM_TERMS)
            shared.terms[l.network][term] += sums.ones[i];
    }
    if (l.thread == 0 && l.network == 0) shared.norm_sum += norm;
}

// Copies the gradient to global memory, for tests: the layout is that of the parameters.
__device__ __forceinline__ void copy_gradient(const Batch& b, const SharedMemory& shared, int network,
    const GradientSums& sums) {
    const Lane l(network);
    const NetworkMemory& m = shared.networks[l.network];
    float* target = b.gradient + (i64)blockIdx.x * AGENT_SIZE + l.network * NETWORK_SIZE;
#pragma unroll
    for (int i = 0; i < OWNED; i++)
        target[SECOND_WEIGHTS + owned_output(i, l) * H + owned_input(i, l)] = sums.w2[i] * (1.0f / BATCH);
#pragma unroll 1
    for (int p = l.thread; p < TAIL; p += NETWORK_THREADS)
        target[p] = m.small_gradient()[p / H * GRADIENT_PITCH + p % H] * (1.0f / BATCH);
    if (l.thread < DERIVATIVES)
        target[TAIL + l.thread] = m.small_gradient()[COLUMNS * GRADIENT_PITCH + l.thread] * (1.0f / BATCH);
}

// A small parameter of a thread in registers. Those of a group are loaded before any is stored: a load behind a store waits for
// the step of the parameter before it.
struct SmallParameter {
    float weight, exp_avg, exp_avg_sq, gradient;
};
// Steps of Adam for COUNT of the small parameters of a thread, from slot `first` on.
template <int COUNT> __device__ __forceinline__ void step_small(
    NetworkMemory& m, const SmallParameters& s, int first, const StepFactors& f, const Lane& l) {
    SmallParameter x[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        // A thread without a parameter in the last slot loads its first one, which no other thread stores.
        const int slot = (first + i) * NETWORK_THREADS + l.thread, p = slot < TAIL ? slot : l.thread;
        x[i] = {s.weights[p], s.exp_avg[p], s.exp_avg_sq[p], m.small_gradient()[p / H * GRADIENT_PITCH + p % H]};
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) step_of_adam(x[i].weight, x[i].exp_avg, x[i].exp_avg_sq, x[i].gradient, f);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int p = (first + i) * NETWORK_THREADS + l.thread;
        if (p >= TAIL) continue;
        s.weights[p] = x[i].weight, s.exp_avg[p] = x[i].exp_avg, s.exp_avg_sq[p] = x[i].exp_avg_sq;
        store_small_weight(m, p / H, p % H, x[i].weight);
    }
}
// The same for the last biases and the logarithms of the standard deviations. Threads that have none compute a step of zeros,
// because a branch would keep the step from running beside those of other parameters.
__device__ __forceinline__ void step_tail(NetworkMemory& m, const StepFactors& f, const Lane& l) {
    const int p = l.thread;
    SmallParameter x = {};
    if (p < DERIVATIVES) x = {m.tail[0][p], m.tail[1][p], m.tail[2][p], m.small_gradient()[COLUMNS * GRADIENT_PITCH + p]};
    step_of_adam(x.weight, x.exp_avg, x.exp_avg_sq, x.gradient, f);
    if (p < DERIVATIVES) m.tail[0][p] = x.weight, m.tail[1][p] = x.exp_avg, m.tail[2][p] = x.exp_avg_sq;
}
// Both, for all small parameters of a thread.
__device__ __forceinline__ void step_all_small(const Batch& b, SharedMemory& shared, const StepFactors& f, const Lane& l) {
    constexpr int GROUP = 4, REST = SMALL_SLOTS % GROUP;
    NetworkMemory& m = shared.networks[l.network];
    const SmallParameters s = small_parameters_of(b, shared, l.network);
#pragma unroll
    for (int first = 0; first + GROUP <= SMALL_SLOTS; first += GROUP) step_small<GROUP>(m, s, first, f, l);
    if constexpr (REST > 0) step_small<REST>(m, s, SMALL_SLOTS - REST, f, l);
    step_tail(m, f, l);
}

// The norm of the gradient over both networks, whose squares the warps have stored.
__device__ __forceinline__ float gradient_norm(const SharedMemory& shared, int update) {
    const float4 *squares = (const float4*)shared.squared_norms[update & 1], actor = squares[0], critic = squares[1];
    const float sum = ((actor.x + actor.y) + (actor.z + actor.w)) + ((critic.x + critic.y) + (critic.z + critic.w));
    return square_root(sum) * (1.0f / BATCH);
}

// The place of sums i and i + 1 of a thread in an array of global memory that has the layout of the parameters.
__device__ __forceinline__ float2& owned_pair(float* flat, int i, const Lane& l) {
    float* network = flat + (i64)blockIdx.x * AGENT_SIZE + l.network * NETWORK_SIZE + SECOND_WEIGHTS;
    return *(float2*)(network + owned_output(i, l) * H + owned_input(i, l));
}
__device__ __forceinline__ void load_pairs(float* flat, float (&x)[OWNED + 1], const Lane& l) {
#pragma unroll
    for (int i = 0; i < OWNED; i += 2) {
        const float2 pair = owned_pair(flat, i, l);
        x[i] = pair.x, x[i + 1] = pair.y;
    }
}
__device__ __forceinline__ void store_pairs(float* flat, const float (&x)[OWNED + 1], const Lane& l) {
#pragma unroll
    for (int i = 0; i < OWNED; i += 2) owned_pair(flat, i, l) = make_float2(x[i], x[i + 1]);
}

// Loads second weights and first moments from where they are between updates, and stores them there.
__device__ __forceinline__ void load_owned(const Batch& b, const SharedMemory& shared, int network, float (&weights)[OWNED + 1],
    float (&exp_avg)[OWNED + 1]) {
    const Lane l(network);
    if (!OWNED_IN_SHARED) return load_pairs(b.parameters, weights, l), load_pairs(b.exp_avg, exp_avg, l);
    const BetweenUpdates& between = shared.networks[l.network].between;
#pragma unroll
    for (int i = 0; i < OWNED / 4; i++) {
        const float4 w = ((const float4*)between.weights)[i * NETWORK_THREADS + l.thread];
        const float4 a = ((const float4*)between.exp_avg)[i * NETWORK_THREADS + l.thread];
        weights[4 * i] = w.x, weights[4 * i + 1] = w.y, weights[4 * i + 2] = w.z, weights[4 * i + 3] = w.w;
        exp_avg[4 * i] = a.x, exp_avg[4 * i + 1] = a.y, exp_avg[4 * i + 2] = a.z, exp_avg[4 * i + 3] = a.w;
    }
}
__device__ __forceinline__ void store_owned(const Batch& b, SharedMemory& shared, int network, const float (&weights)[OWNED + 1],
    const float (&exp_avg)[OWNED + 1]) {
    const Lane l(network);
    if (!OWNED_IN_SHARED) return store_pairs(b.parameters, weights, l), store_pairs(b.exp_avg, exp_avg, l);
    BetweenUpdates& between = shared.networks[l.network].between;
#pragma unroll
    for (int i = 0; i < OWNED / 4; i++) {
        const float *w = weights + 4 * i, *a = exp_avg + 4 * i;
        ((float4*)between.weights)[i * NETWORK_THREADS + l.thread] = make_float4(w[0], w[1], w[2], w[3]);
        ((float4*)between.exp_avg)[i * NETWORK_THREADS + l.thread] = make_float4(a[0], a[1], a[2], a[3]);
    }
}

// The gradient of a minibatch times its size: in `sums`, and that of the small parameters in shared memory, with the sums of
// squares of each warp. Positions and addresses are computed here, so that they occupy no registers over the loop. Second moments
// that are in global memory are loaded, because the norm can be computed meanwhile.
__device__ __forceinline__ void compute_gradient(const Batch& b, SharedMemory& shared, int network, int update,
    GradientSums& sums, float (&exp_avg_sq)[OWNED + 1]) {
    add_gradient<false>(b, shared, network, update, 0, sums);
#pragma unroll 1
    for (int pass = 1; pass < PASSES; pass++) add_gradient<true>(b, shared, network, update, pass, sums);
    const Lane l(network);
    complete(sums.w1), complete(sums.w3), complete(sums.ones);
    if (LAYERS == 2) complete(sums.w2);
    if (!SECOND_MOMENTS_IN_SHARED) load_pairs(b.exp_avg_sq, exp_avg_sq, l);
    // The products of all warps have read what the gradients take the place of.
    if (!SMALL_IN_SHARED) sync_warpgroup(l.network);
    const float squares = sum_over_warp(store_small_gradients(shared.networks[l.network], sums, l));
    if (l.lane == 0) shared.squared_norms[update & 1][4 * l.network + l.warp] = squares;
}

// Multiplies the moments by the powers of their decays, after `count` updates of a group. A thread has the moments of which it
// makes the steps.
__device__ __forceinline__ void decay_moments(const Batch& b, SharedMemory& shared, int network, float (&exp_avg)[OWNED + 1],
    int count) {
    const Lane l(network);
    NetworkMemory& m = shared.networks[l.network];
    const float decay1 = exp2f(LOG2_BETA1 * count), decay2 = exp2f(LOG2_BETA2 * count);
#pragma unroll
    for (int i = 0; i < OWNED; i++) exp_avg[i] *= decay1;
#pragma unroll
    for (int i = 0; i < OWNED / 4; i++) {
        if (SECOND_MOMENTS_IN_SHARED) {
            float4& v = ((float4*)m.exp_avg_sq)[i * NETWORK_THREADS + l.thread];
            v = make_float4(v.x * decay2, v.y * decay2, v.z * decay2, v.w * decay2);
        } else {
            float2 &v = owned_pair(b.exp_avg_sq, 4 * i, l), &w = owned_pair(b.exp_avg_sq, 4 * i + 2, l);
            v = make_float2(v.x * decay2, v.y * decay2), w = make_float2(w.x * decay2, w.y * decay2);
        }
    }
    const SmallParameters s = small_parameters_of(b, shared, l.network);
#pragma unroll 1
    for (int p = l.thread; p < TAIL; p += NETWORK_THREADS)
        s.exp_avg[p] *= decay1, s.exp_avg_sq[p] *= decay2;
    if (l.thread < TAIL_SIZE) m.tail[1][l.thread] *= decay1, m.tail[2][l.thread] *= decay2;
}

// The factors of a step of Adam for the sums of a gradient whose norm is `norm`.
__device__ __forceinline__ StepFactors scaled_factors(const SharedMemory& shared, int update, float norm) {
    const StepFactors f = shared.step_factors[update];
    const float scale = reciprocal(fmaxf(norm * shared.settings.inverse_max_norm, 1.0f)) * (1.0f / BATCH);
    return {f.rate, f.root, f.first * scale, f.second * scale * scale};
}

// A step of Adam with the gradient `sums`, whose norm over both networks is `norm`.
__device__ __forceinline__ void step_network(const Batch& b, SharedMemory& shared, int network, const StepFactors& f,
    float norm, const GradientSums& sums, float (&weights)[OWNED + 1], float (&exp_avg)[OWNED + 1],
    float (&exp_avg_sq)[OWNED + 1]) {
    const Lane l(network);
    NetworkMemory& m = shared.networks[l.network];
    // All moments first, so that no store is between their loads.
#pragma unroll
    for (int i = 0; i < OWNED && !SECOND_MOMENTS_IN_SHARED; i++)
        step_of_adam(weights[i], exp_avg[i], exp_avg_sq[i], sums.w2[i], f);
    if (!SECOND_MOMENTS_IN_SHARED) store_pairs(b.exp_avg_sq, exp_avg_sq, l);
#pragma unroll
    for (int i = 0; i < OWNED / 4 && SECOND_MOMENTS_IN_SHARED; i++) {
        float4& at = ((float4*)m.exp_avg_sq)[i * NETWORK_THREADS + l.thread];
        float4 v = at;
        float *w = weights + 4 * i, *a = exp_avg + 4 * i;
        const float* s = sums.w2 + 4 * i;
        step_of_adam(w[0], a[0], v.x, s[0], f), step_of_adam(w[1], a[1], v.y, s[1], f);
        step_of_adam(w[2], a[2], v.z, s[2], f), step_of_adam(w[3], a[3], v.w, s[3], f);
        at = v;
    }
    add_terms(shared, l, sums, norm);
    step_all_small(b, shared, f, l);
#pragma unroll
    for (int j = 0; j < OWNED / 8; j++) store_second_weights(m, j, weights + 8 * j, l);
    publish_stores();
    sync_warpgroup(l.network);
}

// Trains both networks for `b.num_updates` minibatches. Returns whether all gradients were finite; the update of one that is
// not is not made, and it is the last.
__device__ __forceinline__ bool run_updates(const Batch& b, SharedMemory& shared) {
    const int network = Lane().network;
    float weights[OWNED + 1], exp_avg[OWNED + 1];
    load_owned(b, shared, network, weights, exp_avg);
    __syncthreads();  // activations take the place of what was loaded
    bool is_finite = true;
    int k = 0;
#pragma unroll 1
    while (k < (int)b.num_updates && is_finite) {
        const int first = k, end = k + min(DECAY_GROUP, (int)b.num_updates - k);
        GradientSums sums;
#pragma unroll 1
        for (; k < end; k++) {
            float exp_avg_sq[OWNED + 1];
            compute_gradient(b, shared, network, k, sums, exp_avg_sq);
            __syncthreads();
            const float norm = gradient_norm(shared, k);
            const StepFactors factors = scaled_factors(shared, k, norm);
            is_finite = isfinite(norm);
            if (!is_finite) break;
            step_network(b, shared, network, factors, norm, sums, weights, exp_avg, exp_avg_sq);
        }
        if (b.gradient && k == (int)b.num_updates) copy_gradient(b, shared, network, sums);
        decay_moments(b, shared, network, exp_avg, k - first);
    }
    __syncthreads();
    store_owned(b, shared, network, weights, exp_avg);
    if (threadIdx.x == 0) shared.settings.adam_step += (float)k;
    return is_finite;
}
