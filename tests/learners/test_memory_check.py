"""A learner whose tensors do not fit into memory is refused before any of them is allocated."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gymnasium as gym

from gpuvec.errors import OutOfMemoryError
from gpuvec.learners import ddpg, ppo
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.buffers.memory_check import rollout_bytes
from gpuvec.learners.training import train


def test_a_rollout_that_does_not_fit_is_refused(device: str) -> None:
    args = ppo.PPOArgs(env="gpuvec/CartPole-v1", device=device, num_envs=64, num_steps=10**10, total_steps=1)
    with pytest.raises(OutOfMemoryError, match=r"a rollout of 10,000,000,000 steps of 64 environments") as raised:
        train(args)
    needed, free = (int(x.replace(",", "")) for x in re.findall(r"([\d,]+) (?:bytes|are free)", str(raised.value)))
    assert needed > 64 * 10**10 * 2 * 4 * 4
    assert 0 < free < needed
    # The process can still train afterwards.
    train(ppo.PPOArgs(env="gpuvec/CartPole-v1", device=device, num_envs=4, num_steps=4, total_steps=16))


def test_a_replay_buffer_that_does_not_fit_is_refused(device: str) -> None:
    args = ddpg.DDPGArgs(env="gpuvec/Pendulum-v1", device=device, num_envs=4, num_steps=4, buffer_size=10**13)
    with pytest.raises(OutOfMemoryError, match=r"a replay buffer of 10,000,000,000,000 transitions needs [\d,]+ bytes"):
        train(args)


@pytest.mark.parametrize(
    ("env", "params"),
    [("gpuvec/CartPole-v1", {}), ("gpuvec/TagGridWorld-v0", {"num_taggers": 3})],
)
def test_rollout_bytes_equals_the_allocated_bytes(env: str, params: dict[str, Any]) -> None:
    envs = gym.make_vec(env, 5, device="cpu", output="torch", autoreset_mode="SameStep", **params)
    rollout = EnvRollout(envs, 7, "cpu")
    rollout.rows(AgentSubset(None, rollout.num_agents))  # those of a policy that reads the final observations of all steps
    tensors = [x for x in vars(rollout).values() if isinstance(x, torch.Tensor)]
    storage_bytes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    assert rollout_bytes(envs, 7) == sum(storage_bytes.values())
    envs.close()
