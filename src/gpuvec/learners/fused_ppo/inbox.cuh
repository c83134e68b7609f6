// The inbox of a process: rows of sums, one for each shard, which all processes write into its memory.
//
// A word has a sum in its low half and the number of the launch in its high half. Both arrive together, so a reader knows without
// a fence or a barrier that the sum is of this launch. Launches use two halves of the inbox in turn. A process writes launch
// n + 2 into the half of launch n after it has received the rows of launch n + 1 from all processes, and each of them sent these
// after it had read all rows of launch n.
//
// Macros: ROW_SIZE (words of a row), NUM_SHARDS (of all processes).
#pragma once
#include "tensor_core.cuh"

constexpr u32 ATTEMPTS_PER_CHECK = 1 << 14;  // reads of a word before the host is asked whether the sender is lost

// Returns the row of a shard in an inbox.
__device__ __forceinline__ u64* inbox_row(u64 inbox, u32 launch, int shard) {
    return (u64*)inbox + (i64)((launch & 1) * NUM_SHARDS + shard) * ROW_SIZE;
}
__device__ __forceinline__ void send_word(u64* word, u32 launch, float sum) {
    *(volatile u64*)word = (u64)launch << 32 | __float_as_uint(sum);
}

// Waits until N words are of this launch, and returns their sums. It gives up once the host has set `is_aborted`.
template <int N>
__device__ __forceinline__ void receive(const u64* words, u32 launch, const unsigned* is_aborted, float* sums) {
    const volatile u64* volatile_words = words;
    bool is_done = false;
    for (u32 attempt = 1; !is_done; attempt++) {
        u64 x[N];
        bool has_arrived = true;
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = volatile_words[k];
#pragma unroll
        for (int k = 0; k < N; k++)
            has_arrived = has_arrived && (u32)(x[k] >> 32) == launch, sums[k] = __uint_as_float((u32)x[k]);
        is_done = has_arrived || (attempt % ATTEMPTS_PER_CHECK == 0 && *(const volatile unsigned*)is_aborted);
    }
}
