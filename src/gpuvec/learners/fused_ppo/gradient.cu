// The gradient of PPO's objective over a minibatch, for actor and critic: what each block sums up of it.
//
// Even blocks have the actor, odd ones the critic. A block takes tiles of samples in the epoch's order: what the network gives, what
// the objective makes of it, and back; activations stay in registers, and lie in shared memory only for the products that sum over
// samples. Gradients are of single samples, not divided by their number, which FP16 would lose. No sum hangs on the order in which
// blocks come, so a run can be repeated bit by bit.
//
// Given before, beside what network.cuh and objective.cuh ask for: WARPS, TILES (16 rows each, of a warp), BLOCKS (of a
// multiprocessor), SPACE (bytes of a block), IN_PLACE_GRADIENTS (whether derivatives take the place of what they are derived from, at the price of
// barriers), Batch.
#include "network.cuh"
#include "objective.cuh"
#include "shuffle.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES, TILE = ROWS * WARPS;
constexpr int ACROSS = WARPS / 2, UP = H / 2 / 16, SIDE = H / ACROSS / 8;  // the second layer's weights: a block of 16 UP x 8 SIDE for a warp

template <int OUT> struct Room {
    static constexpr int O = Net<OUT>::O, PO = pitch(O);
    float records[TILE * RECORD];
    typename Net<OUT>::Weights w;
    half x[TILE * PX], z[TILE * PO], h1[TILE * PH], h2[LAYERS == 2 ? TILE * PH : 8];
    half d1[IN_PLACE_GRADIENTS ? 8 : TILE * PH], d2[!IN_PLACE_GRADIENTS && LAYERS == 2 ? TILE * PH : 8];
    float sums[WARPS][2 * O + MEASURED];
};
static_assert(sizeof(Room<OUTPUTS>) == SPACE, "what is launched has another size");

