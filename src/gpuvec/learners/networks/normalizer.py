"""Observations in units of their running standard deviation, around their running mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIMIT = 10.0  # of what comes out
LEAST = 1e-2  # standard deviation: a feature that hardly ever changes is not blown up


class Normalizer(nn.Module):
    """Normalises (..., D) by the moments of all that it was updated with; it starts with mean 0 and variance 1.

    Moments are merged rollout by rollout (Chan, Golub and LeVeque, 1979), in float64: in float32 the count would stop at 2**24.
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
        """Merges the samples (..., D) where `mask` (...); none is no change."""
        weight = torch.ones_like(obs[..., :1]) if mask is None else mask.unsqueeze(-1).to(obs.dtype)
        samples = tuple(range(obs.dim() - 1))
        count = weight.sum(dtype=torch.float64)
        among = count.clamp(min=1.0)
        mean = (obs * weight).sum(samples, dtype=torch.float64) / among
        var = ((obs - mean.float()).square() * weight).sum(samples, dtype=torch.float64) / among
        total = self.count + count
        share = count / total.clamp(min=1.0)
        change = mean - self.mean
        self.var.copy_((1.0 - share) * (self.var + share * change.square()) + share * var)
        self.mean.add_(share * change)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """The normalised observations, float32 within +-10."""
        deviation = self.var.sqrt().clamp(min=LEAST)
        return ((obs - self.mean.float()) / deviation.float()).clamp(-LIMIT, LIMIT)
