"""Normalisation of the observations of each agent by its own running mean and standard deviation.

Letters: P agents, B samples of an agent, D observation features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpuvec.learners.networks.normalizer import LIMIT, MIN_STD


class StackedNormalizer:
    """The moments of all agents, updated as those of `networks.normalizer.Normalizer`.

    Args:
        num_agents: P.
        features: D.
        device: of the tensors.
    """

    def __init__(self, num_agents: int, features: int, device: str) -> None:
        self.mean = torch.zeros(num_agents, features, dtype=torch.float64, device=device)
        self.var = torch.ones_like(self.mean)
        self.count = torch.zeros(num_agents, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Merges samples into the moments.

        Args:
            obs: (P, B, D).
        """
        num_samples = obs.shape[1]
        mean = obs.sum(1, dtype=torch.float64) / num_samples
        var = (obs - mean.float().unsqueeze(1)).square().sum(1, dtype=torch.float64) / num_samples
        total = self.count + num_samples
        fraction = (num_samples / total).unsqueeze(1)
        change = mean - self.mean
        self.var.copy_((1.0 - fraction) * (self.var + fraction * change.square()) + fraction * var)
        self.mean.add_(fraction * change)
        self.count.copy_(total)

    def __call__(self, obs: Tensor) -> Tensor:
        """Returns `obs`, (P, B, D), normalised."""
        std = self.var.sqrt().clamp(min=MIN_STD).float().unsqueeze(1)
        return ((obs - self.mean.float().unsqueeze(1)) / std).clamp(-LIMIT, LIMIT)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the moments by the names that a single training gives them."""
        return {"mean": self.mean, "var": self.var, "count": self.count}
