"""A linear layer and its rectifier in one pass over memory.

In rollouts of millions of rows a network waits for memory, and a rectifier of its own reads and writes all of it once more:
here the matrix product rectifies its results before it puts them down. `Linear` and `Rectified` reckon in the precision of what
they are given: in bfloat16 an activation has half the size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.functional import pad

NARROW = 32  # features, from which on it pays to pad rows to multiples of 16 bytes, on which matrix units are twice as fast
BYTES = 16


class Linear(nn.Linear):
    """x W' + b, for x (..., inputs) of any floating-point dtype, which that of the result is."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., outputs)."""
        return functional.linear(input, *self.parameters_as(input.dtype))

    def parameters_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(weight, bias), rounded to `dtype`; their gradients are not."""
        return self.weight.to(dtype), self.bias.to(dtype)


class Rectified(Linear):
    """max(0, x W' + b)."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., outputs)."""
        return cast(Tensor, _Rectified.apply(input, *self.parameters_as(input.dtype)))  # type: ignore[no-untyped-call]  # of torch's


class _Rectified(torch.autograd.Function):
    """torch has the product, but not its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = aligned(x.reshape(-1, x.shape[-1]))
        out = torch._addmm_activation(bias, rows, aligned(weight).t())
        ctx.save_for_backward(rows, weight, out)
        ctx.shape = x.shape
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        rows, weight, out = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradient.reshape(out.shape), out, 0)
        of_x = (passed @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return of_x, (passed.t() @ rows)[:, : weight.shape[1]].contiguous(), passed.sum(0)


def aligned(rows: Tensor) -> Tensor:
    """Wide rows with zeros up to a multiple of 16 bytes."""
    missing = -rows.shape[-1] % (BYTES // rows.element_size())
    return pad(rows, (0, missing)) if missing and rows.shape[-1] > NARROW else rows
