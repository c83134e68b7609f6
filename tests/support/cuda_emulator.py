"""Runs kernels in CUDA C++ on a CPU, with a coroutine for each CUDA thread, to test them without a GPU.

A block is a thread of the operating system, whose coroutines run one after the other, each until it waits at a barrier, and a
warp until it waits for others. The lanes of a warp synchronize only where the code says so: if one lane does not arrive, the
others wait forever on a GPU, and here the process is aborted. Products of tensor cores are sums in float32. Asynchronous copies
run when they are awaited, as late as a GPU may run them, or when they are issued.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuvec.engine.backends.cuda.nvrtc import CudaSource, included_files

HOST_DEFINITIONS = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <ucontext.h>
#include <vector>
using std::isfinite, std::isnan, std::min, std::max;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __constant__ static const
#define __align__(bytes)
#define DEPENDENT_LAUNCH 0
#define RELU 0  // for sources that do not define it

struct Index { unsigned x, y, z; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct PendingCopy { char* target; const void* source; int group; };
// A CUDA thread, as a coroutine with its own stack.
struct Coroutine {
    static constexpr int STACK_BYTES = 256 * 1024;
    Index index;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    ucontext_t start;
    jmp_buf position;
    bool has_started = false, has_ended = false;
    std::vector<PendingCopy> copies;
    int committed_groups = 0;
};
// The coroutines of a block, in turn.
struct Scheduler {
    std::vector<Coroutine> coroutines;
    Coroutine* current = nullptr;
    std::function<void()> body;
    jmp_buf position;
    bool has_progressed;

    void yield() { if (!_setjmp(current->position)) _longjmp(position, 1); }
    static void enter();
    void run(int threads, bool is_alone);
};
thread_local Scheduler scheduler;
#define threadIdx (scheduler.current->index)
void Scheduler::enter() {
    scheduler.body();
    scheduler.current->has_ended = scheduler.has_progressed = true;
    _longjmp(scheduler.position, 1);
}
void Scheduler::run(int threads, bool is_alone) {
    coroutines = std::vector<Coroutine>(threads);
    static thread_local unsigned first, next;  // in memory, because `_longjmp` restores registers
    for (unsigned i = 0; i < coroutines.size(); i++) {
        Coroutine& c = coroutines[i];
        c.index = {i, 0, 0};
        getcontext(&c.start);
        c.start.uc_stack.ss_sp = c.stack.get(), c.start.uc_stack.ss_size = Coroutine::STACK_BYTES;
        makecontext(&c.start, enter, 0);
    }
    do {
        static thread_local bool has_any_progressed;
        has_any_progressed = false;
        // A warp runs until it waits for others, so that warps are as far from each other as barriers allow.
        for (first = 0; first < coroutines.size(); first += has_progressed ? 0 : 32) {
            has_progressed = false;
            for (next = first; next < first + 32; next++) {
                current = &coroutines[REVERSED ? coroutines.size() - 1 - next : next];
                if (current->has_ended || _setjmp(position)) continue;
                if (current->has_started) _longjmp(current->position, 1);
                current->has_started = true;
                setcontext(&current->start);
            }
            has_any_progressed |= has_progressed;
        }
        const bool has_ended = std::all_of(coroutines.begin(), coroutines.end(), [](auto& c) { return c.has_ended; });
        if (has_ended) break;
        if (is_alone && !has_any_progressed)
            fprintf(stderr, "threads of a block wait at a barrier that others do not reach\n"), abort();
        if (!is_alone) std::this_thread::yield();
    } while (true);
    coroutines.clear();
}
struct Barrier {
    int expected, arrived = 0;
    unsigned phase = 0;
    explicit Barrier(int expected) : expected(expected) {}
    void arrive_and_wait() {
        scheduler.has_progressed = true;
        const unsigned own_phase = phase;
        if (++arrived == expected) arrived = 0, phase++;
        while (phase == own_phase) scheduler.yield();
    }
};

struct Warp { Barrier barrier{32}; uint64_t lanes[32]; unsigned operands[32][6]; };
struct Block {
    Barrier barrier;
    Barrier warpgroup_barriers[2] = {Barrier(128), Barrier(128)};
    std::vector<std::unique_ptr<Warp>> warps;
    std::map<int, std::vector<char>> static_memory;
    char* dynamic_memory;
    std::mutex mutex;
    Block(int threads, int bytes) : barrier(threads), dynamic_memory((char*)aligned_alloc(1024, bytes / 1024 * 1024 + 1024)) {
        for (int i = 0; i < threads / 32; i++) warps.push_back(std::make_unique<Warp>());
    }
    ~Block() { free(dynamic_memory); }
    template <typename T> T& shared(int number) {
        std::lock_guard<std::mutex> lock(mutex);
        static_memory.try_emplace(number, sizeof(T));
        return *(T*)static_memory[number].data();
    }
};
thread_local Block* block;
thread_local Index blockIdx;
Index gridDim;

inline Warp& warp_of_thread() { return *block->warps[threadIdx.x / 32]; }
inline void __syncthreads() { block->barrier.arrive_and_wait(); }
inline void __syncwarp() { warp_of_thread().barrier.arrive_and_wait(); }
inline void __threadfence() { __sync_synchronize(); }
template <typename T> T __shfl_sync(unsigned, T x, int from) {
    Warp& warp = warp_of_thread();
    memcpy(&warp.lanes[threadIdx.x % 32], &x, sizeof x);
    warp.barrier.arrive_and_wait();
    memcpy(&x, &warp.lanes[from % 32], sizeof x);
    warp.barrier.arrive_and_wait();
    return x;
}
template <typename T> T __shfl_down_sync(unsigned all, T x, int offset) {
    const int from = threadIdx.x % 32 + offset;
    return __shfl_sync(all, x, from < 32 ? from : threadIdx.x % 32);
}
template <typename T> T __shfl_xor_sync(unsigned all, T x, int other) { return __shfl_sync(all, x, threadIdx.x % 32 ^ other); }
inline bool __all_sync(unsigned all, bool x) {
    for (int other = 1; other < 32; other *= 2) x &= __shfl_xor_sync(all, x, other);
    return x;
}
inline unsigned __ballot_sync(unsigned, bool x) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (unsigned)__shfl_sync(~0u, (int)x, lane) << lane;
    return bits;
}
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned atomicAdd(unsigned* at, unsigned x) { return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST); }
template <typename T> T __ldcg(const T* at) { return *at; }
template <typename T> void __stcg(T* at, T x) { *at = x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline uint64_t __cvta_generic_to_shared(const void* at) { return (char*)at - block->dynamic_memory; }
inline void copy_asynchronously(unsigned target, const void* source) {
    Coroutine& thread = *scheduler.current;
    thread.copies.push_back({block->dynamic_memory + target, source, thread.committed_groups});
    if (REVERSED) memcpy(thread.copies.back().target, source, 16), thread.copies.pop_back();
}
// Waits until at most `pending` of the groups of copies that this thread committed are left.
inline void wait_for_groups(int pending) {
    Coroutine& thread = *scheduler.current;
    std::erase_if(thread.copies, [&](const PendingCopy& copy) {
        const bool is_awaited = copy.group < thread.committed_groups - pending;
        if (is_awaited) memcpy(copy.target, copy.source, 16);
        return is_awaited;
    });
}
inline float unpack_half(unsigned x, int index) { return _cvtsh_ss(x >> 16 * index & 0xFFFF); }
inline unsigned pack_two_halves(float low, float high) { return _cvtss_sh(low, 0) | (unsigned)_cvtss_sh(high, 0) << 16; }
// s += left * right with COLUMNS of left, distributed over the lanes as tensor_core.cuh says
template <int COLUMNS> void multiply_add(float* s, const unsigned (&operands)[6]) {
    Warp& warp = warp_of_thread();
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    memcpy(warp.operands[lane], operands, sizeof operands);
    warp.barrier.arrive_and_wait();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < COLUMNS; k++) {
            const unsigned *left = warp.operands[4 * g + k % 8 / 2], *right = warp.operands[4 * (2 * t + i % 2) + k % 8 / 2];
            s[i] += unpack_half(left[i / 2 + 2 * (k / 8)], k % 2) * unpack_half(right[4 + k / 8], k % 2);
        }
    warp.barrier.arrive_and_wait();
}
// The same with eight columns of left and TF32 operands, whose last 13 bits are ignored. The PTX ISA has the fragments at
// mma.m16n8k8.
inline void multiply_add_tf32(float* s, const unsigned (&operands)[6]) {
    Warp& warp = warp_of_thread();
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    memcpy(warp.operands[lane], operands, sizeof operands);
    warp.barrier.arrive_and_wait();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++) {
            const unsigned *left = warp.operands[4 * g + k % 4], *right = warp.operands[4 * (2 * t + i % 2) + k % 4];
            s[i] += __uint_as_float(left[i / 2 + 2 * (k / 4)] & ~0x1FFFu) * __uint_as_float(right[4 + k / 4] & ~0x1FFFu);
        }
    warp.barrier.arrive_and_wait();
}
"""

