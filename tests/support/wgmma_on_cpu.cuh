// The functions of wgmma.cuh for a CPU. A product runs when it is awaited, as late as a GPU may run it, and its sums are nan
// before; or when it is issued, if REVERSED.
#pragma once
#include "instructions.cuh"

struct PendingProduct {
    float* sums;
    int count, group;
    bool add, has_fragments;
    float fragments[2][16];  // rows g and g + 8
    u64 left, right;
};
struct ProductQueue {
    std::vector<PendingProduct> products;
    int committed = 0;
};
inline ProductQueue& products_of_thread() {
    static thread_local std::map<Coroutine*, ProductQueue> queues;
    return queues[scheduler.current];
}

// Element `column` of row `row` of the tile at a descriptor, with the 128-byte swizzle.
inline float tile_element(u64 descriptor, int row, int column) {
    const unsigned swizzle = descriptor >> 62, group_bytes = (descriptor >> 32 & 0x3FFF) << 4;
    if (swizzle != 1) fprintf(stderr, "the swizzle of a descriptor is not that of 128 bytes\n"), abort();
    const unsigned address = ((descriptor & 0x3FFF) << 4) + row / 8 * group_bytes + row % 8 * 128 + column * 2;
    return _cvtsh_ss(*(half*)(block->dynamic_memory + (address ^ (address >> 7 & 7) << 4)));
}
inline void run_product(const PendingProduct& p) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < p.count; i++) {
        float sum = p.add ? p.sums[i] : 0.0f;
        for (int k = 0; k < 16; k++) {
            const int row = i / 2 % 2;
            const float left = p.has_fragments ? p.fragments[row][k] : tile_element(p.left, 16 * warp + g + 8 * row, k);
            sum += left * tile_element(p.right, i / 4 * 8 + 2 * t + i % 2, k);
        }
        p.sums[i] = sum;
    }
}
inline void issue_product(PendingProduct p) {
    if (REVERSED) return run_product(p);
    ProductQueue& queue = products_of_thread();
    p.group = queue.committed;
    if (!p.add) std::fill(p.sums, p.sums + p.count, NAN);
    queue.products.push_back(p);
}

inline void fence_products() {}
inline void commit_products() { products_of_thread().committed++; }
template <int PENDING> void wait_products() {
    ProductQueue& queue = products_of_thread();
    std::vector<PendingProduct> later;
    for (const PendingProduct& p : queue.products)
        if (p.group < queue.committed - PENDING) run_product(p);
        else later.push_back(p);
    queue.products = later;
}
inline void publish_stores() {}
template <int COUNT> void complete(float (&)[COUNT]) {}

inline void store_blocks_transposed(u32 row, const u32* r, int blocks) {
    const unsigned lane = threadIdx.x % 32;
    for (int q = 0; q < blocks; q++)
        for (int i = 0; i < 2; i++) {
            half* target = (half*)(block->dynamic_memory + __shfl_sync(~0u, row, 8 * q + lane % 4 * 2 + i));
            target[lane / 4] = r[q] >> 16 * i;
        }
}
inline void store_matrix_transposed(u32 row, const u32* r) { store_blocks_transposed(row, r, 4); }
inline void store_two_transposed(u32 row, const u32* r) { store_blocks_transposed(row, r, 2); }

template <int COUNT> struct Products {
    template <bool ADD> static void multiply(float* sums, const u32* left, u64 right) {
        Warp& warp = warp_of_thread();
        const unsigned lane = threadIdx.x % 32, first = lane / 4 * 4;
        memcpy(warp.operands[lane], left, 16);
        warp.barrier.arrive_and_wait();
        PendingProduct p = {sums, COUNT, 0, ADD, true, {}, 0, right};
        for (int k = 0; k < 16; k++)
            for (int row = 0; row < 2; row++)
                p.fragments[row][k] = unpack_half(warp.operands[first + k % 8 / 2][row + k / 8 * 2], k % 2);
        warp.barrier.arrive_and_wait();
        issue_product(p);
    }
    template <bool ADD> static void multiply(float* sums, u64 left, u64 right) {
        issue_product({sums, COUNT, 0, ADD, false, {}, left, right});
    }
};
