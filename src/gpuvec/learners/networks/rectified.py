"""A linear layer and its rectifier in one pass over memory.

In rollouts of millions of rows a network waits for memory, and a rectifier of its own reads and writes all of it once more:
here the matrix product rectifies its results before it puts them down. `Linear` and `Rectified` reckon in the precision of what
they are given: in bfloat16 an activation has half the size.
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

NARROW = 32  # features, from which on it pays to pad rows to multiples of 16 bytes, on which matrix units are twice as fast
BYTES = 16


class Linear(nn.Linear):
    """x W' + b, for x (..., inputs) of any floating-point dtype, which that of the result is.

    A new layer's parameters are not initialised: whoever makes it fills them.
    """

    _known: dict[torch.dtype, tuple[Tensor, Tensor]] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., outputs)."""
        return functional.linear(input, *self.parameters_as(input.dtype))

    def reset_parameters(self) -> None:
        """Leaves the parameters uninitialised. `torch.nn.utils.skip_init` does the same, and imports sympy."""

    def parameters_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(weight, bias) as the product takes them, rounded to `dtype`; their gradients are not."""
        if self._known is None:
            return self._made(dtype)
        if dtype not in self._known:
            self._known[dtype] = self._made(dtype)
        return self._known[dtype]

    def _made(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.weight.to(dtype), self.bias.to(dtype)


@contextmanager
def unchanging(*modules: Any) -> Iterator[None]:
    """Layers of these modules round their parameters once: for rollouts, in which no parameter changes and none is learned."""
    layers = [layer for m in modules if isinstance(m, nn.Module) for layer in m.modules() if isinstance(layer, Linear)]
    for layer in layers:
        layer._known = {}
    try:
        yield
    finally:
        for layer in layers:
            layer._known = None


class Rectified(Linear):
    """max(0, x W' + b)."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., outputs)."""
        return cast(Tensor, _Rectified.apply(input, *self.parameters_as(input.dtype)))  # type: ignore[no-untyped-call]  # of torch's

    def _made(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight, bias = super()._made(dtype)
        return aligned(weight, 0.0), bias


class _Rectified(torch.autograd.Function):
    """torch has the product, but not its gradient. Rows that are filled up to the width of `weight` are so by ones, which meet
    zeros there; in the weights' gradient their place holds the sum over rows, which is the bias's.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = aligned(x.reshape(-1, x.shape[-1]), 1.0)
        out = torch._addmm_activation(bias, rows, weight.t())
        ctx.save_for_backward(rows, weight, out)
        ctx.shape = x.shape
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        rows, weight, out = ctx.saved_tensors
        inputs = ctx.shape[-1]
        passed = torch.ops.aten.threshold_backward(gradient.reshape(out.shape), out, 0)
        of_x = (passed @ weight)[:, :inputs].reshape(ctx.shape) if ctx.needs_input_grad[0] else None
        of_weight = passed.t() @ rows
        of_bias = of_weight[:, inputs].contiguous() if rows.shape[1] > inputs else passed.sum(0)
        return of_x, of_weight, of_bias


def aligned(rows: Tensor, value: float) -> Tensor:
    """Wide rows with `value` up to a multiple of 16 bytes."""
    missing = -rows.shape[-1] % (BYTES // rows.element_size())
    return pad(rows, (0, missing), value=value) if missing and rows.shape[-1] > NARROW else rows