template <bool ACTOR> __device__ __forceinline__ void work(const Batch& b, char* given) {
    constexpr int OUT = ACTOR ? OUTPUTS : 1;
    using N = Net<OUT>;
    constexpr int O = N::O, PO = pitch(O);
    Room<OUT>& room = *(Room<OUT>*)given;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    const int part = blockIdx.x >> 1, parts = gridDim.x >> 1, size = (int)b.size, tiles = (size + TILE - 1) / TILE;
    const int before = (int)(b.minibatch % b.minibatches) * size, own = warp * ROWS;
    const Order order(b.seed, *b.iteration, (int)(b.minibatch / b.minibatches), (u32)b.samples, (int)b.bits);
    const float* parameters = b.parameters + (ACTOR ? 0 : Net<OUTPUTS>::SIZE);
    const float clip = (float)b.clip, factor = (float)b.vf_coef;

    // A warp fetches the samples that it will work on, so it need not wait for others.
    auto fetch = [&](int tile) {
        const u32 mine = order((u32)(before + min(tile * TILE + own + lane % ROWS, size - 1)));
#pragma unroll
        for (int k = 0; k < ROWS * RECORD / 4; k += 32) {
            const int row = (k + lane) / (RECORD / 4), quarter = (k + lane) % (RECORD / 4);
            const float* from = b.records + (u64)__shfl_sync(~0u, mine, row % 32) * RECORD + 4 * quarter;
            const u32 to = address(&room.records[(own + row) * RECORD + 4 * quarter]);
            if (k + 32 <= ROWS * RECORD / 4 || row < ROWS) asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    launch_next();
    if (part < tiles) fetch(part);  // samples are there, while parameters are still being moved
    wait_for_earlier();
    float centre = 0.0f, scale = 0.0f, bonus = 0.0f, count = 0.0f, total = 0.0f, squares = 0.0f;
    if (ACTOR) {  // asked for together with the parameters
        const float* s = b.statistics + b.minibatch * 3 * 32 + lane;
        count = s[0], total = s[32], squares = s[64], centre = b.advantage[0], bonus = *b.ent_coef;
    }
    copy<OUT>(room.w, parameters);
    if (ACTOR) {
        count = over_warp(count), total = over_warp(total), squares = over_warp(squares);
        const float mean = total / fmaxf(count, 1.0f), variance = fmaxf(squares - total * mean, 0.0f) / fmaxf(count - 1.0f, 1.0f);
        centre += mean, scale = 1.0f / (sqrtf(variance) + 1e-8f);
    }
    const u32 at_h1 = address(room.h1), at_h2 = address(room.h2);
    const u32 at_d1 = IN_PLACE_GRADIENTS ? at_h1 : address(room.d1), at_d2 = IN_PLACE_GRADIENTS ? at_h2 : address(room.d2);
    const u32 at_w2 = address(room.w.w2) + rows_first<PH>(), at_w3 = address(room.w.w3), at_x = address(room.x), at_z = address(room.z);
    const u32 down = rows_first<PH>(), across = columns_first<PH>(), mine = own * PH * 2 + down;
    const int out0 = warp / ACROSS * (H / 2), in0 = warp % ACROSS * (H / ACROSS);
    float dw2[UP][SIDE][4] = {}, dw1[X / 8][4] = {}, dw3[O / 8][4] = {}, db3[O / 8][2] = {}, spread[O / 8][2] = {};
    float db2[4] = {}, value_loss = 0.0f, log_std[O / 8][2];
    Measured sum = {};
    const int summed = min(warp % ACROSS, UP - 1);  // of a warp's rows of second weights, those whose biases it sums up
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) log_std[n][i] = GAUSSIAN ? parameters[N::LOG_STD + 8 * n + 2 * t + i] : 0.0f;

    // Sums over 32 samples from s on: each warp has a part of the weights, for the samples of all.
    const bool narrow = H / 16 >= WARPS || warp < H / 16;  // whether there are 16 units of the outer layers for this warp
    auto sum_last = [&](int s) {
        u32 zs[O / 8][4], e[2][4];
        if (!narrow) return;
#pragma unroll
        for (int n = 0; n < O / 8; n++) load_transposed(zs[n], at_z + ((s + lane) * PO + 8 * n) * 2);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            load_transposed(e[u], (LAYERS == 2 ? at_h2 : at_h1) + (s + 16 * u) * PH * 2 + across + warp * 32);
#pragma unroll
            for (int n = 0; n < O / 8; n++) multiply(dw3[n], e[u], zs[n][2 * u], zs[n][2 * u + 1]);
        }
    };
    auto sum_second = [&](int s) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const u32 rows = (s + 16 * u) * PH * 2;
            u32 left[UP][4], right[SIDE / 2][4];
#pragma unroll
            for (int i = 0; i < UP; i++) load_transposed(left[i], at_d2 + rows + across + (out0 + 16 * i) * 2);
#pragma unroll
            for (int j = 0; j < SIDE / 2; j++) load_transposed(right[j], at_h1 + rows + down + (in0 + 16 * j) * 2);
#pragma unroll
            for (int i = 0; i < UP; i++) {
#pragma unroll
                for (int j = 0; j < SIDE; j++) multiply(dw2[i][j], left[i], right[j >> 1][(j & 1) * 2], right[j >> 1][(j & 1) * 2 + 1]);
            }
#pragma unroll
            for (int i = 1; i < UP; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) left[0][k] = i == summed ? left[i][k] : left[0][k];
            multiply(db2, left[0], ONES, ONES);
        }
    };
    auto sum_first = [&](int s) {
        u32 e[2][4];
        if (!narrow) return;
#pragma unroll
        for (int u = 0; u < 2; u++) load_transposed(e[u], at_d1 + (s + 16 * u) * PH * 2 + across + warp * 32);
#pragma unroll
        for (int c = 0; c < X / 8; c++) {
            u32 xs[4];
            load_transposed(xs, at_x + ((s + lane) * PX + 8 * c) * 2);
            multiply(dw1[c], e[0], xs[0], xs[1]), multiply(dw1[c], e[1], xs[2], xs[3]);
        }
    };
    __syncthreads();

    for (int tile = part; tile < tiles; tile += parts) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        const float* records = room.records + own * RECORD;

        // forth
        Activation h1[TILES], h2[TILES];
        {
            Input x[TILES];
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int c = 0; c < X / 8; c++)
#pragma unroll
                    for (int side = 0; side < 2; side++) {
                        const int row = m * 16 + side * 8 + g;
                        x[m][c][side] = input(records + row * RECORD, 8 * c);
                        *(u32*)(room.x + (own + row) * PX + 8 * c + 2 * t) = x[m][c][side];
                    }
            first_layer<TILES>(room.w.w1, x, h1);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < H / 16; k++) store(at_h1 + mine + m * 16 * PH * 2 + k * 32, h1[m][k]);
        if (LAYERS == 2) {
            second_layer<TILES>(room.w.w2, room.w.b2, h1, h2);
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int k = 0; k < H / 16; k++) store(at_h2 + mine + m * 16 * PH * 2 + k * 32, h2[m][k]);
        }
        Activation* h = LAYERS == 2 ? h2 : h1;
        u32 dz[TILES][O / 8][2];
        {
            float z[TILES][O / 8][4];
            last_layer<TILES, O>(room.w.w3, room.w.b3, h, z);

            // what the objective makes of it
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const int row = m * 16 + side * 8 + g;
                    const float* r = records + row * RECORD;
                    const bool counts = tile * TILE + own + row < size && (!MASKED || r[COUNTS] != 0.0f);
                    float d[O / 8][2] = {};
                    if (ACTOR) {
                        const float advantage = (r[ADVANTAGE] - centre) * scale;
#if GAUSSIAN
                        gaussian<O>(z[m], side, r, advantage, clip, bonus, counts, sum, d, log_std, spread);
#else
                        categorical<O>(z[m], side, r, advantage, clip, bonus, counts, sum, d);
#endif
                    } else {
                        d[0][0] = regression(z[m][0][2 * side], r, clip, factor, counts && t == 0 ? 1.0f : 0.0f, value_loss);
                    }
#pragma unroll
                    for (int n = 0; n < O / 8; n++) {
                        db3[n][0] += d[n][0], db3[n][1] += d[n][1];
                        dz[m][n][side] = pair(d[n][0], d[n][1]);
                        *(u32*)(room.z + (own + row) * PO + 8 * n + 2 * t) = dz[m][n][side];
                    }
                }
        }
        __syncwarp();
        if (tile + parts < tiles) fetch(tile + parts);  // comes while the rest is done

        // and back
        if (IN_PLACE_GRADIENTS) {
            __syncthreads();
            for (int s = 0; s < TILE; s += 32) sum_last(s);
            __syncthreads();
        }
        {
            const u32 at = at_w3 + rows_first<PH>(), tail = at_w3 + (O / 16 * 16 + (lane & 7)) * PH * 2 + (lane >> 3) * 16;
            u32 last[4];
#pragma unroll
            for (int j = 0; j < H / 16; j++) {
                float c[TILES][4] = {}, d[TILES][4] = {};
#pragma unroll
                for (int k = 0; k < O / 16; k++) {
                    u32 w[4];
                    load_transposed(w, at + k * 16 * PH * 2 + j * 32);
#pragma unroll
                    for (int m = 0; m < TILES; m++) {
                        multiply(c[m], dz[m][2 * k][0], dz[m][2 * k][1], dz[m][2 * k + 1][0], dz[m][2 * k + 1][1], w[0], w[1]);
                        multiply(d[m], dz[m][2 * k][0], dz[m][2 * k][1], dz[m][2 * k + 1][0], dz[m][2 * k + 1][1], w[2], w[3]);
                    }
                }
                if (O % 16) {
                    if (j % 2 == 0) load_transposed(last, tail + j * 32);
#pragma unroll
                    for (int m = 0; m < TILES; m++) {
                        multiply(c[m], dz[m][O / 8 - 1][0], dz[m][O / 8 - 1][1], last[j % 2 * 2]);
                        multiply(d[m], dz[m][O / 8 - 1][0], dz[m][O / 8 - 1][1], last[j % 2 * 2 + 1]);
                    }
                }
#pragma unroll
                for (int m = 0; m < TILES; m++) derive(h[m][j], c[m], d[m]);
            }
        }
        if (LAYERS == 2) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int k = 0; k < H / 16; k++) store(at_d2 + mine + m * 16 * PH * 2 + k * 32, h2[m][k]);
