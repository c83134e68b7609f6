"""A network of your own.

gpuvec train --env gpuvec/CartPole-v1 --network networks:Residual --network-args width=64 blocks=2
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Residual(nn.Module):
    """Residual blocks, which policy and value function share."""

    def __init__(self, observation_space: Any, action_space: Any, width: int = 32, blocks: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(blocks))
        self.head = nn.Linear(width, int(action_space.n) + 1)

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits of the actions, (..., N), and the expected return, (...,)."""
        x = self.first(obs)
        for block in self.blocks:
            x = x + block(x)
        outputs = self.head(x)
        return outputs[..., :-1], outputs[..., -1]

    def policy(self, obs: Tensor) -> Tensor:
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        return self.both(obs)[1]
