"""Rewards in units of the deviation of discounted returns (Engstrom et al., 2020, arXiv:2005.12729, section 3).

Letters: T steps, E rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise import Elementwise
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec
from gpuvec.learners.networks.normalizer import Normalizer

f32, i64, b1 = np.float32, np.int64, np.bool_
AHEAD = 16  # steps that a thread reads at once
EPSILON = 1e-8  # of the variance


class RewardScaler:
    """reward / sqrt(var), var being the running variance of G <- gamma G + reward, all rows pooled.

    G starts at 0 with each episode, and the reward that ends one counts in it. The variance is that of all rollouts up to the
    one whose rewards are scaled; rewards are not centred.
    """

    def __init__(self, rows: int, gamma: float, device: str) -> None:
        self._launches = ElementwiseLauncher(device)
        self._gamma = torch.tensor([gamma], device=device)
        self.running = torch.zeros(rows, device=device)
        self.moments = Normalizer(1).to(device)

    @torch.no_grad()
    def __call__(self, reward: Tensor, over: Tensor, mask: Tensor | None = None) -> Tensor:
        """(T, E) scaled rewards.

        Args:
            reward: (T, E) float32, 0 outside the mask.
            over: (T, E) bool: the row's episode ended in that step.
            mask: (T, E) bool: the steps that count; None for all.

        Raises:
            TypeError, ValueError: tensors of other types, shapes or devices.
        """
        steps, rows = len(reward), len(self.running)
        returns = torch.empty_like(reward)
        tensors = {"reward": reward, "over": over, "returns": returns, "running": self.running, "gamma": self._gamma}
        expected: dict[str, TensorSpec] = dict.fromkeys(("reward", "returns"), ((steps, rows), torch.float32))
        expected |= {"over": ((steps, rows), torch.bool), "running": (tuple(self.running.shape), torch.float32)}
        expected |= {"gamma": ((1,), torch.float32)}
        self._launches(DISCOUNTED_RETURNS, rows, tensors, expected, [steps])
        self.moments.update(returns.unsqueeze(-1), mask)
        return reward / (self.moments.var + EPSILON).sqrt().float()

    def tensors(self) -> dict[str, Tensor]:
        """What the next rollout depends on."""
        return {"running": self.running, **self.moments.state_dict()}


def _column(ops: MemoryOps) -> Any:
    """A row's steps, from the first to the last."""
    load, store = ops.load, ops.store

    @inline_function
    def add(b: Any, at: int, reward: Any, over: bool, total: Any, gamma: Any) -> Any:
        """G of the next step's episode so far."""
        total = gamma * total + reward
        store(b.returns, at, total, f32)
        return f32(0.0) if over else total

    source = "def column(b, e):\n    t, gamma, total = i64(0), load(b.gamma, 0, f32), load(b.running, e, f32)\n"
    for count in (AHEAD, 1):
        source += f"    while t <= i64(b.steps) - {count}:\n"
        for k in range(count):
            source += f"        at{k} = (t + {k}) * b.n + e\n"
            source += f"        r{k}, o{k} = load(b.reward, at{k}, f32), load(b.over, at{k}, b1)\n"
        source += "".join(f"        total = add(b, at{k}, r{k}, o{k}, total, gamma)\n" for k in range(count))
        source += f"        t += {count}\n"
    source += "    store(b.running, e, total, f32)\n"
    return inline_function(generate_function("column", source, load=load, store=store, add=add, f32=f32, i64=i64, b1=b1))


DISCOUNTED_RETURNS = Elementwise("returns", ("reward", "over", "returns", "running", "gamma", "steps"), _column, threads=32)