#pragma unroll
            for (int j = 0; j < H / 16; j++) {
                float c[TILES][4] = {}, d[TILES][4] = {};
#pragma unroll
                for (int k = 0; k < H / 16; k++) {
                    u32 w[4];
                    load_transposed(w, at_w2 + k * 16 * PH * 2 + j * 32);
#pragma unroll
                    for (int m = 0; m < TILES; m++) multiply(c[m], h2[m][k], w[0], w[1]), multiply(d[m], h2[m][k], w[2], w[3]);
                }
#pragma unroll
                for (int m = 0; m < TILES; m++) derive(h1[m][j], c[m], d[m]);
            }
        }
        if (IN_PLACE_GRADIENTS && LAYERS == 2) {
            __syncthreads();
            for (int s = 0; s < TILE; s += 32) sum_second(s);
            __syncthreads();
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < H / 16; k++) store(at_d1 + mine + m * 16 * PH * 2 + k * 32, h1[m][k]);
        __syncthreads();

#pragma unroll
        for (int s = 0; s < TILE; s += 32) {
            if (!IN_PLACE_GRADIENTS && LAYERS == 2) sum_second(s);
            if (!IN_PLACE_GRADIENTS) sum_last(s);
            sum_first(s);
        }
        __syncthreads();
    }

    // the block's sums
    float* out = b.partials + (u64)part * PARAMETERS + (ACTOR ? 0 : Net<OUTPUTS>::SIZE);
    if (LAYERS == 2) {
#pragma unroll
        for (int i = 0; i < UP; i++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int row = out0 + 16 * i + 8 * side + g;
#pragma unroll
                for (int j = 0; j < SIDE; j++)
                    *(float2*)(out + N::W2 + row * H + in0 + 8 * j + 2 * t) = make_float2(dw2[i][j][2 * side], dw2[i][j][2 * side + 1]);
                if (i == summed && t == 0) out[N::B2 + row] = db2[2 * side];
            }
    }
    if (narrow) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int row = 16 * warp + 8 * side + g;
