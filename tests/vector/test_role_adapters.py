"""Adapters and wrappers of an environment whose roles have spaces of their own."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.support.signal_env import ENV

import gpuvec
from gpuvec import VectorEnv
from gpuvec.cli.envs_command import _format_space
from gpuvec.episode import fetch_episode
from gpuvec.vector.wrappers import ClipAction, NormalizeObservation, RecordEpisodeStatistics, ToNumpy
from gpuvec.vector.wrappers.base import WrapperError

NAMES = ["lamp_0", "watcher_0", "watcher_1", "watcher_2", "runner_0", "runner_1"]


@pytest.fixture(scope="module")
def env() -> Any:
    pytest.importorskip("pettingzoo")
    return gpuvec.parallel_env("tests/Signal-v0")


class TestParallel:
    def test_each_agent_has_the_spaces_of_its_role(self, env: Any) -> None:
        assert env.possible_agents == NAMES
        assert env.action_space("lamp_0") == gym.spaces.Discrete(4, start=1)
        assert env.action_space("watcher_1") == gym.spaces.MultiDiscrete([4, 3])
        assert env.action_space("runner_1") == gym.spaces.Box(-1.0, 1.0, (2,))
        assert [env.observation_space(name).shape for name in ("lamp_0", "watcher_2", "runner_0")] == [(6,), (5,), (2,)]
        assert env.observation_space("watcher_0") is not env.observation_space("watcher_1")

    def test_interface(self, env: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo's own environments are imported in an old way.
            from pettingzoo.test import parallel_api_test

        parallel_api_test(env, num_cycles=60)

    def test_steps_equal_those_of_the_vector_environment(self, env: Any) -> None:
        vector = VectorEnv(ENV, 1, device="cpu", output="numpy", autoreset_mode="Disabled")
        (obs, infos), (vector_obs, vector_infos) = env.reset(seed=7), vector.reset(seed=7)
        num_waiting = 0
        vector.action_space.seed(0)
        for _ in range(12):
            masks = {**vector_infos["action_mask"], "runner": [[None, None]]}
            for role, rows in vector_obs.items():
                for i, row in enumerate(rows[0]):
                    if f"{role}_{i}" in env.agents:
                        np.testing.assert_array_equal(obs[f"{role}_{i}"], row)
                        np.testing.assert_array_equal(infos[f"{role}_{i}"].get("action_mask"), masks[role][0][i])
            actions = vector.action_space.sample()
            by_agent = {f"{role}_{i}": row for role, rows in actions.items() for i, row in enumerate(rows[0])}
            vector_obs, reward, terminated, truncated, vector_infos = vector.step(actions)
            num_waiting += len(NAMES) - len(env.agents)
            obs, rewards, *_, infos = env.step({name: by_agent[name] for name in env.agents})
            for k, name in enumerate(NAMES):
                assert name not in rewards or rewards[name] == reward[0, k]
            if terminated[0] | truncated[0]:
                assert env.agents == []
                break
        else:
            pytest.fail("no episode ended")


def test_wrappers_pass_dicts_on_or_refuse_them() -> None:
    torch = pytest.importorskip("torch")
    inner = VectorEnv(ENV, 3, device="cpu", output="torch", autoreset_mode="SameStep", max_episode_steps=3, reward="sum")
    env = ToNumpy(RecordEpisodeStatistics(inner))
    env.action_space.seed(0)
    obs, infos = env.reset(seed=1)
    assert isinstance(obs["lamp"], np.ndarray)
    assert isinstance(infos["action_mask"]["watcher"], np.ndarray)
    out = {role: np.zeros_like(x) for role, x in obs.items()}
    for _ in range(3):
        obs, *_, infos = env.step(env.action_space.sample(), out={"obs": out})
    assert obs["lamp"] is out["lamp"]
    assert infos["episode"]["r"].shape[0] == 3
    assert isinstance(infos["final_obs"]["runner"], np.ndarray)
    assert isinstance(
        inner.step({k: torch.as_tensor(x) for k, x in inner.action_space.sample().items()})[0]["lamp"], torch.Tensor
    )
    for wrapper in (NormalizeObservation, ClipAction):
        with pytest.raises(WrapperError, match="must be a Box, got Dict"):
            wrapper(inner)


def test_recorded_episode_has_actions_by_role() -> None:
    env = VectorEnv(ENV, 2, device="cpu", output="numpy", max_episode_steps=4)
    (episode,) = fetch_episode(env, lambda obs, mask: env.action_space.sample(), rows=[1], seed=3)
    steps = len(episode.rewards)
    shapes = {role: actions.shape for role, actions in episode.actions.items()}
    assert shapes == {"lamp": (steps, 1), "watcher": (steps, 3, 2), "runner": (steps, 2, 2)}


def test_list_of_environments_has_the_spaces_of_roles() -> None:
    assert _format_space({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1.0, 1.0, (2,))}) == "a Discrete(3), b Box(2)"
