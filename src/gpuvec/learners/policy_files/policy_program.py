"""The function of a policy that is exported: from observations to the most probable action and the value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpuvec.learners.environments import AgentSpaces
from gpuvec.learners.evaluation.players import action_distribution
from gpuvec.learners.networks.deterministic import DeterministicActorCritic
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy, value_of

# The largest difference of an output, relative to it and to the largest output. Sums in another order differ by about 1e-6.
TOLERANCE = 1e-4
MAX_LOGIT = 1e7  # absolute value; logits of forbidden actions are larger


class PolicyProgram(nn.Module):
    """Maps `obs`, (R, ...), and in environments with action masks `action_mask`, (R, N) bool, to a tuple of outputs.

    The outputs are

    - `action`, (R,) or (R, K): the most probable action, as the environment takes it,
    - `logits`, (R, N), of discrete actions, or `mean`, (R, K), of continuous ones; not of DDPG, which has the action alone,
    - `value`, (R,): the expected return; not in environments whose value function takes observations of a critic.

    Args:
        policy: the policies.
        role: the role of the one that is copied. The copy is on the CPU, and computes in float32 also where the training had
            the precision bf16.
    """

    def __init__(self, policy: TrainedPolicy, role: str) -> None:
        super().__init__()
        self.spaces: AgentSpaces = policy.spaces[role]
        self.network: Any = copy.deepcopy(policy.networks[role]).cpu()
        for module in self.network.modules():
            if getattr(module, "dtype", None) == torch.bfloat16:
                module.dtype = torch.float32
        self.has_value = self.spaces.critic_observation is None
        is_deterministic = isinstance(self.network, DeterministicActorCritic)
        is_continuous = isinstance(self.spaces.action, gym.spaces.Box)
        self.parameter_names = () if is_deterministic else ("mean",) if is_continuous else ("logits",)
        self.input_names = ("obs", "action_mask") if self.spaces.has_masks else ("obs",)
        self.output_names = ("action", *self.parameter_names, *(("value",) if self.has_value else ()))
        self.eval()

    def forward(self, obs: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the outputs in the order of `output_names`.

        Args:
            obs: (R, ...).
            action_mask: (R, N) bool; None in environments without action masks.
        """
        distribution = action_distribution(self.network, obs, action_mask)
        outputs = self.network.control(distribution.mode()), *(getattr(distribution, name) for name in self.parameter_names)
        return (*outputs, value_of(self.network, obs)) if self.has_value else outputs

    def random_inputs(self, num_rows: int, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Returns inputs for a check: observations with the normaliser's moments, and masks that allow half of the actions.

        Args:
            num_rows: R.
            rng: the source of random numbers.
        """
        space = self.spaces.observation
        assert isinstance(space, gym.spaces.Box), "observations are elements of a Box"
        shape = (num_rows, *(space.shape or (1,)))
        if space.dtype == np.uint8:
            obs = torch.from_numpy(rng.integers(space.low, space.high, shape, dtype=np.uint8, endpoint=True))
        else:
            obs = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            if self.network.normalizer is not None:
                obs = (self.network.normalizer.mean + self.network.normalizer.var.sqrt() * obs).float()
        if not self.spaces.has_masks:
            return (obs,)
        parts = []
        for size in self._component_sizes():
            part = rng.random((num_rows, size)) < 0.5
            part[np.arange(num_rows), rng.integers(size, size=num_rows)] = True
            parts.append(part)
        return obs, torch.from_numpy(np.concatenate(parts, 1))

    def _component_sizes(self) -> tuple[int, ...]:
        """The numbers of choices of each component of a discrete action."""
        space = self.spaces.action
        return (int(space.n),) if isinstance(space, gym.spaces.Discrete) else tuple(map(int, space.nvec))  # type: ignore[attr-defined]  # a MultiDiscrete

    def describe_difference(self, expected: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> str:
        """Returns how the outputs of an exported program differ from those of this one, for the same inputs; "" for equal ones.

        Actions of almost equal probability count as equal.

        Args:
            expected: {name: array} of this program.
            outputs: {name: array} of the exported one.
        """
        for name in self.output_names:
            reference, output = expected[name], outputs[name]
            if output.shape != reference.shape or output.dtype != reference.dtype:
                return f"{name} is {output.dtype} {output.shape} in place of {reference.dtype} {reference.shape}"
            if np.issubdtype(reference.dtype, np.integer):
                is_equal = self._is_most_probable(expected["logits"], output)
            else:
                is_equal = np.allclose(output, reference, rtol=TOLERANCE, atol=TOLERANCE * _largest(reference))
            if not is_equal:
                difference = np.abs(output.astype(np.float64) - reference).max()
                return f"{name} differs by up to {difference:.3g}"
        return ""

    def _is_most_probable(self, logits: NDArray[Any], action: NDArray[Any]) -> bool:
        """Whether no action has a logit that is larger by more than the tolerance than that of `action`, (R,) or (R, K)."""
        indices = (action - self.spaces.action.start).reshape(len(action), -1).T  # type: ignore[attr-defined]  # of discrete spaces
        parts = np.split(logits, np.cumsum(self._component_sizes())[:-1], 1)
        margin = TOLERANCE * _largest(logits)
        for index, part in zip(indices, parts, strict=True):
            if not ((index >= 0) & (index < part.shape[1])).all():
                return False
            if (np.take_along_axis(part, index[:, None], 1)[:, 0] < part.max(1) - margin).any():
                return False
        return True


def _largest(values: NDArray[Any]) -> float:
    """The largest absolute value, at least 1, logits of forbidden actions excepted."""
    sizes = np.abs(values)
    return float(sizes.max(initial=1.0, where=sizes < MAX_LOGIT))