#pragma unroll
            for (int c = 0; c < X / 8; c++) *(float2*)(out + N::W1 + row * X + 8 * c + 2 * t) = make_float2(dw1[c][2 * side], dw1[c][2 * side + 1]);
#pragma unroll
            for (int n = 0; n < O / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) out[N::W3 + (8 * n + 2 * t + i) * H + row] = dw3[n][2 * side + i];
        }
    }
    float* sums = room.sums[warp];
#pragma unroll
    for (int n = 0; n < O / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float bias = over_column(db3[n][i]), width = over_column(spread[n][i]);
            if (g == 0) sums[8 * n + 2 * t + i] = bias, sums[O + 8 * n + 2 * t + i] = width;
        }
    const float measured[MEASURED] = {sum.policy_loss, value_loss, sum.entropy, sum.kl, sum.clipped};
#pragma unroll
    for (int k = 0; k < MEASURED; k++) {
        const float whole = over_warp(measured[k]);
        if (lane == 0) sums[2 * O + k] = whole;
    }
    __syncthreads();
    if (thread < 2 * O + MEASURED) {
        float whole = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) whole += room.sums[w][thread];
        if (thread < 2 * O) out[N::B3 + thread] = whole;
        else if ((thread - 2 * O == 1) != ACTOR) b.measured[part * MEASURED + thread - 2 * O] = whole;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gradient(const __grid_constant__ Batch b) {
    extern __shared__ __align__(16) char room[];
    if (blockIdx.x & 1) work<false>(b, room);
    else work<true>(b, room);
}
