"""Normalisation of observations by their running mean and standard deviation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIMIT = 10.0  # absolute value of a normalised observation
# The smallest divisor, with which a nearly constant feature is not amplified.
MIN_STD = 1e-2


class Normalizer(nn.Module):
    """Normalises (..., D) by the moments of all samples of its updates; it starts with mean 0 and variance 1.

    Moments are merged rollout by rollout (Chan, Golub and LeVeque, 1979), in float64: in float32 the count would stop at 2**24.

    Args:
        features: D.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("var", torch.ones(features, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0.0, dtype=torch.float64))

    @torch.no_grad()
    def update(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Merges the samples `obs`, (T, E, D) or with other leading dimensions, where `mask`, (T, E) bool, is true.

        The mask None stands for all samples; a mask without samples changes nothing.
        """
        weight = torch.ones_like(obs[..., :1]) if mask is None else mask.unsqueeze(-1).to(obs.dtype)
        samples = tuple(range(obs.dim() - 1))
        count = weight.sum(dtype=torch.float64)
        divisor = count.clamp(min=1.0)
        mean = (obs * weight).sum(samples, dtype=torch.float64) / divisor
        var = ((obs - mean.float()).square() * weight).sum(samples, dtype=torch.float64) / divisor
        total = self.count + count
        fraction = count / total.clamp(min=1.0)
        change = mean - self.mean
        self.var.copy_((1.0 - fraction) * (self.var + fraction * change.square()) + fraction * var)
        self.mean.add_(fraction * change)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """Returns `obs`, (E, D) or with other leading dimensions, normalised: float32 from -10 to 10."""
        std = self.var.sqrt().clamp(min=MIN_STD)
        return ((obs - self.mean.float()) / std.float()).clamp(-LIMIT, LIMIT)
