// Rows of several tensors, which all have the same number of rows, in another order.
//
// A thread copies UNROLL words of each tensor at a time, so that so many loads are in flight. Successive threads have successive
// words of a row, and a word has as many bytes as the size of the tensor's rows allows.
//
// Macros: NUM_TENSORS, WORD_BYTES and ROW_WORDS (of each tensor), TENSORS and RESULTS (the addresses of each), UNROLL, THREADS.
typedef unsigned int u32;
typedef long long i64;

template <typename Word>
__device__ __forceinline__ void copy_rows(const void* from, void* to, const i64* order, u32 num_rows, u32 row_words) {
    const u32 num_words = num_rows * row_words, stride = gridDim.x * THREADS;
    for (u32 first = blockIdx.x * THREADS + threadIdx.x; first < num_words; first += UNROLL * stride) {
        Word words[UNROLL];
#pragma unroll
        for (u32 k = 0; k < UNROLL; k++) {
            const u32 i = first + k * stride, row = i / row_words;
            if (i < num_words) words[k] = ((const Word*)from)[order[row] * row_words + (i - row * row_words)];
        }
#pragma unroll
        for (u32 k = 0; k < UNROLL; k++)
            if (first + k * stride < num_words) ((Word*)to)[first + k * stride] = words[k];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(const __grid_constant__ Batch b) {
    constexpr int word_bytes[] = WORD_BYTES, row_words[] = ROW_WORDS;
    const void* const tensors[] = TENSORS;
    void* const results[] = RESULTS;
    const i64* order = b.order;
#pragma unroll
    for (int k = 0; k < NUM_TENSORS; k++) {
        const u32 num_rows = (u32)b.num_rows, words = row_words[k];
        if (word_bytes[k] == 16) copy_rows<uint4>(tensors[k], results[k], order, num_rows, words);
        if (word_bytes[k] == 8) copy_rows<i64>(tensors[k], results[k], order, num_rows, words);
        if (word_bytes[k] == 4) copy_rows<u32>(tensors[k], results[k], order, num_rows, words);
        if (word_bytes[k] == 2) copy_rows<unsigned short>(tensors[k], results[k], order, num_rows, words);
        if (word_bytes[k] == 1) copy_rows<unsigned char>(tensors[k], results[k], order, num_rows, words);
    }
}
