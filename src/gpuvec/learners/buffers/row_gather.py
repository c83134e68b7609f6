"""Rows of tensors by their numbers.

torch takes a launch for each tensor, and twice as long as a copy for images of uint8. On a GPU one kernel has the rows of all
tensors (design/0040).

Letters: R rows, B rows that are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.layout.buffers import max_word_bytes

THREADS, UNROLL = 256, 4  # of a block; loads of a thread that are in flight
BLOCKS_PER_MULTIPROCESSOR = 8
MAX_WORDS = 2**31  # of the gathered rows of a tensor, whose words have numbers of 32 bits


def gather_rows(tensors: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Returns {name: the rows `index` of a tensor, (B, ...)} as new tensors.

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
    _launcher(tuple(rows), index.device)(
        BLOCKS_PER_MULTIPROCESSOR * multiprocessors, order=index, num_rows=len(index), **members
    )
    return dict(zip(tensors, results, strict=True))


def row_bytes(x: Tensor) -> int:
    """Returns the size of a row of `x`, (R, ...)."""
    return x.shape[1:].numel() * x.element_size()


def word_bytes(x: Tensor) -> int:
    """Returns the size of the words in which the rows of `x`, (R, ...) contiguous, are copied."""
    return max_word_bytes(row_bytes(x) | x.data_ptr())  # sizes of words are powers of two


def gather_kernel(rows: tuple[tuple[int, int], ...]) -> Any:
    """Returns the `CudaSource` of the kernel.

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
    return CudaSource(Path(__file__).with_suffix(".cu"), "gather_rows", *names, THREADS)


@lru_cache(maxsize=64)
def _launcher(rows: tuple[tuple[int, int], ...], device: torch.device) -> Any:
    """The launcher of a kernel, which is loaded once for a device."""
    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners.cuda_graphs.tensor_launches import make_tensor_launcher

    return make_tensor_launcher(gather_kernel(rows), parse_device(str(device)))