LAUNCH_FUNCTION = r"""
extern "C" void run(const Batch* b, int columns, int rows, int threads, int bytes) {
    gridDim = {(unsigned)columns, (unsigned)rows, 1};
    std::vector<std::thread> blocks;
    for (unsigned k = 0; k < (unsigned)(columns * rows); k++) {
        blocks.emplace_back([=] {
            Block own(threads, bytes);
            block = &own, blockIdx = {k % columns, k / columns, 0};
            scheduler.body = [=] { KERNEL(*b); };
            scheduler.run(threads, !CONCURRENT);
        });
        if (!CONCURRENT) blocks.back().join();
    }
    if (CONCURRENT) for (auto& thread : blocks) thread.join();
}
"""

PTX_REPLACEMENTS = {  # {pattern of PTX: the same for a CPU}
    r'asm volatile\("cp\.async\.ca\.shared\.global \[%0\],\[%1\],16;" ::"r"\((.+?)\), "l"\((.+?)\) : "memory"\);':
        r"copy_asynchronously(\1, \2);",
    r'asm volatile\("cp\.async\.commit_group;" ::: "memory"\);': "scheduler.current->committed_groups++;",
    r'asm volatile\("cp\.async\.wait_group (\d+);" ::: "memory"\);': r"wait_for_groups(\1);",
    r"extern __shared__ __align__\(\d+\) char (\w+)\[\];": r"char* \1 = block->dynamic_memory;",
}  # fmt: skip
HEADERS_FOR_CPU = {f"{name}.cuh": Path(__file__).with_name(f"{name}_on_cpu.cuh") for name in ("instructions", "wgmma")}
LANE, ROW = "const unsigned lane = threadIdx.x % 32;", "block->dynamic_memory + __shfl_sync(~0u, row, 8 * q + "
FUNCTION_BODIES = {  # {signature of a function with PTX: its body on a CPU}
    "void mma(float* s, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)": "multiply_add<16>(s, {a0, a1, a2, a3, b0, b1});",
    "void mma(float* s, u32 a0, u32 a1, u32 b0)": "multiply_add<8>(s, {a0, a1, 0, 0, b0, 0});",
    "void load_matrix(u32* r, u32 row)": LANE + f"for (int q = 0; q < 4; q++) r[q] = ((u32*)({ROW}lane / 4)))[lane % 4];",
    "void load_matrix_transposed(u32* r, u32 row)": LANE + f"""for (int q = 0; q < 4; q++) {{
        const half low = ((half*)({ROW}lane % 4 * 2)))[lane / 4], high = ((half*)({ROW}lane % 4 * 2 + 1)))[lane / 4];
        r[q] = low | (u32)high << 16;
    }}""",
    "void store_matrix(u32 row, const u32* r)": LANE
    + f"for (int q = 0; q < 4; q++) ((u32*)({ROW}lane / 4)))[lane % 4] = r[q];",
    "void mma_tf32(float* s, const u32* a, u32 b0, u32 b1)": "multiply_add_tf32(s, {a[0], a[1], a[2], a[3], b0, b1});",
    "u32 round_tf32(float x)": "return __float_as_uint(x) + 0x1000 & ~0x1FFFu;",
    "u32 pack_bf16(float low, float high)": """const u32 x = __float_as_uint(low), y = __float_as_uint(high);
        return x + 0x7FFF + (x >> 16 & 1) >> 16 | y + 0x7FFF + (y >> 16 & 1) & 0xFFFF0000u;""",
    "u32 pack_halves(float low, float high)": "return pack_two_halves(low, high);",
    "u32 pack_halves_saturated(float low, float high)": """const float bound = 65504.0f;
        return pack_two_halves(std::clamp(low, -bound, bound), std::clamp(high, -bound, bound));""",
    "float activation(float x)": "return RELU ? fmaxf(x, 0.0f) : tanhf(x);",
    "u32 times_derivative(u32 h, u32 d)": """float x[2];
        for (int k = 0; k < 2; k++) {
            const float y = unpack_half(h, k);
            x[k] = unpack_half(d, k) * (RELU ? y > 0 : 1.0f - y * y);
        }
        return pack_two_halves(x[0], x[1]);""",
}  # fmt: skip


