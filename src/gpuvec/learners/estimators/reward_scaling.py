"""Rewards in units of the standard deviation of discounted returns (Engstrom et al., 2020, arXiv:2005.12729, section 3).

Letters: T steps, R rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec
from gpuvec.learners.networks.normalizer import Normalizer

f32, i64, b1 = np.float32, np.int64, np.bool_
PREFETCHED_STEPS = 16  # steps that a thread loads before it computes
EPSILON = 1e-8  # added to the variance


class RewardScaler:
    """reward / sqrt(var), where var is the running variance of G <- gamma G + reward over all rows.

    G starts at 0 with each episode, and includes the reward of the last step. The variance is that of all rollouts so far,
    including the one whose rewards are scaled. Rewards are not centred. G is discounted once for each action: in steps in which
    a row waits, rewards are added without a discount.

    Args:
        rows: R.
        gamma: the discount factor.
        device: "cpu" or "cuda:<index>".

    Attributes:
        moments: those of G, of all shards of a training. Its caller adds the samples of each rollout, see `returns`.
    """

    def __init__(self, rows: int, gamma: float, device: str) -> None:
        self._launcher = ElementwiseLauncher(device)
        self._gamma = torch.tensor([gamma], device=device)
        self.running = torch.zeros(rows, device=device)
        self.moments = Normalizer(1).to(device)

    @torch.no_grad()
    def returns(self, reward: Tensor, done: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns G of each step of a rollout, (T, R, 1) float32, of which the steps in episodes count for the variance.

        Args:
            reward: (T, R) float32, 0 outside the row's episodes.
            done: (T, R) bool: the row's episode ended in that step.
            mask: (T, R) bool: the steps in which the row acted; None for all.

        Raises:
            TypeError, ValueError: tensors of other types, shapes or devices.
        """
        steps, rows = len(reward), len(self.running)
        returns = torch.empty_like(reward)
        numbers = {"returns": returns, "running": self.running, "gamma": self._gamma}
        tensors = {"reward": reward, "done": done, "mask": mask, **numbers}
        expected: dict[str, TensorSpec] = dict.fromkeys(("reward", "returns"), ((steps, rows), torch.float32))
        expected |= dict.fromkeys(("done", "mask"), ((steps, rows), torch.bool))
        expected |= {"running": (tuple(self.running.shape), torch.float32), "gamma": ((1,), torch.float32)}
        kernel = DISCOUNTED_RETURNS if mask is None else MASKED_DISCOUNTED_RETURNS
        self._launcher(kernel, rows, tensors, expected, [steps])
        return returns.unsqueeze(-1)

    @property
    def deviation(self) -> Tensor:
        """(1,) float32: the number by which rewards are divided."""
        return (self.moments.var + EPSILON).sqrt().float()

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns all tensors that the next rollout depends on."""
        return {"running": self.running, **self.moments.state_dict()}


def _make_column(ops: MemoryOps, has_mask: bool) -> DeviceFunction:
    """Returns the function of a row, which goes through its steps from the first to the last.

    Args:
        ops: the memory operations of the target.
        has_mask: whether rows do not act in each step.
    """
    load, store = ops.load, ops.store

    @inline_function
    def add(
        b: Batch, index: int, reward: np.float32, done: bool, acts: bool, total: np.float32, gamma: np.float32
    ) -> np.float32:
        """Stores G of a step, and returns G before the next one."""
        total = gamma * total + reward if acts else total + reward
        store(b.returns, index, total, f32)
        return f32(0.0) if done else total

    source = "def column(b, row):\n    t, gamma, total = i64(0), load(b.gamma, 0, f32), load(b.running, row, f32)\n"
    for count in (PREFETCHED_STEPS, 1):
        source += f"    while t <= i64(b.steps) - {count}:\n"
        for k in range(count):
            source += f"        index{k} = (t + {k}) * b.n + row\n"
            source += f"        reward{k}, done{k} = load(b.reward, index{k}, f32), load(b.done, index{k}, b1)\n"
            source += f"        acts{k} = {f'load(b.mask, index{k}, b1)' if has_mask else 'True'}\n"
        calls = (f"        total = add(b, index{k}, reward{k}, done{k}, acts{k}, total, gamma)\n" for k in range(count))
        source += "".join(calls)
        source += f"        t += {count}\n"
    source += "    store(b.running, row, total, f32)\n"
    column: DeviceFunction = inline_function(
        generate_function("column", source, load=load, store=store, add=add, f32=f32, i64=i64, b1=b1)
    )
    return column


MEMBERS = ("reward", "done", "mask", "returns", "running", "gamma", "steps")
DISCOUNTED_RETURNS = Elementwise("returns", MEMBERS, _make_column, (False,), threads=32)
MASKED_DISCOUNTED_RETURNS = Elementwise("masked returns", MEMBERS, _make_column, (True,), threads=32)
