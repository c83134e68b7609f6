"""The multi-agent engine: known results of a small environment, and equal outputs for every launch configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.street_env import GUARD, STREET, WALKER, make

from gpuvec import VectorEnv, argmin_of
from gpuvec.engine.multi_agent import launch_mapping
from gpuvec.errors import StateError

MODES = ["NextStep", "SameStep", "Disabled"]
STAY, RIGHT = 1, 2


def street(device, positions, mode="Disabled", **params):
    """Streets whose agents are at `positions`, (E, A), guards first."""
    env = make(len(positions), device, autoreset_mode=mode, **params)
    env.reset(seed=0)
    env.set_state({"x": on_device(env, np.array(positions, np.float32))})
    return env


def equal_actions(env, value):
    """(E, A): the same action for every agent."""
    return on_device(env, np.full((env.num_envs, env.num_agents), value))


@pytest.mark.slow_on("simulator")
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("observe_all", [False, True])
def test_step_gives_known_results(backend, observe_all):
    env = street(backend, [[5, 5, 5, 9]], observe_all=observe_all)
    obs, reward, terminated, truncated, info = host(env.step(equal_actions(env, STAY)))
    assert reward.tolist() == [[2.0, -1.0, -1.0, 0.5]]  # one guard meets two walkers
    assert info["agent_mask"].tolist() == [[True] * 4]
    assert info["agent_terminated"].tolist() == [[False, True, True, False]]
    assert not terminated.any()
    assert not truncated.any()
    state = host(env.get_state())
    assert (state["num_walking"][0], state["any_caught"][0], state["all_out"][0], state["leftmost"][0]) == (1, True, False, 1)
    if observe_all:
        assert obs[0, 0].tolist() == [0, 0, 4, WALKER + 2, WALKER + 2, WALKER, 5, 1, np.float32(1 / 50)]
    else:  # The guard observes the one walker that is left; inactive walkers observe no agent.
        assert obs[0, 0].tolist() == [4, -100, WALKER, -1, 5, 1, np.float32(1 / 50)]
        assert obs[0, 1, :4].tolist() == [-100, -100, -1, -1]
        assert obs[0, 3, :4].tolist() == [-4, -100, GUARD, -1]
    *_, info = host(env.step(equal_actions(env, RIGHT)))
    assert info["agent_mask"].tolist() == [[True, False, False, True]]
    assert not info["agent_terminated"].any()


def signed_zero(i, s, p):
    return 0.0 if i < 2 else -0.0


@pytest.mark.slow_on("simulator")
def test_argmin_of_treats_both_zeros_as_equal(backend):
    env = dataclasses.replace(STREET, phases=(argmin_of("leftmost", signed_zero),))
    envs = VectorEnv(env, 3, device=backend, output="cupy" if backend == "cuda" else "numpy")
    envs.reset(seed=0)
    envs.step(equal_actions(envs, STAY))
    assert host(envs.get_state())["leftmost"].tolist() == [0, 0, 0]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("reward", "expected"), [("sum", 0.5), ("guard", 2.0), ("walker", -1.5)])
def test_rewards_are_summed_by_role(device, reward, expected):
    env = street(device, [[5, 5, 5, 9]], reward=reward)
    assert host(env.step(equal_actions(env, STAY))[1]).tolist() == [expected]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES)
def test_next_episode_begins_by_autoreset_mode(device, mode):
    env = street(device, [[5, 5, 5, 5], [5, 6, 7, 8]], mode)
    obs, _, terminated, _, info = host(env.step(equal_actions(env, STAY)))
    assert terminated.tolist() == [True, False]
    if mode == "SameStep":
        assert info["_final_obs"].tolist() == [True, False]
        np.testing.assert_array_equal(info["final_obs"][0, :, 4], [5, 5, 5, 5])
        assert (obs[0, :, 6] == 0).all()
    else:
        np.testing.assert_array_equal(obs[0, :, 4], [5, 5, 5, 5])
        if mode == "Disabled":
            env.reset(options={"reset_mask": np.array([True, False])})
        else:
            obs, reward, *_, info = host(env.step(equal_actions(env, STAY)))
            assert not reward[0].any()
            assert info["agent_mask"].tolist() == [[False] * 4, [True] * 4]
            assert (obs[0, :, 6] == 0).all()
    *_, info = host(env.step(equal_actions(env, STAY)))
    assert info["agent_mask"].all()


def test_final_observation_remains_until_the_reset(device):
    env = street(device, [[5, 5, 5, 5], [5, 6, 7, 8]], max_episode_steps=3)
    for _ in range(2):
        env.step(equal_actions(env, STAY))
    obs = host(env.reset(options={"reset_mask": np.array([False, True])})[0])
    assert (obs[0, :, 6] == np.float32(1 / 3)).all()  # The episode ended after one step.
    assert (obs[1, :, 6] == 0).all()


def test_roles_may_be_in_any_order(device):
    env = street(device, [[5, 5, 9, 5], [5, 5, 9, 5]])
    assert env.roles == {"guard": slice(0, 1), "walker": slice(1, 4)}
    env.set_state({"role": on_device(env, np.array([WALKER, WALKER, WALKER, GUARD]))})
    assert env.roles == {"guard": slice(3, 4), "walker": slice(0, 3)}
    assert host(env.step(equal_actions(env, STAY))[1]).tolist() == [[-1.0, -1.0, 0.5, 2.0]] * 2
    env.set_state({"role": on_device(env, np.array([[0, 1, 1, 1], [1, 0, 1, 1]]))})
    assert host(env.roles["guard"]).tolist() == [[0], [1]]
    assert host(env.roles["walker"]).tolist() == [[1, 2, 3], [0, 2, 3]]
    env.set_state({"role": on_device(env, np.array([WALKER, GUARD, WALKER, WALKER]))})
    assert host(env.roles["walker"]).tolist() == [0, 2, 3]
    with pytest.raises(StateError, match=r"1 times 0 \(guard\), 3 times 1 \(walker\)"):
        env.set_state({"role": on_device(env, np.array([0, 0, 1, 1]))})


class TestResetPool:
    pool = np.arange(12, dtype=np.float32).reshape(3, 4)

    def test_every_reset_draws_a_state_of_the_pool(self, device, tmp_path):
        env = make(64, device, autoreset_mode="SameStep", max_episode_steps=1)
        env.set_reset_pool({"x": self.pool})
        observations = [host(env.reset(seed=0)[0])] + [host(env.step(equal_actions(env, STAY))[0]) for _ in range(5)]
        for obs in observations:
            assert {tuple(row) for row in obs[:, :, 4]} == set(map(tuple, self.pool))
        np.savez(tmp_path / "pool.npz", x=self.pool)
        env.set_reset_pool(tmp_path / "pool.npz")
        np.testing.assert_array_equal(host(env.reset(seed=0)[0]), observations[0])
        env.set_reset_pool(None)
        assert len({tuple(row) for row in host(env.reset(seed=0)[0])[:, :, 4]}) > 3

    def test_scalars_come_from_the_same_state_as_other_fields(self, device):
        env = make(64, device, autoreset_mode="SameStep", max_episode_steps=1)
        env.set_reset_pool({"x": self.pool, "num_walking": np.array([4, 7, 9])})
        env.reset(seed=0)
        for _ in range(2):
            state = host(env.get_state())
            numbers = (state["x"][:, 0] // 4).astype(int)
            assert set(numbers.tolist()) == {0, 1, 2}
            np.testing.assert_array_equal(state["num_walking"], np.array([4, 7, 9])[numbers])
            env.step(equal_actions(env, STAY))

    @pytest.mark.parametrize(
        ("pool", "message"),
        [
            ({"y": np.zeros((2, 4))}, r"unknown state field\(s\) \['y'\]"),
            ({"x": np.zeros((2, 5))}, r"must have shape \(2, 4\)"),
            ({"x": np.zeros((2, 4)), "is_out": np.zeros((3, 4), bool)}, "the same number of states"),
            ({"role": np.zeros((2, 4), int)}, r"cannot hold \['role'\]"),
        ],
    )
    def test_invalid_pool_is_refused(self, pool, message):
        env = make(1)
        with pytest.raises(StateError, match=message):
            env.set_reset_pool(pool)


def digest(env, steps, seed=0):
    """SHA-256 of all outputs of `steps` steps with random actions."""
    outputs_hash = hashlib.sha256(np.ascontiguousarray(host(env.reset(seed=seed)[0])).tobytes())
    for t in range(steps):
        actions = np.random.default_rng(t).integers(0, 3, (env.num_envs, env.num_agents))
        *arrays, info = env.step(on_device(env, actions))
        for array in (*arrays, *(info[k] for k in ("agent_mask", "agent_terminated", "final_obs", "_final_obs"))):
            outputs_hash.update(np.ascontiguousarray(host(array)).tobytes())
    return outputs_hash.hexdigest()


UNTILED = [
    launch_mapping.MultiAgentLaunch(e, t, False, True) for e, t in [(1, 32), (2, 64), (5, 32), (8, 128), (3, 256), (8, 1024)]
]
UNTILED.append(launch_mapping.MultiAgentLaunch(1, 256, False, True, min_blocks_per_sm=8))
UNTILED += [launch_config._replace(stage_final_state=True) for launch_config in UNTILED]
TILED = [
    launch_mapping.MultiAgentLaunch(1, 32, False, True, 4), launch_mapping.MultiAgentLaunch(8, 32, False, True, 32),
    launch_mapping.MultiAgentLaunch(3, 64, False, False, 12),
    launch_mapping.MultiAgentLaunch(16, 32, False, True, 64),
]  # fmt: skip
SPLIT = [
    launch_mapping.MultiAgentLaunch(1, 32, True, True, 8, 64),
    launch_mapping.MultiAgentLaunch(4, 256, True, True, 5, 128),
    launch_mapping.MultiAgentLaunch(1, 1024, True, False, 64, 256),
    launch_mapping.MultiAgentLaunch(2, 512, True, False, 0, 256),
]  # fmt: skip


@cache
def cpu_digest(observe_all):
    """The digest of the run on a CPU with which all launches on a GPU are compared."""
    return digest(make(33, "cpu", autoreset_mode="SameStep", max_episode_steps=7, length=9, observe_all=observe_all), 1000)


@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize(
    ("observe_all", "launch_config"),
    [
        (False, launch_mapping.MultiAgentLaunch(1, 2, False, True)),  # a thread runs several agents
        # Final observations are written while the next episode begins.
        (True, launch_mapping.MultiAgentLaunch(3, 64, False, True, stage_final_state=True)),
        (True, launch_mapping.MultiAgentLaunch(3, 16, False, True, 21)),  # The step kernel assembles observations in a tile.
        # A separate kernel assembles observations, with fewer threads than neighbors.
        (True, launch_mapping.MultiAgentLaunch(2, 16, True, True, 3, 4)),
        (False, launch_mapping.MultiAgentLaunch(2, 8, True, False, 0, 8)),  # Features are stored directly, after a search.
    ],
)
def test_simulator_is_independent_of_the_launch_config(simulator, monkeypatch, observe_all, launch_config):
    kwargs = {"autoreset_mode": "SameStep", "max_episode_steps": 5, "length": 9, "walkers": 6, "observe_all": observe_all}
    monkeypatch.setattr(
        "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda schema, num_envs: launch_config
    )
    assert digest(make(7, simulator, **kwargs), 8) == digest(make(7, "cpu", **kwargs), 8)


def make_grid_world(device, taggers, num_envs):
    """TagGridWorld in which an agent observes itself and one other agent: six floats."""
    kwargs = {"num_taggers": taggers, "use_full_observation": False, "grid_length": 40, "max_episode_steps": 4}
    output = "cupy" if device == "cuda" else "numpy"
    name = "gpuvec/TagGridWorld-v0"
    return gym.make_vec(name, num_envs=num_envs, device=device, output=output, autoreset_mode="SameStep", **kwargs)


@pytest.mark.slow
@pytest.mark.simulator
def test_simulator_writes_tiles_in_several_rounds(simulator, monkeypatch):
    monkeypatch.setattr(
        "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
        lambda schema, num_envs: launch_mapping.MultiAgentLaunch(1, 4, False, True, 4),
    )
    assert digest(make_grid_world(simulator, 9, 2), 6) == digest(make_grid_world("cpu", 9, 2), 6)


@pytest.mark.gpu
class TestLaunches:
    @pytest.mark.parametrize("taggers", [129, 254, 255, 256, 511, 999])
    def test_tiles_in_several_rounds_equal_the_cpu(self, gpu, taggers):
        env = make_grid_world(gpu, taggers, 400)
        assert env.simulation._kernels._launch_config.tile_rows == min(256, taggers + 1)
        assert digest(env, 40) == digest(make_grid_world("cpu", taggers, 400), 40)

    @pytest.mark.parametrize("launch_config", [*UNTILED, *TILED, *SPLIT], ids=str)
    @pytest.mark.parametrize("observe_all", [False, True])
    def test_outputs_are_independent_of_the_launch_config(self, gpu, monkeypatch, observe_all, launch_config):
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda schema, num_envs: launch_config
        )
        env = make(33, gpu, autoreset_mode="SameStep", max_episode_steps=7, length=9, observe_all=observe_all)
        assert digest(env, 1000) == cpu_digest(observe_all)

    def test_repetition_gives_equal_outputs(self, gpu):
        env = make(500, gpu, autoreset_mode="SameStep", max_episode_steps=20, length=12)
        assert len({digest(env, 1000) for _ in range(20)}) == 1

    @pytest.mark.parametrize("agents", [2, 5, 105, 1024, 1025, 10_000])
    def test_any_number_of_agents(self, gpu, agents):
        kwargs = {
            "autoreset_mode": "SameStep",
            "max_episode_steps": 4,
            "length": 3000,
            "walkers": agents - 1,
            "num_observed": 1,
        }
        envs = [make(3, device, **kwargs) for device in ("cpu", gpu)]
        assert digest(envs[0], 9) == digest(envs[1], 9)

    @pytest.mark.parametrize("agents", [17, 64, 65, 105, 300, 1025])
    def test_full_observations_equal_the_cpu(self, gpu, agents):
        kwargs = {
            "autoreset_mode": "SameStep",
            "max_episode_steps": 4,
            "length": 3000,
            "walkers": agents - 1,
            "observe_all": True,
        }
        envs = [make(3, device, **kwargs) for device in ("cpu", gpu)]
        assert digest(envs[0], 9) == digest(envs[1], 9)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("num_envs", [31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 65_536])
def test_env_is_independent_of_num_envs(device, num_envs):
    runs = []
    for count in (1, num_envs):
        env = make(count, device, autoreset_mode="SameStep", max_episode_steps=9)
        outputs = [host(env.reset(seed=4)[0])[0]]
        for t in range(25):
            actions = np.random.default_rng(t).integers(0, 3, (1, 4)).repeat(count, 0)
            outputs += [a[0] for a in host(env.step(on_device(env, actions))[:2])]
        runs.append(outputs)
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


PROGRAM = """
from tests.support.street_env import make
from tests.engine.test_multi_agent import digest
print(digest(make(64, {device!r}, autoreset_mode="SameStep", max_episode_steps=20, length=12), 1000))
"""


def test_another_process_computes_equal_outputs(device):
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    program = [sys.executable, "-c", PROGRAM.format(device=device)]
    process = subprocess.run(program, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": paths})
    env = make(64, device, autoreset_mode="SameStep", max_episode_steps=20, length=12)
    assert process.stdout.split() == [digest(env, 1000)]


@pytest.mark.gpu
def test_no_meeting_is_lost_if_one_guard_meets_all_walkers(gpu):
    import cupy

    for walkers in (2, 40):
        env = make(10_000, gpu, autoreset_mode="SameStep", walkers=walkers)
        env.set_reset_pool({"x": np.full((1, walkers + 1), 5, np.float32)})
        env.reset(seed=0)
        stay = cupy.full((10_000, walkers + 1), STAY)
        for _ in range(100):
            _, reward, terminated, *_ = env.step(stay)
            assert bool((reward[:, 0] == walkers).all())
            assert bool((reward[:, 1:] == -1).all())
            assert bool(terminated.all())
