"""A linear layer and its rectifier in one pass over memory.

In rollouts of millions of rows a network waits for memory, and a rectifier of its own reads and writes all of it once more:
here the matrix product rectifies its results before it puts them down.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

NARROW = 32  # features, from which on it pays to pad rows to multiples of 16 bytes, on which matrix units are twice as fast


class Rectified(nn.Linear):
    """max(0, x W' + b), for x (..., inputs)."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., outputs)."""
        return cast(Tensor, _Rectified.apply(input, self.weight, self.bias))  # type: ignore[no-untyped-call]  # of torch's


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
    missing = -rows.shape[-1] % 4
    return pad(rows, (0, missing)) if missing and rows.shape[-1] > NARROW else rows
