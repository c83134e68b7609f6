"""Linear layers that compute in the dtype of their input, and layers with a fused ReLU.

A network is memory-bound on rollouts of millions of rows, and a separate ReLU reads and writes all activations once more. In
bfloat16 activations take half the memory that they take in float32.

torch sums the rows of a matrix slowly if it has many rows and few columns: 35 us for 8 MB in bfloat16 on an H200, which memory
alone takes in 2. On a GPU the gradient of a bias has a kernel, which applies the ReLU's derivative and sums the rows in 7 us.

Letters: R rows, N columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.functional import pad

from gpuvec.learners.cuda_graphs.launches import cached_launchers

# Bytes. Tensor cores are twice as fast on rows whose size is a multiple of it.
ALIGNMENT = 16
# For rows of at most so many features padding costs more time than tensor cores save.
MAX_UNPADDED_FEATURES = 32
THREADS = 1024  # of a block of the kernel
MIN_COMPUTE_CAPABILITY = (8, 0)  # of bfloat16
MEMBERS = {
    "out_gradient": "const void*", "out": "const void*", "gradient": "void*", "bias_gradient": "void*", "block_sums": "float*",
    "num_finished_blocks": "unsigned*", "num_rows": "i64",
}  # fmt: skip


class Linear(nn.Linear):
    """A layer x W' + b whose result has the dtype of x.

    The parameters of a new layer are not initialised; `mlp.make_linear` initialises them.
    """

    _cached: dict[torch.dtype, tuple[Tensor, Tensor]] | None = None
    _block_counter: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Returns x W' + b, (R, outputs), for `input`, x, (R, inputs) of a floating-point dtype.

        Other leading dimensions are kept.
        """
        weight, bias = self.parameters_as(input.dtype)
        if input.is_cuda and not torch.compiler.is_compiling():
            return cast(Tensor, _Linear.apply(input, weight, bias, False, self.block_counter(input.device)))  # type: ignore[no-untyped-call]  # of torch's
        return functional.linear(input, weight, bias)

    def reset_parameters(self) -> None:
        """Leaves the parameters uninitialised. `torch.nn.utils.skip_init` does the same, and imports sympy."""

    def block_counter(self, device: torch.device) -> Tensor | None:
        """Returns the counter of `bias_gradient` for this layer, whose gradients are computed on one stream at a time.

        Args:
            device: of the inputs; None is returned on a CPU, and while `torch.compile` traces the layer.
        """
        if device.type != "cuda" or torch.compiler.is_compiling():
            return None
        if self._block_counter is None or self._block_counter.device != device:
            self._block_counter = new_block_counter(device)
        return self._block_counter

    def parameters_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns (weight, bias) as the matrix product takes them, rounded to `dtype`; gradients are not rounded."""
        if self._cached is None:
            return self._round_parameters(dtype)
        if dtype not in self._cached:
            self._cached[dtype] = self._round_parameters(dtype)
        return self._cached[dtype]

    def _round_parameters(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.weight.to(dtype), self.bias.to(dtype)


@contextmanager
def cached_parameters(*modules: Any) -> Iterator[None]:
    """Makes the layers of `modules` round their parameters once for the block, in which no parameter may change.

    Args:
        modules: modules, or other objects, which are ignored.
    """
    layers = [layer for m in modules if isinstance(m, nn.Module) for layer in m.modules() if isinstance(layer, Linear)]
    for layer in layers:
        layer._cached = {}
    try:
        yield
    finally:
        for layer in layers:
            layer._cached = None


class LinearReLU(Linear):
    """A layer max(0, x W' + b), one operation in which the matrix product applies the ReLU before it stores its results."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns max(0, x W' + b), (R, outputs), for `input`, x, (R, inputs) of a floating-point dtype.

        Other leading dimensions are kept.
        """
        counter = self.block_counter(input.device)
        return cast(Tensor, _Linear.apply(input, *self.parameters_as(input.dtype), True, counter))  # type: ignore[no-untyped-call]  # of torch's

    def _round_parameters(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight, bias = super()._round_parameters(dtype)
        return pad_rows(weight), bias


class _Linear(torch.autograd.Function):
    """The product of x, padded to the width of `weight`, with its ReLU if it has one, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, has_relu: bool, num_finished_blocks: Tensor | None
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if weight.shape[1] > rows.shape[1]:
            rows = pad_rows(rows)
        product = torch._addmm_activation if has_relu else torch.addmm
        out: Tensor = product(bias, rows, weight.t())
        ctx.save_for_backward(rows, weight, out if has_relu else None)
        ctx.shape, ctx.num_finished_blocks = x.shape, num_finished_blocks
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        rows, weight, out = ctx.saved_tensors
        inputs = ctx.shape[-1]
        gradient, sums = bias_gradient(out_gradient.reshape(-1, len(weight)), out, ctx.num_finished_blocks)
        x_gradient = (gradient @ weight)[:, :inputs].reshape(ctx.shape) if ctx.needs_input_grad[0] else None
        return x_gradient, gradient.t() @ rows, sums, None, None


def pad_rows(rows: Tensor) -> Tensor:
    """Returns `rows`, (R, features), padded by zeros to a multiple of 16 bytes; rows of few features are not padded."""
    missing = -rows.shape[-1] % (ALIGNMENT // rows.element_size())
    return pad(rows, (0, missing)) if missing and rows.shape[-1] > MAX_UNPADDED_FEATURES else rows


def bias_gradient_kernels(columns: int, dtype: torch.dtype, has_relu: bool, threads: int = THREADS) -> dict[str, Any]:
    """Returns the `CudaSource` of the kernel, by its name.

    Args:
        columns: N, at most `threads`, whole vectors of `ALIGNMENT` bytes.
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
    return {"bias_gradient": CudaSource(Path(__file__).with_name("bias_gradient.cu"), "bias_gradient", *names, threads)}


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
    rows_of_block = THREADS * ALIGNMENT // (columns * out_gradient.element_size())
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(multiprocessors, -(-rows // rows_of_block)))
    launch = cached_launchers(bias_gradient_kernels, device, columns, out_gradient.dtype, out is not None)["bias_gradient"]
    launch(
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
        and out_gradient.shape[1] * out_gradient.element_size() % ALIGNMENT == 0
        and out_gradient.shape[1] <= THREADS
        and out_gradient.data_ptr() % ALIGNMENT == 0
        and torch.cuda.get_device_capability(out_gradient.device) >= MIN_COMPUTE_CAPABILITY
    )
