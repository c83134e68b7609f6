"""The order in which the minibatches of each agent take its samples, and the rows of tensors in that order.

The order is the permutation of `fused_ppo/shuffle.cuh`: a bijection of the numbers of a few bits, applied until its result is
the number of a sample. It depends on the seed of the agent, the rollout and the epoch alone.

Letters: P agents, B samples of an agent; of `gather_rows`, R rows of a tensor, B rows that are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.engine.layout.buffers import max_word_bytes
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, cached_launchers
from gpuvec.random import philox

i64, u32, u64 = np.int64, np.uint32, np.uint64
PERMUTATION = 0x4F524445  # distinguishes these numbers from other draws with the same seed, as in shuffle.cuh
MEMBERS = ("seeds", "iteration", "order", "epoch", "num_samples", "mask", "shift")


def make_permutation(ops: MemoryOps) -> DeviceFunction:
    """Returns the function that writes the sample at one position of one agent.

    Args:
        ops: the memory operations of the target.
    """
    load, store, draw_block = ops.load, ops.store, device_function(philox)

    @inline_function
    def permute(b: Batch, index: int) -> None:
        agent = i64(index) // i64(b.num_samples)
        seed, iteration = u64(load(b.seeds, agent, i64)), u64(load(b.iteration, 0, i64))
        words = draw_block(
            u32(iteration & u64(0xFFFFFFFF)), u32(iteration >> u64(32)), u32(b.epoch), u32(PERMUTATION),
            u32(seed & u64(0xFFFFFFFF)), u32(seed >> u64(32)),
        )  # fmt: skip
        k0, k1, k2, k3 = u64(words[0]), u64(words[1]), u64(words[2]), u64(words[3])
        mask, shift, first = u64(b.mask), u64(b.shift), agent * i64(b.num_samples)
        x, count = u64(i64(index) - first), u64(b.num_samples)
        is_sample = False
        while not is_sample:
            x = (x * (k0 | u64(1)) + k1) & mask
            x = x ^ (x >> shift)
            x = (x * (k2 | u64(1)) + k3) & mask
            x = x ^ (x >> shift)
            x = (x * (k1 | u64(1)) + k2) & mask
            x = x ^ (x >> shift)
            x = (x * (k3 | u64(1)) + k0) & mask
            is_sample = bool(x < count)
        store(b.order, index, first + i64(x), i64)

    return permute


PERMUTE = Elementwise("sample order", MEMBERS, make_permutation)


class SampleOrder:
    """Computes the order of the samples of an epoch.

    Args:
        device: "cpu" or "cuda:<index>"; "simulator" to debug kernels.
        seeds: P seeds from 0 to 2**63 - 1.
        num_samples: B, below 2**31.
    """

    def __init__(self, device: str, seeds: Sequence[int], num_samples: int) -> None:
        self._launcher = ElementwiseLauncher(device)
        self._policy_seeds = torch.tensor(seeds, dtype=torch.int64, device=self._launcher.tensor_device)
        index_bits = max(1, (num_samples - 1).bit_length())
        self._numbers = num_samples, (1 << index_bits) - 1, (index_bits + 1) // 2

    def __call__(self, iteration: Tensor, epoch: int, out: Tensor) -> Tensor:
        """Writes, and returns, the samples in the order of an epoch: indices of all samples, which are sorted by agent.

        Args:
            iteration: () int64 on the device: the number of rollouts, this one included.
            epoch: the number of the epoch, from 0.
            out: (P, B) int64.
        """
        tensors = {"seeds": self._policy_seeds, "iteration": iteration, "order": out}
        agents, num_samples = self._policy_seeds.shape[0], self._numbers[0]
        expected = {"seeds": ((agents,), torch.int64), "iteration": ((), torch.int64)}
        expected["order"] = (agents, num_samples), torch.int64
        self._launcher(PERMUTE, agents * num_samples, tensors, expected, (epoch, *self._numbers))
        return out


THREADS, UNROLL = 256, 4  # of a block; loads of a thread that are in flight
BLOCKS_PER_MULTIPROCESSOR = 8
MAX_WORDS = 2**31  # of the gathered rows of a tensor, whose words have numbers of 32 bits


def gather_rows(tensors: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Returns {name: the rows `index` of a tensor, (B, ...)} as new tensors.

    torch takes a launch for each tensor, and twice as long as a copy for images of uint8. On a GPU one kernel has the rows of
    all tensors (design/0040).
    Args:
        tensors: {name: (R, ...)}.
        index: (B,) int64.
    """
    if not index.is_cuda or torch.compiler.is_compiling():
        return {name: x.index_select(0, index) for name, x in tensors.items()}
    index = index.contiguous()
    sources = [x.contiguous() for x in tensors.values()]
    results = [x.new_empty(len(index), *x.shape[1:]) for x in sources]
    rows = [(word_bytes(x), row_bytes(x) // word_bytes(x)) for x in sources]
    if len(index) * max(words for _, words in rows) >= MAX_WORDS:
        return {name: x.index_select(0, index) for name, x in tensors.items()}
    multiprocessors = torch.cuda.get_device_properties(index.device).multi_processor_count
    members = {f"tensor{k}": x for k, x in enumerate(sources)} | {f"result{k}": x for k, x in enumerate(results)}
    launch = cached_launchers(gather_kernels, index.device, tuple(rows))["gather_rows"]
    launch(BLOCKS_PER_MULTIPROCESSOR * multiprocessors, order=index, num_rows=len(index), **members)
    return dict(zip(tensors, results, strict=True))


def row_bytes(x: Tensor) -> int:
    """Returns the size of a row of `x`, (R, ...)."""
    return x.shape[1:].numel() * x.element_size()


def word_bytes(x: Tensor) -> int:
    """Returns the size of the words in which the rows of `x`, (R, ...) contiguous, are copied."""
    return max_word_bytes(row_bytes(x) | x.data_ptr())  # sizes of words are powers of two


def gather_kernels(rows: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Returns the `CudaSource` of the kernel, by its name.

    Args:
        rows: (bytes of a word, words of a row) of each tensor.
    """
    # Imported here because it imports the CUDA compiler, which a CPU does not need.
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource

    count = range(len(rows))
    members = {f"tensor{k}": "const void*" for k in count} | {f"result{k}": "void*" for k in count}
    members |= {"order": "const long long*", "num_rows": "i64"}
    lists: dict[str, list[int] | list[str]] = {
        "WORD_BYTES": [size for size, _ in rows], "ROW_WORDS": [words for _, words in rows],
        "TENSORS": [f"b.tensor{k}" for k in count], "RESULTS": [f"b.result{k}" for k in count],
    }  # fmt: skip
    constants: dict[str, int | str] = {name: "{" + ", ".join(map(str, values)) + "}" for name, values in lists.items()}
    constants |= {"NUM_TENSORS": len(rows), "UNROLL": UNROLL, "THREADS": THREADS}
    names = tuple(members.items()), tuple(constants.items())
    return {"gather_rows": CudaSource(Path(__file__).with_name("row_gather.cu"), "gather_rows", *names, THREADS)}
