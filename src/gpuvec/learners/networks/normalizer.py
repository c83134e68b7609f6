"""Normalisation of observations by their running mean and standard deviation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIMIT = 10.0  # absolute value of a normalised observation
# The smallest divisor, with which a nearly constant feature is not amplified.
MIN_STD = 1e-2


class Normalizer(nn.Module):
    """Normalises (..., D) by the moments of all samples of its updates; it starts with mean 0 and variance 1.

    Images (..., C, H, W) are normalised by the moments of each pixel.

    Moments are merged rollout by rollout (Chan, Golub and LeVeque, 1979), in float64: in float32 the count would stop at 2**24.

    Args:
        shape: (D,) or (C, H, W), as one argument for each dimension.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0.0, dtype=torch.float64))

    def update(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Merges the samples `obs`, (T, E, D) or with other leading dimensions, where `mask`, (T, E) bool, is true.

        The mask None stands for all samples; a mask without samples changes nothing.
        """
        self.merge(*self.sample_moments(obs, mask))

    @torch.no_grad()
    def sample_moments(self, obs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the number of the samples `obs` where `mask` is true, (), their mean and their variance, (D,) or (C, H, W).

        All are float64; `obs` and `mask` are as in `update`.
        """
        samples = tuple(range(obs.dim() - self.mean.dim()))
        if mask is None:  # without temporary tensors of the size of the samples, but for one
            mean = obs.mean(samples, dtype=torch.float64)
            count = torch.full_like(self.count, obs.numel() // max(1, self.mean.numel()))
            return count, mean, (obs - mean.float()).square_().mean(samples, dtype=torch.float64)
        weight = mask.view(*mask.shape, *(1,) * self.mean.dim()).to(obs.dtype)
        count = weight.sum(dtype=torch.float64)
        divisor = count.clamp(min=1.0)
        mean = (obs * weight).sum(samples, dtype=torch.float64) / divisor
        var = ((obs - mean.float()).square() * weight).sum(samples, dtype=torch.float64) / divisor
        return count, mean, var

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        """Merges samples of which there are `count`, (), with this `mean` and `var`, (D,) or (C, H, W); all float64."""
        total = self.count + count
        fraction = count / total.clamp(min=1.0)
        change = mean - self.mean
        self.var.copy_((1.0 - fraction) * (self.var + fraction * change.square()) + fraction * var)
        self.mean.add_(fraction * change)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """(D,) or (C, H, W) float64: the divisor of each feature."""
        return self.var.sqrt().clamp(min=MIN_STD)

    def forward(self, obs: Tensor) -> Tensor:
        """Returns `obs`, (E, D) or with other leading dimensions, normalised: float32 from -10 to 10."""
        return ((obs - self.mean.float()) / self.std.float()).clamp(-LIMIT, LIMIT)