def emulate(
    kernel: CudaSource, folder: Path, concurrent: bool = False, functions: str = "", reverse: bool = False
) -> Callable[..., None]:
    """Compiles a kernel for the CPU.

    Args:
        kernel: its source.
        folder: where the files are written.
        concurrent: whether blocks run at the same time, which they must if they wait for each other.
        functions: C++ that defines the functions with which the kernel would be linked.
        reverse: whether the last thread runs first between barriers, and asynchronous products and copies run when they are
            issued and not when they are awaited. Results that differ mean a race.

    Returns:
        `launch((blocks, ...), **members)`. Members are tensors on the CPU or numbers; those that are not given are 0.
    """
    if shutil.which("g++") is None:
        pytest.skip("the emulation of kernels needs g++, which is not installed")
    for header in included_files(kernel.file):
        (folder / header.name).write_text(_for_cpu(HEADERS_FOR_CPU.get(header.name, header).read_text()))
    source = re.sub(r"(?<!extern )__shared__ (?:__align__\(16\) )?(\w+) ([^;]+);", _declare_shared, _for_cpu(kernel.source))
    launch_function = LAUNCH_FUNCTION.replace("KERNEL", kernel.name).replace("CONCURRENT", str(concurrent).lower())
    file, library_file = folder / f"{kernel.name}.cpp", folder / f"{kernel.name}.so"
    file.write_text(HOST_DEFINITIONS + source + functions + launch_function)
    options = [
        "-O1",
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-w",
        "-ffp-contract=off",
        "-pthread",
        "-mf16c",
        "-U_FORTIFY_SOURCE",
        f"-DREVERSED={int(reverse)}",
    ]
    subprocess.run(["g++", *options, str(file), "-o", str(library_file)], check=True)
    fields = [(name, ctypes.c_double if type_name == "double" else ctypes.c_int64) for name, type_name in kernel.members]
    batch, library = type("Batch", (ctypes.Structure,), {"_fields_": fields}), ctypes.CDLL(str(library_file))

    def launch(grid: tuple[int, ...], **members: Any) -> None:
        columns, rows = (*grid, 1)[:2]
        values = [members.pop(name, 0) for name, _ in kernel.members]
        assert not members, members.keys()
        b = batch(*(x.data_ptr() if hasattr(x, "data_ptr") else x for x in values))
        library.run(ctypes.byref(b), columns, rows, kernel.threads, kernel.shared_bytes)

    return launch


def _for_cpu(source: str) -> str:
    """Replaces PTX and the functions that contain it. All files are in one folder."""
    source = re.sub(r'^#include ".*/', '#include "', source, flags=re.MULTILINE)
    for ptx, replacement in PTX_REPLACEMENTS.items():
        source = re.sub(ptx, replacement, source)
    for signature, body in FUNCTION_BODIES.items():
        # A function can have several definitions, of which the compute capability selects one.
        while (begin := source.find(f"__forceinline__ {signature} {{\n")) >= 0:
            end = source.index("\n}", begin)
            source = f"{source[:begin]}inline {signature} {{ {body} {source[end + 1 :]}"
    return source


def _declare_shared(declaration: re.Match[str]) -> str:
    """Replaces a declaration of shared variables by references to the memory of the block.

    The position of the declaration in the source identifies each variable.
    """
    lines = []
    for k, declarator in enumerate(declaration[2].split(",")):
        name, bracket, size = declarator.strip().partition("[")
        type_name, number = f"Of_{name}", declaration.start() + k
        lines.append(f"using {type_name} = {declaration[1]}{bracket}{size};")
        lines.append(f"{type_name}& {name} = block->shared<{type_name}>({number});")
    return " ".join(lines)
