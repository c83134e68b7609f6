"""Means and variances over the samples that a mask selects: active agents.

Without a mask all samples count, at no further cost. The number of selected samples is never read by the host, so no shape
depends on it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the mean of `x`, (...), where `mask`, (...) bool or None for all; 0 where it selects nothing."""
    if mask is None:
        return x.mean()
    return x.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def masked_var_mean(x: Tensor, mask: Tensor | None, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns the unbiased variance and the mean of `x`, (...), where `mask`, (...) bool or None for all.

    The variance is 0 where the mask selects less than two samples.

    Args:
        x: the samples.
        mask: the samples that count.
        dim: the dimension that is reduced; None for all.
    """
    if mask is None:
        return torch.var_mean(x, dim)
    count = mask.sum(dim)
    mean = x.where(mask, 0.0).sum(dim) / count.clamp(min=1)
    deviation = x - (mean if dim is None else mean.unsqueeze(dim))
    return deviation.square().where(mask, 0.0).sum(dim) / (count - 1).clamp(min=1), mean
