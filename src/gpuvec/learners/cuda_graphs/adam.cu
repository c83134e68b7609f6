// A step of Adam (Kingma and Ba, 2015) for all parameters of a network, with a gradient that is clipped to a norm, in two kernels.
//
// A block has up to ELEMENTS elements of one tensor. `gradient_norm` computes the squared norm of the gradient of each block, and
// counts the step; `adam` adds these in a fixed order, so that runs are reproducible bit by bit. Where `found_inf` is 1 only the
// norm is computed.
//
// Macros: NUM_TENSORS, SIZES (elements of each tensor), PARAMETERS, GRADIENTS, EXP_AVG, EXP_AVG_SQ and STEPS (the addresses of
// each), NUM_BLOCKS, ELEMENTS, THREADS, BETA1, BETA2, LOG_BETA1, LOG_BETA2.
constexpr int WARPS = THREADS / 32, ELEMENTS_OF_THREAD = ELEMENTS / THREADS;

// The elements of a block.
struct Piece {
    float *parameter, *exp_avg, *exp_avg_sq;
    const float *gradient, *step;
    int size;
};

__device__ __forceinline__ Piece find_piece(const Batch& b) {
    constexpr int sizes[] = SIZES;
    float *const parameters[] = PARAMETERS, *const exp_avg[] = EXP_AVG, *const exp_avg_sq[] = EXP_AVG_SQ, *const steps[] = STEPS;
    const float* const gradients[] = GRADIENTS;
    Piece piece = {};
    int first_block = 0;
#pragma unroll
    for (int k = 0; k < NUM_TENSORS; k++) {
        const int first = ((int)blockIdx.x - first_block) * ELEMENTS;
        if (first >= 0 && first < sizes[k])
            piece = {parameters[k] + first, exp_avg[k] + first, exp_avg_sq[k] + first, gradients[k] + first, steps[k],
                min(ELEMENTS, sizes[k] - first)};
        first_block += (sizes[k] + ELEMENTS - 1) / ELEMENTS;
    }
    return piece;
}

__device__ __forceinline__ bool is_skipped(const Batch& b) { return b.found_inf && *b.found_inf == 1.0f; }

// Returns the sum over the block in all its threads; `warp_sums` has WARPS elements.
__device__ __forceinline__ float sum_over_block(float x, float* warp_sums) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += warp_sums[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_norm(const __grid_constant__ Batch b) {
    __shared__ float warp_sums[WARPS];
    const int thread = threadIdx.x;
    const Piece piece = find_piece(b);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < ELEMENTS_OF_THREAD; k++) {
        const int i = k * THREADS + thread;
        const float g = i < piece.size ? piece.gradient[i] : 0.0f;
        squares += g * g;
    }
    const float sum = sum_over_block(squares, warp_sums);
    if (thread == 0) b.squared_norms[blockIdx.x] = sum;
    if (blockIdx.x > 0 || is_skipped(b)) return;
    float* const steps[] = STEPS;
#pragma unroll
    for (int k = 0; k < NUM_TENSORS; k++)
        if (thread == k) *steps[k] += 1.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) adam(const __grid_constant__ Batch b) {
    __shared__ float warp_sums[WARPS];
    const int thread = threadIdx.x;
    const Piece piece = find_piece(b);
    float g[ELEMENTS_OF_THREAD], w[ELEMENTS_OF_THREAD], m[ELEMENTS_OF_THREAD], v[ELEMENTS_OF_THREAD], squares = 0.0f;
#pragma unroll
    for (int k = 0; k < ELEMENTS_OF_THREAD; k++) {
        const int i = k * THREADS + thread;
        const bool exists = i < piece.size;
        g[k] = exists ? piece.gradient[i] : 0.0f, w[k] = exists ? piece.parameter[i] : 0.0f;
        m[k] = exists ? piece.exp_avg[i] : 0.0f, v[k] = exists ? piece.exp_avg_sq[i] : 0.0f;
    }
    for (int i = thread; i < NUM_BLOCKS; i += THREADS) squares += b.squared_norms[i];
    const float norm = sqrtf(sum_over_block(squares, warp_sums));
    if (blockIdx.x == 0 && thread == 0) *b.norm = norm;
    if (is_skipped(b)) return;
    const float ratio = b.max_norm >= 0.0 ? norm / (float)b.max_norm : 1.0f, step = *piece.step;
    const float divisor = ratio <= 1.0f ? 1.0f : ratio;  // nan if the norm is nan
    const float step_size = *b.learning_rate / -expm1f(step * LOG_BETA1), root = sqrtf(-expm1f(step * LOG_BETA2));
#pragma unroll
    for (int k = 0; k < ELEMENTS_OF_THREAD; k++) {
        const int i = k * THREADS + thread;
        const float x = g[k] / divisor;
        m[k] += (1.0f - BETA1) * (x - m[k]), v[k] = BETA2 * v[k] + (1.0f - BETA2) * x * x;
        w[k] -= step_size * m[k] / (sqrtf(v[k]) / root + (float)b.eps);
        if (i < piece.size) piece.parameter[i] = w[k], piece.exp_avg[i] = m[k], piece.exp_avg_sq[i] = v[k];
    }
}
