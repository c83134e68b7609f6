"""Means and variances over the samples that count: agents in the game.

Without a mask all samples count, at no further cost. The number of those that do is never read, so no shape depends on it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of `x` where `mask`, 0 if nothing counts."""
    if mask is None:
        return x.mean()
    return x.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def masked_var_mean(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(variance, mean) of `x` where `mask`; the variance is the unbiased one, 0 if less than two samples count."""
    if mask is None:
        return torch.var_mean(x)
    centre = masked_mean(x, mask)
    return (x - centre).square().where(mask, 0.0).sum() / (mask.sum() - 1).clamp(min=1), centre
