"""Linear layers that compute in the dtype of their input, and layers with a fused ReLU.

A network is memory-bound on rollouts of millions of rows, and a separate ReLU reads and writes all activations once more. In
bfloat16 activations take half the memory that they take in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.functional import pad

from gpuvec.learners.networks.bias_gradient import bias_gradient, new_block_counter

# Bytes. Tensor cores are twice as fast on rows whose size is a multiple of it.
ALIGNMENT = 16
# For rows of at most so many features padding costs more time than tensor cores save.
MAX_UNPADDED_FEATURES = 32


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
