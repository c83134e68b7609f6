"""Generalised advantage estimation (Schulman, Moritz, Levine, Jordan and Abbeel, 2016, arXiv:1506.02438), as one kernel.

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

f32, i64, b1 = np.float32, np.int64, np.bool_
AHEAD = 16  # steps that a thread reads before it adds any up: what one waits for memory, all of them wait together


class AdvantageEstimator:
    """The advantage of each step: the sum over k of (gamma lam)^k delta[t + k], up to the end of the episode.

    delta = reward + gamma V(next) - V, and no V(next) after a termination. A truncated episode goes on without us, so its
    last step does look ahead, to V of its final observation; but the sum stops there too, because the next row is another
    episode's.

    Args:
        device: "cpu" or "cuda:<index>".
        gamma: the discount factor.
        lam: lambda, which weighs long sums against the value function.
    """

    def __init__(self, device: str, gamma: float, lam: float) -> None:
        self._launches = ElementwiseLauncher(device)
        self._factors = torch.tensor([gamma, gamma * lam], device=self._launches.place)

    def __call__(
        self,
        reward: Tensor,
        value: Tensor,
        final_value: Tensor,
        terminated: Tensor,
        ended: Tensor,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(advantage, target), (T, E) each; the value function's target is the advantage plus V.

        Args:
            reward: (T, E) float32.
            value: (T + 1, E) float32: V of the observations that the steps began with, and of the one that the last led to.
            final_value: (T, E) float32: where an episode ended, V of its final observation; anything elsewhere.
            terminated: (T, E) bool: nothing follows. So it is for an agent that left, while its environment goes on.
            ended: (T, E) bool: the episode of the environment is over, terminated or truncated.
            out: where to write; None for new tensors.

        Raises:
            TypeError, ValueError: tensors of other types, shapes or devices.
        """
        steps, rows = reward.shape
        advantage, target = out or (torch.empty_like(reward), torch.empty_like(reward))
        of_steps: dict[str, Tensor] = {"reward": reward, "final_value": final_value, "advantage": advantage, "target": target}
        flags = {"terminated": terminated, "ended": ended}
        expected: dict[str, TensorSpec] = dict.fromkeys(of_steps, ((steps, rows), torch.float32))
        expected |= dict.fromkeys(flags, ((steps, rows), torch.bool))
        expected |= {"value": ((steps + 1, rows), torch.float32), "factors": ((2,), torch.float32)}
        tensors = {**of_steps, **flags, "value": value, "factors": self._factors}
        self._launches(ADVANTAGES, rows, tensors, expected, [steps])
        return advantage, target


def _column(ops: MemoryOps) -> Any:
    """A row's steps, from the last to the first."""
    load, store = ops.load, ops.store
    reads = {"reward": "f32", "value": "f32", "final_value": "f32", "terminated": "b1", "ended": "b1"}

    @inline_function
    def add(b: Any, at: int, step: Any, after: Any, total: Any, gamma: Any, decay: Any) -> Any:
        """(V, advantage) of a step, from V after it and the advantage of the next."""
        reward, value, final_value, terminated, ended = step
        following = f32(0.0) if terminated else final_value if ended else after  # chosen, not multiplied: it may be nan
        delta = reward + gamma * following - value
        total = delta if terminated or ended else delta + decay * total
        store(b.advantage, at, total, f32)
        store(b.target, at, total + value, f32)
        return value, total

    source = "def column(b, e):\n    gamma, decay = load(b.factors, 0, f32), load(b.factors, 1, f32)\n"
    source += "    t, total = i64(b.steps), f32(0.0)\n    after = load(b.value, t * b.n + e, f32)\n"
    for count in (AHEAD, 1):
        source += f"    while t >= {count}:\n        t -= {count}\n"
        for k in reversed(range(count)):
            step = ", ".join(f"load(b.{name}, at{k}, {dtype})" for name, dtype in reads.items())
            source += f"        at{k} = (t + {k}) * b.n + e\n        step{k} = ({step})\n"
        for k in reversed(range(count)):
            source += f"        after, total = add(b, at{k}, step{k}, after, total, gamma, decay)\n"
    return inline_function(generate_function("column", source, load=load, add=add, f32=f32, i64=i64, b1=b1))


MEMBERS = ("reward", "final_value", "advantage", "target", "terminated", "ended", "value", "factors", "steps")
ADVANTAGES = Elementwise("advantage", MEMBERS, _column, threads=32)  # small blocks: rows are few
