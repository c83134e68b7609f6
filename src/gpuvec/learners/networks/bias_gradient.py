"""The gradient of the bias of a linear layer, with that of the ReLU behind it.

torch sums the rows of a matrix slowly if it has many rows and few columns: 35 us for 8 MB in bfloat16 on an H200, which memory
alone takes in 2. On a GPU one kernel applies the ReLU's derivative and sums the rows, in 7 us.

Letters: R rows, N columns.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

THREADS = 1024
VECTOR_BYTES = 16
MIN_COMPUTE_CAPABILITY = (8, 0)  # of bfloat16
MEMBERS = {
    "out_gradient": "const void*", "out": "const void*", "gradient": "void*", "bias_gradient": "void*", "block_sums": "float*",
    "num_finished_blocks": "unsigned*", "num_rows": "i64",
}  # fmt: skip


def bias_gradient_kernel(columns: int, dtype: torch.dtype, has_relu: bool, threads: int = THREADS) -> Any:
    """Returns the `CudaSource` of the kernel.

    Args:
        columns: N, at most `threads`, whole vectors of `VECTOR_BYTES`.
        dtype: float32 or bfloat16.
        has_relu: whether the results are those of a ReLU.
        threads: of a block.
    """
    # Imported here because it imports the CUDA compiler, which a CPU does not need.
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource

    constants = {
        "COLUMNS": columns, "IS_BF16": int(dtype == torch.bfloat16), "HAS_RELU": int(has_relu), "THREADS": threads,
    }  # fmt: skip
    names = tuple(MEMBERS.items()), tuple(constants.items())
    return CudaSource(Path(__file__).with_suffix(".cu"), "bias_gradient", *names, threads)


@lru_cache(maxsize=64)
def _launcher(columns: int, dtype: torch.dtype, has_relu: bool, device: torch.device) -> Any:
    """The launcher of a kernel, which is loaded once for a device."""
    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher

    return make_tensor_launcher(bias_gradient_kernel(columns, dtype, has_relu), parse_device(str(device)))


def bias_gradient(
    out_gradient: Tensor, out: Tensor | None = None, num_finished_blocks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the gradient of x W' + b, (R, N), and that of b, (N,).

    Args:
        out_gradient: the gradient of the results, (R, N).
        out: the results max(0, x W' + b), (R, N); None without a ReLU.
        num_finished_blocks: () int32, which is 0 before and after the launch; no other stream may use it meanwhile. None for a
            new one, which is filled by a launch of its own.
    """
    if not _is_supported(out_gradient):
        gradient = out_gradient if out is None else torch.ops.aten.threshold_backward(out_gradient, out, 0)
        return gradient, gradient.sum(0)
    rows, columns = out_gradient.shape
    out_gradient, device = out_gradient.contiguous(), out_gradient.device
    gradient = out_gradient if out is None else torch.empty_like(out_gradient)
    result = torch.empty(columns, dtype=out_gradient.dtype, device=device)
    rows_of_block = THREADS * VECTOR_BYTES // (columns * out_gradient.element_size())
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(multiprocessors, -(-rows // rows_of_block)))
    _launcher(columns, out_gradient.dtype, out is not None, device)(
        blocks, out_gradient=out_gradient, out=0 if out is None else out, gradient=gradient, bias_gradient=result,
        block_sums=torch.empty(blocks, columns, device=device),
        num_finished_blocks=new_block_counter(device) if num_finished_blocks is None else num_finished_blocks, num_rows=rows,
    )  # fmt: skip
    return gradient, result


def new_block_counter(device: torch.device) -> Tensor:
    """Returns a counter of finished blocks, () int32 on `device`."""
    return torch.zeros((), dtype=torch.int32, device=device)


def _is_supported(out_gradient: Tensor) -> bool:
    """Returns whether the kernel takes this gradient; `torch.compile` cannot trace a launch."""
    return (
        out_gradient.is_cuda
        and not torch.compiler.is_compiling()
        and out_gradient.dtype in (torch.float32, torch.bfloat16)
        and out_gradient.shape[1] * out_gradient.element_size() % VECTOR_BYTES == 0
        and out_gradient.shape[1] <= THREADS
        and out_gradient.data_ptr() % VECTOR_BYTES == 0
        and torch.cuda.get_device_capability(out_gradient.device) >= MIN_COMPUTE_CAPABILITY
    )
