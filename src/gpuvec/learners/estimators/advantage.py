"""Generalised advantage estimation (Schulman, Moritz, Levine, Jordan and Abbeel, 2016, arXiv:1506.02438), as one kernel.

Letters: T steps, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec

f32, i64, b1 = np.float32, np.int64, np.bool_
PREFETCHED_STEPS = 16  # steps that a thread loads before it computes, so that the latencies of these loads overlap


class AdvantageEstimator:
    """The advantage of each step: the sum over k of (gamma lam)^k delta[t + k], up to the end of the episode.

    delta = reward + gamma V(next) - V, without V(next) after a termination. A truncated episode would have continued, so its
    last step uses V of its final observation; the sum stops there too, because the next step belongs to another episode.

    With a mask the sum is over the steps in which a row acts: an agent that waits for its turn does not act. The reward of an
    action then includes the rewards until the next action, and V(next) is that of the observation at the next action, so that
    both are discounted once for each action. After the last action of a rollout it is V of the observation after the rollout.
    A row that acts again after it had terminated begins another episode.

    Args:
        device: "cpu" or "cuda:<index>".
        gamma: the discount factor.
        lam: lambda, the weight of long sums against the value function.
    """

    def __init__(self, device: str, gamma: float, lam: float) -> None:
        self._launcher = ElementwiseLauncher(device)
        self._factors = torch.tensor([[gamma, gamma * lam]], device=self._launcher.tensor_device)

    def __call__(
        self,
        reward: Tensor,
        value: Tensor,
        final_value: Tensor,
        terminated: Tensor,
        ended: Tensor,
        out: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns (advantage, target), (T, R) float32 each; the target of the value function is the advantage plus V.

        The advantage of a step in which a row does not act is 0.

        Args:
            reward: (T, R) float32.
            value: (T + 1, R) float32: V of the observations before the steps, and of the one after the last.
            final_value: (T, R) float32: V of an episode's final observation where it ended, undefined elsewhere.
            terminated: (T, R) bool: the environment or this agent terminated.
            ended: (T, R) bool: the episode of the environment is over, terminated or truncated.
            out: tensors to write to; None for new ones.
            mask: (T, R) bool: the steps in which the row acts; None for all.
            factors: (P, 2) float32: gamma and gamma lambda of P policies that have R / P adjacent rows each; None for those of
                the estimator.

        Raises:
            TypeError, ValueError: tensors of other types, shapes or devices.
        """
        steps, rows = reward.shape
        factors = self._factors if factors is None else factors
        if rows % len(factors):
            raise ValueError(f"{len(factors)} policies must have equally many rows, got {rows} rows.")
        advantage, target = out or (torch.empty_like(reward), torch.empty_like(reward))
        numbers: dict[str, Tensor] = {
            "reward": reward, "final_value": final_value, "advantage": advantage, "target": target
        }  # fmt: skip
        flags = {"terminated": terminated, "ended": ended, "mask": mask}
        expected: dict[str, TensorSpec] = dict.fromkeys(numbers, ((steps, rows), torch.float32))
        expected |= dict.fromkeys(flags, ((steps, rows), torch.bool))
        expected |= {"value": ((steps + 1, rows), torch.float32), "factors": ((len(factors), 2), torch.float32)}
        tensors: dict[str, Tensor | None] = {**numbers, **flags, "value": value, "factors": factors}
        numbers_of_kernel = [steps, max(1, rows // len(factors))]
        self._launcher(ADVANTAGES if mask is None else MASKED_ADVANTAGES, rows, tensors, expected, numbers_of_kernel)
        return advantage, target


def compute_final_values(
    value: Callable[[Tensor], Tensor], final_obs: Tensor, truncated: Tensor, max_truncations: int, out: Tensor
) -> None:
    """Computes V of the final observations of truncated episodes; other elements of `out` do not change.

    A truncated episode has as many steps as the limit, so a row has at most `max_truncations` of them in a rollout. Each pass
    takes one of each row, so that V is computed for R rows instead of T * R.

    Args:
        value: returns V, (R,), for observations, (R, ...).
        final_obs: (T, R, ...): the last observation of an episode, defined where `truncated`.
        truncated: (T, R) bool: an episode was truncated in that step.
        max_truncations: upper bound of an environment's truncated episodes in a rollout.
        out: (T, R) float32, which is written.
    """
    for _ in range(max_truncations):
        step = truncated.byte().argmax(0, keepdim=True)  # (1, R): the first of each row
        index = step.view(1, -1, *[1] * (final_obs.dim() - 2)).expand(1, *final_obs.shape[1:])
        out.scatter_(0, step, value(final_obs.gather(0, index).squeeze(0)).unsqueeze(0))
        truncated = truncated.scatter(0, step, False)


def _make_column(ops: MemoryOps) -> DeviceFunction:
    """Returns the function of a row that acts in each step."""
    store = ops.store
    inputs = {"reward": "f32", "value": "f32", "final_value": "f32", "terminated": "b1", "ended": "b1"}

    @inline_function
    def add(
        b: Batch,
        index: int,
        step: tuple[np.float32, np.float32, np.float32, bool, bool],
        next_value: np.float32,
        advantage: np.float32,
        gamma: np.float32,
        decay: np.float32,
    ) -> tuple[np.float32, np.float32]:
        """Returns V and advantage of a step, for V after it and the advantage of the next step."""
        reward, value, final_value, terminated, ended = step
        # A choice and not a product with a flag, because values that are not used may be nan.
        following = f32(0.0) if terminated else final_value if ended else next_value
        delta = reward + gamma * following - value
        advantage = delta if terminated or ended else delta + decay * advantage
        store(b.advantage, index, advantage, f32)
        store(b.target, index, advantage + value, f32)
        return value, advantage

    return _generate_column(ops, add, inputs, ("next_value", "advantage"))


def _make_masked_column(ops: MemoryOps) -> DeviceFunction:
    """Returns the function of a row that does not act in each step."""
    store = ops.store
    inputs = {"reward": "f32", "value": "f32", "final_value": "f32", "terminated": "b1", "ended": "b1", "mask": "b1"}

    @inline_function
    def add(
        b: Batch,
        index: int,
        step: tuple[np.float32, np.float32, np.float32, bool, bool, bool],
        next_value: np.float32,
        advantage: np.float32,
        waiting_reward: np.float32,
        gamma: np.float32,
        decay: np.float32,
    ) -> tuple[np.float32, np.float32, np.float32]:
        """Returns V and advantage of the first action from this step on, and the rewards before it.

        The arguments are those of the first action after this step, or of the end of the rollout.
        """
        reward, value, final_value, terminated, ended, acts = step
        # What follows the end of an episode belongs to another episode.
        is_last = terminated or ended
        following = f32(0.0) if terminated else final_value if ended else next_value
        reward = reward if is_last else reward + waiting_reward
        delta = reward + gamma * following - value
        own_advantage = delta if is_last else delta + decay * advantage
        store(b.advantage, index, own_advantage if acts else f32(0.0), f32)
        store(b.target, index, own_advantage + value if acts else value, f32)
        if acts:
            return value, own_advantage, f32(0.0)
        return following, f32(0.0) if is_last else advantage, reward

    return _generate_column(ops, add, inputs, ("next_value", "advantage", "waiting_reward"))


def _generate_column(
    ops: MemoryOps, add: DeviceFunction, inputs: Mapping[str, str], carried: tuple[str, ...]
) -> DeviceFunction:
    """Returns the function of a row, which calls `add` for its steps from the last to the first.

    Args:
        ops: the memory operations of the target.
        add: `add(b, index, step, *carried, gamma, decay)` returns the values of `carried` for the step before.
        inputs: {member: dtype} of the values of a step.
        carried: names of the values that a step passes to the one before, of which the first is initially V of the last
            observation, and the others are 0.
    """
    variables, load = ", ".join(carried), ops.load
    source = "def column(b, row):\n    index = i64(2) * (i64(row) // i64(b.rows_per_policy))\n"
    source += "    gamma, decay = load(b.factors, index, f32), load(b.factors, index + 1, f32)\n    t = i64(b.steps)\n"
    source += f"    {variables} = load(b.value, t * b.n + row, f32){', f32(0.0)' * (len(carried) - 1)}\n"
    for count in (PREFETCHED_STEPS, 1):
        source += f"    while t >= {count}:\n        t -= {count}\n"
        for k in reversed(range(count)):
            loads = ", ".join(f"load(b.{name}, index{k}, {dtype})" for name, dtype in inputs.items())
            source += f"        index{k} = (t + {k}) * b.n + row\n        step{k} = ({loads})\n"
        for k in reversed(range(count)):
            source += f"        {variables} = add(b, index{k}, step{k}, {variables}, gamma, decay)\n"
    column: DeviceFunction = inline_function(generate_function("column", source, load=load, add=add, f32=f32, i64=i64, b1=b1))
    return column


MEMBERS = (
    "reward",
    "final_value",
    "advantage",
    "target",
    "terminated",
    "ended",
    "mask",
    "value",
    "factors",
    "steps",
    "rows_per_policy",
)
# Blocks are small, because there are few rows.
ADVANTAGES = Elementwise("advantage", MEMBERS, _make_column, threads=32)
MASKED_ADVANTAGES = Elementwise("masked advantage", MEMBERS, _make_masked_column, threads=32)
