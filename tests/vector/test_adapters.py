"""The adapter for Stable-Baselines3 equals its DummyVecEnv of scalar environments, and its algorithms train with it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3, which `clients/run.py stable_baselines3` installs")

from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from gpuvec.adapters.stable_baselines3 import StableBaselines3VecEnv
from gpuvec.vector.wrappers import FlattenAgents, RecordEpisodeStatistics
from gpuvec.vector.wrappers.base import WrapperError

E = 3


def make(name: str = "CartPole-v1", **arguments: Any) -> Any:
    options = {"num_envs": E, "device": "cpu", "output": "numpy", "autoreset_mode": "SameStep", **arguments}
    return gym.make_vec(f"gpuvec/{name}", **options)


class OneRow(gym.Env[Any, Any]):
    """A scalar environment with the same seed and the same episodes as a vector environment of one row."""

    def __init__(self, name: str, **arguments: Any) -> None:
        self._rows = make(name, num_envs=1, **arguments)
        self._next: Any = None
        self.observation_space, self.action_space = self._rows.single_observation_space, self._rows.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._next, _ = self._rows.reset(seed=[seed])
        return self._next[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._next, reward, terminated, truncated, infos = self._rows.step(np.asarray(action)[None])
        obs = infos["final_obs"] if infos["_final_obs"][0] else self._next
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_rows_equal_a_dummy_vec_env_of_scalar_environments(name: str):
    steps = 12  # CartPole ends by itself in some rows, and by the limit in others
    one = DummyVecEnv([lambda: OneRow(name, max_episode_steps=steps)] * E)
    ours = StableBaselines3VecEnv(make(name, max_episode_steps=steps))
    assert (ours.observation_space, ours.action_space) == (one.observation_space, one.action_space)
    assert ours.seed(5) == one.seed(5)
    np.testing.assert_array_equal(ours.reset(), one.reset())
    rng = np.random.default_rng(0)
    ends = set()
    for _ in range(60):
        actions = np.ones(E, np.int64) if name == "CartPole-v1" else rng.uniform(-2, 2, (E, 1)).astype(np.float32)
        actions = rng.integers(0, 2, E) if name == "CartPole-v1" and rng.random() < 0.3 else actions
        actual, expected = ours.step(actions), one.step(actions)
        for f, k in zip(actual[:3], expected[:3], strict=True):
            assert (f.dtype, f.shape) == (k.dtype, k.shape)
            np.testing.assert_array_equal(f, k)
        for f, k in zip(actual[3], expected[3], strict=True):
            assert f.keys() == k.keys()
            assert f["TimeLimit.truncated"] is k["TimeLimit.truncated"]
            if "terminal_observation" in k:
                np.testing.assert_array_equal(f["terminal_observation"], k["terminal_observation"])
                ends.add(k["TimeLimit.truncated"])
    assert ends == ({True, False} if name == "CartPole-v1" else {True})
    ours.close()


def test_returned_arrays_are_copies_when_buffers_are_reused(device: str):
    ours = StableBaselines3VecEnv(make(device=device, output="torch", buffers=1))
    first = ours.reset()
    first_copy = first.copy()
    second, reward, *_ = ours.step(np.ones(E, np.int64))
    ours.step(np.zeros(E, np.int64))
    np.testing.assert_array_equal(first, first_copy)
    assert not np.array_equal(first, second)
    assert isinstance(second, np.ndarray)
    assert isinstance(reward, np.ndarray)
    ours.close()


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_algorithm_trains_saves_and_logs_returns(device: str, output: str, tmp_path: Any):
    ours = StableBaselines3VecEnv(RecordEpisodeStatistics(make(num_envs=8, device=device, output=output)))
    agent = PPO("MlpPolicy", ours, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(1024)
    assert agent.num_timesteps == 1024
    assert len(agent.ep_info_buffer) >= 8
    assert all(episode["r"] == episode["l"] for episode in agent.ep_info_buffer)  # CartPole's reward is 1 in each step
    agent.save(tmp_path / "agent")
    loaded_agent = PPO.load(tmp_path / "agent", env=ours, device="cpu")
    obs = ours.reset()
    np.testing.assert_array_equal(loaded_agent.predict(obs, deterministic=True)[0], agent.predict(obs, deterministic=True)[0])
    returns, lengths = evaluate_policy(loaded_agent, VecMonitor(ours), n_eval_episodes=10, return_episode_rewards=True)
    assert returns == lengths
    ours.close()


def test_stable_baselines3_wrappers_work():
    ours = VecNormalize(VecMonitor(StableBaselines3VecEnv(make(max_episode_steps=5))))
    ours.reset()
    for _ in range(5):
        _, _, dones, infos = ours.step(np.zeros(E, np.int64))
    assert dones.all()
    assert [info["episode"]["l"] for info in infos] == [5] * E
    ours.close()


def test_attributes_per_row():
    ours = StableBaselines3VecEnv(make(per_env=("gravity",), render_mode="rgb_array"))
    ours.reset()
    ours.set_attr("gravity", 1.5, indices=[2])
    assert ours.get_attr("gravity") == [np.float32(9.8), np.float32(9.8), 1.5]
    assert ours.get_attr("gravity", indices=2) == [1.5]
    ours.set_attr("force", 7.0)
    assert ours.get_attr("force", [0, 1]) == [7.0, 7.0]
    with pytest.raises(TypeError, match="per_env"):
        ours.set_attr("force", 8.0, indices=0)
    assert ours.render_mode == "rgb_array"
    assert [picture.shape[2] for picture in ours.get_images()] == [3] * E
    assert np.array_equal(ours.env_method("render", indices=1)[0], ours.get_images()[1])
    assert ours.has_attr("spec")
    assert not ours.has_attr("compute_reward")
    assert ours.env_is_wrapped(RecordEpisodeStatistics, indices=[0, 1]) == [False, False]
    assert StableBaselines3VecEnv(RecordEpisodeStatistics(ours._envs)).env_is_wrapped(RecordEpisodeStatistics) == [True] * E
    ours.close()


@pytest.mark.parametrize("name", ["SimpleSpread-v0", "TagContinuous-v0", "ConnectFour-v0"])
def test_environments_of_many_agents_have_seeds(name: str):
    """Row k is seeded by s + k, and an environment by the seed of its first row."""
    flat = FlattenAgents(make(name))
    ours, num_agents = StableBaselines3VecEnv(flat), flat.num_envs // E
    first = PPO("MlpPolicy", ours, n_steps=4, batch_size=4, n_epochs=1, seed=0, device="cpu").learn(8)
    ours.seed(5)
    expected, _ = FlattenAgents(make(name)).reset(seed=[5 + k * num_agents for k in range(E)])
    np.testing.assert_array_equal(ours.reset(), expected)
    second = PPO("MlpPolicy", ours, n_steps=4, batch_size=4, n_epochs=1, seed=0, device="cpu").learn(8)
    for one, other in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        np.testing.assert_array_equal(one.detach(), other.detach())
    ours.close()


class TestActionMasks:
    """What sb3-contrib calls: `has_attr` and `env_method` of "action_masks"."""

    def test_masks_are_those_of_the_environment(self, device: str):
        ours = StableBaselines3VecEnv(FlattenAgents(make("ConnectFour-v0", device=device, output="torch", buffers=1)))
        other = FlattenAgents(make("ConnectFour-v0", output="numpy"))
        assert ours.has_attr("action_masks")
        with pytest.raises(WrapperError, match="no action masks before the first reset"):
            ours.env_method("action_masks")
        ours.seed(0)
        ours.reset()
        _, info = other.reset(seed=[2 * k for k in range(E)])
        rng, some_are_forbidden = np.random.default_rng(0), False
        for _ in range(60):
            masks = np.stack(ours.env_method("action_masks"))
            assert masks.dtype == np.bool_
            np.testing.assert_array_equal(masks, info["action_mask"])
            np.testing.assert_array_equal(ours.env_method("action_masks", indices=[1])[0], masks[1])
            np.testing.assert_array_equal(ours.get_attr("action_masks", 1)[0](), masks[1])
            some_are_forbidden |= bool((masks.any(1) & ~masks.all(1)).any())
            actions = np.array([rng.choice(np.flatnonzero(row if row.any() else ~row)) for row in masks])
            ours.step(actions)
            *_, info = other.step(actions)
        assert some_are_forbidden
        ours.close()

    def test_environments_without_masks_have_no_such_method(self):
        ours = StableBaselines3VecEnv(make())
        assert not ours.has_attr("action_masks")
        with pytest.raises(AttributeError):
            ours.env_method("action_masks")
        ours.close()

    def test_maskable_ppo_trains(self):
        contrib = pytest.importorskip("sb3_contrib", reason="needs sb3-contrib")
        ours = VecMonitor(StableBaselines3VecEnv(FlattenAgents(make("ConnectFour-v0"))))
        agent = contrib.MaskablePPO("MlpPolicy", ours, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(512)
        assert agent.num_timesteps >= 512
        ours.close()


def test_options_apply_to_the_next_reset():
    ours = StableBaselines3VecEnv(make())
    ours.set_options({"low": 0.01, "high": 0.02})
    obs = ours.reset()
    assert ((obs >= 0.01) & (obs <= 0.02)).all()
    assert (np.abs(ours.reset()) > 0.02).any()  # options apply to one reset
    ours.set_options([{"low": 0.01}, {}, {}])
    with pytest.raises(ValueError, match="options of all rows must be equal"):
        ours.reset()
    ours.close()


def test_flatten_agents():
    games = make("TagContinuous-v0", num_envs=2, num_taggers=1, num_runners=3, max_episode_steps=20)
    ours = StableBaselines3VecEnv(FlattenAgents(games))
    assert ours.num_envs == 8
    ours.reset()
    ended = 0
    for _ in range(40):
        _, reward, dones, infos = ours.step(np.stack([ours.action_space.sample() for _ in range(8)]))
        assert reward.shape == dones.shape == (8,)
        assert [("terminal_observation" in info) for info in infos] == dones.tolist()
        ended += dones.sum()
    assert ended >= 16
    ours.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"autoreset_mode": "NextStep"}, "autoreset_mode='SameStep'"),
        ({"autoreset_mode": "Disabled"}, "autoreset_mode='SameStep'"),
        ({"output": "dlpack"}, "output='numpy' or 'torch'"),
        ({"name": "TagContinuous-v0"}, "FlattenAgents, or make it with reward='sum'"),
    ],
)
def test_unsupported_environments_raise(arguments: dict[str, Any], message: str):
    envs = make(**arguments)
    with pytest.raises(WrapperError, match=message):
        StableBaselines3VecEnv(envs)
    envs.close()


def test_environment_of_another_library_raises():
    envs = gym.make_vec(
        "CartPole-v1", num_envs=2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    with pytest.raises(WrapperError, match="for gpuvec vector environments"):
        StableBaselines3VecEnv(envs)
    envs.close()
