"""Kernels in CUDA C++ on a CPU: each of their threads is one of the machine's, so what they do can be tested without a GPU.

Lanes of a warp meet where the code says so, and only there: one that does not come lets the others wait for ever, as on a GPU.
Products of tensor cores are sums in float32, and copies that a GPU does not wait for are done at once.
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

from gpuvec.engine.backends.cuda.nvrtc import CudaSource

MEANT = r"""
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
using std::isfinite, std::min, std::max;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __align__(bytes)
#define DEPENDENT_LAUNCH 0
#define RELU 0  // where the source says nothing

struct Place { unsigned x, y, z; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Warp { std::barrier<> meet{32}; uint64_t lanes[32]; unsigned sides[32][6]; };
struct Block {
    std::barrier<> meet;
    std::vector<std::unique_ptr<Warp>> warps;
    std::map<int, std::vector<char>> rooms;
    char* room;  // what a launch asks for
    std::mutex one;
    Block(int threads, int bytes) : meet(threads), room((char*)aligned_alloc(128, bytes / 128 * 128 + 128)) {
        for (int i = 0; i < threads / 32; i++) warps.push_back(std::make_unique<Warp>());
    }
    ~Block() { free(room); }
    template <typename T> T& shared(int number) {
        std::lock_guard<std::mutex> alone(one);
        rooms.try_emplace(number, sizeof(T));
        return *(T*)rooms[number].data();
    }
};
thread_local Block* block;
thread_local Place threadIdx, blockIdx;
Place gridDim;

inline Warp& warp_of_thread() { return *block->warps[threadIdx.x / 32]; }
inline void __syncthreads() { block->meet.arrive_and_wait(); }
inline void __syncwarp() { warp_of_thread().meet.arrive_and_wait(); }
inline void __threadfence() { __sync_synchronize(); }
template <typename T> T __shfl_sync(unsigned, T x, int from) {
    Warp& warp = warp_of_thread();
    memcpy(&warp.lanes[threadIdx.x % 32], &x, sizeof x);
    warp.meet.arrive_and_wait();
    memcpy(&x, &warp.lanes[from % 32], sizeof x);
    warp.meet.arrive_and_wait();
    return x;
}
template <typename T> T __shfl_xor_sync(unsigned all, T x, int other) { return __shfl_sync(all, x, threadIdx.x % 32 ^ other); }
inline bool __all_sync(unsigned all, bool x) {
    for (int other = 1; other < 32; other *= 2) x &= __shfl_xor_sync(all, x, other);
    return x;
}
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned atomicAdd(unsigned* at, unsigned x) { return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST); }
template <typename T> T __ldcg(const T* at) { return *at; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline uint64_t __cvta_generic_to_shared(const void* at) { return (char*)at - block->room; }
inline float wide(unsigned x, int side) { return _cvtsh_ss(x >> 16 * side & 0xFFFF); }
inline unsigned narrow(float low, float high) { return _cvtss_sh(low, 0) | (unsigned)_cvtss_sh(high, 0) << 16; }
// s += left * right, COLUMNS of left, as tensor_core.cuh says who has what
template <int COLUMNS> void product(float* s, const unsigned (&given)[6]) {
    Warp& warp = warp_of_thread();
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    memcpy(warp.sides[lane], given, sizeof given);
    warp.meet.arrive_and_wait();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < COLUMNS; k++) {
            const unsigned *left = warp.sides[4 * g + k % 8 / 2], *right = warp.sides[4 * (2 * t + i % 2) + k % 8 / 2];
            s[i] += wide(left[i / 2 + 2 * (k / 8)], k % 2) * wide(right[4 + k / 8], k % 2);
        }
    warp.meet.arrive_and_wait();
}
"""

RUN = r"""
extern "C" void run(const Batch* b, int columns, int lines, int threads, int bytes) {
    gridDim = {(unsigned)columns, (unsigned)lines, 1};
    std::vector<std::thread> all;
    std::vector<std::unique_ptr<Block>> blocks;
    for (unsigned k = 0; k < (unsigned)(columns * lines); k++) {
        blocks.push_back(std::make_unique<Block>(threads, bytes));
        for (unsigned i = 0; i < (unsigned)threads; i++)
            all.emplace_back([=, own = blocks.back().get()] {
                block = own, threadIdx = {i, 0, 0}, blockIdx = {k % columns, k / columns, 0};
                KERNEL(*b);
            });
        if (!TOGETHER) {
            for (auto& one : all) one.join();
            all.clear(), blocks.clear();
        }
    }
    for (auto& one : all) one.join();
}
"""

PTX = {  # what it says, for a CPU
    r'asm volatile\("cp\.async\.ca\.shared\.global \[%0\],\[%1\],16;" ::"r"\((.+?)\), "l"\((.+?)\) : "memory"\);':
        r"memcpy(block->room + \1, \2, 16);",
    r'asm volatile\("cp\.async\.(commit|wait)_group[ 0-9]*;" ::: "memory"\);': "",
    r"extern __shared__ __align__\(16\) char (\w+)\[\];": r"char* \1 = block->room;",
}  # fmt: skip
LANE, PLACE = "const unsigned lane = threadIdx.x % 32;", "block->room + __shfl_sync(~0u, row, 8 * q + "
BODIES = {  # of functions of tensor_core.cuh
    "void mma(float* s, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)": "product<16>(s, {a0, a1, a2, a3, b0, b1});",
    "void mma(float* s, u32 a0, u32 a1, u32 b0)": "product<8>(s, {a0, a1, 0, 0, b0, 0});",
    "void load_matrix(u32* r, u32 row)": LANE + f"for (int q = 0; q < 4; q++) r[q] = ((u32*)({PLACE}lane / 4)))[lane % 4];",
    "void load_matrix_transposed(u32* r, u32 row)": LANE + f"""for (int q = 0; q < 4; q++) {{
        const half low = ((half*)({PLACE}lane % 4 * 2)))[lane / 4], high = ((half*)({PLACE}lane % 4 * 2 + 1)))[lane / 4];
        r[q] = low | (u32)high << 16;
    }}""",
    "void store_matrix(u32 row, const u32* r)": LANE
    + f"for (int q = 0; q < 4; q++) ((u32*)({PLACE}lane / 4)))[lane % 4] = r[q];",
    "u32 pack_halves(float low, float high)": "return narrow(low, high);",
    "float activation(float x)": "return RELU ? fmaxf(x, 0.0f) : tanhf(x);",
    "u32 times_derivative(u32 h, u32 d)": """float x[2];
        for (int k = 0; k < 2; k++) x[k] = wide(d, k) * (RELU ? wide(h, k) > 0 : 1.0f - wide(h, k) * wide(h, k));
        return narrow(x[0], x[1]);""",
}  # fmt: skip


def emulated(kernel: CudaSource, folder: Path, together: bool = False) -> Callable[..., None]:
    """`launch((blocks, ...), **members)`: blocks run one after the other, or `together`, if they wait for each other.

    Members are tensors of a CPU or numbers; one that is left out is 0.
    """
    if shutil.which("g++") is None:
        pytest.skip("kernels are emulated by what g++ makes of them, and there is none")
    for header in kernel.file.parent.glob("*.cuh"):
        (folder / header.name).write_text(_meant(header.read_text()))
    source = re.sub(r"(?<!extern )__shared__ (\w+) ([^;]+);", _shared, _meant(kernel.source))
    run = RUN.replace("KERNEL", kernel.name).replace("TOGETHER", str(together).lower())
    file, made = folder / f"{kernel.name}.cpp", folder / f"{kernel.name}.so"
    file.write_text(MEANT + source + run)
    options = ["-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-pthread", "-mf16c"]
    subprocess.run(["g++", *options, str(file), "-o", str(made)], check=True)
    kinds = {"double": ctypes.c_double}
    fields = [(name, kinds.get(kind, ctypes.c_int64)) for name, kind in kernel.members]
    batch, library = type("Batch", (ctypes.Structure,), {"_fields_": fields}), ctypes.CDLL(str(made))

    def launch(grid: tuple[int, ...], **members: Any) -> None:
        columns, lines = (*grid, 1)[:2]
        values = [members.pop(name, 0) for name, _ in kernel.members]
        assert not members, members.keys()
        b = batch(*(x.data_ptr() if hasattr(x, "data_ptr") else x for x in values))
        library.run(ctypes.byref(b), columns, lines, kernel.threads, kernel.shared_bytes)

    return launch


def _meant(source: str) -> str:
    """The source without PTX."""
    for ptx, meant in PTX.items():
        source = re.sub(ptx, meant, source)
    for head, body in BODIES.items():
        while (at := source.find(f"__forceinline__ {head} {{\n")) >= 0:  # each, if the device decides which one it is
            end = source.index("\n}", at)
            source = f"{source[:at]}inline {head} {{ {body} {source[end + 1 :]}"
    return source


def _shared(found: re.Match[str]) -> str:
    """A block's own variables, known by where they are declared."""
    lines = []
    for k, one in enumerate(found[2].split(",")):
        name, bracket, size = one.strip().partition("[")
        kind, number = f"Of_{name}", found.start() + k
        lines.append(f"using {kind} = {found[1]}{bracket}{size}; {kind}& {name} = block->shared<{kind}>({number});")
    return " ".join(lines)
