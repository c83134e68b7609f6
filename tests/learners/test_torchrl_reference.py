"""Advantages and n-step returns against those of torchrl, over random rollouts with terminations and truncations."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.data.postprocs import MultiStep
from torchrl.objectives.value.functional import generalized_advantage_estimate

from gpuvec.learners.buffers.replay_buffer import n_step_returns
from gpuvec.learners.estimators.advantage import AdvantageEstimator

SHAPES = [(1, 5), (17, 9), (64, 33), (128, 16)]  # (T, E)


def rollout(steps: int, envs: int, features: int) -> tuple[Any, ...]:
    """Returns (obs, reward, terminated, ended, final_obs, next_obs); half of the episodes that end are truncated."""
    generator = torch.Generator().manual_seed(steps)
    obs = torch.randn(steps + 1, envs, features, generator=generator)
    final = torch.randn(steps, envs, features, generator=generator)
    reward = torch.randn(steps, envs, generator=generator)
    ended = torch.rand(steps, envs, generator=generator) < 0.2
    terminated = ended & (torch.rand(steps, envs, generator=generator) < 0.5)
    return obs, reward, terminated, ended, final, torch.where(ended.unsqueeze(-1), final, obs[1:])


def to_torchrl(x: Any) -> Any:
    """Returns a tensor of shape (T, E) in the shape (E, T, 1) that torchrl uses."""
    return x.T.unsqueeze(-1)


@pytest.mark.parametrize(("steps", "envs"), SHAPES)
def test_advantages_equal_those_of_torchrl(device: str, steps: int, envs: int) -> None:
    gamma, lam = 0.97, 0.9
    values, reward, terminated, ended, final, after = rollout(steps, envs, 1)
    value, final_value, after = (x.squeeze(-1) for x in (values, final, after))
    expected = generalized_advantage_estimate(
        gamma,
        lam,
        to_torchrl(value[:-1]).double(),
        to_torchrl(after).double(),
        to_torchrl(reward).double(),
        to_torchrl(ended),
        to_torchrl(terminated),
    )
    place = "cuda:0" if device == "cuda" else "cpu"
    actual = AdvantageEstimator(place, gamma, lam)(
        *(x.contiguous().to(place) for x in (reward, value, final_value, terminated, ended))
    )
    for ours, their in zip(actual, expected, strict=True):
        torch.testing.assert_close(to_torchrl(ours.cpu()).double(), their, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("steps", "envs"), SHAPES[1:])
def test_n_step_returns_equal_those_of_torchrl(device: str, steps: int, envs: int, n: int) -> None:
    gamma = 0.97
    obs, reward, terminated, ended, final, after = rollout(steps, envs, 3)
    following = {"observation": after.transpose(0, 1), "reward": to_torchrl(reward), "done": to_torchrl(ended)}
    data = {"observation": obs[:-1].transpose(0, 1), "next": following}
    expected = MultiStep(gamma, n)(TensorDict(data, batch_size=[envs, steps]))
    transitions = n_step_returns(*(x.to(device) for x in (obs, reward, terminated, ended, final)), gamma, n)
    total, discount, next_obs = (x.cpu() for x in transitions[:3])
    torch.testing.assert_close(to_torchrl(total), expected["next", "reward"])
    torch.testing.assert_close(next_obs.transpose(0, 1), expected["next", "observation"])
    steps_ahead = expected["steps_to_next_obs"]
    dead = terminated.T.gather(1, torch.arange(steps) + steps_ahead - 1)
    torch.testing.assert_close(discount.T, torch.where(dead, 0.0, gamma**steps_ahead))
