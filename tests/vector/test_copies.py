"""Copies of environments and wrappers by `copy` and `pickle` continue like the original and share no memory with it."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from tests.support import street_env
from tests.support.arrays import address, host, on_device
from tests.support.counter_env import make

from gpuvec import VectorEnv
from gpuvec.vector.wrappers import (
    ClipAction,
    FlattenAgents,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    ToNumpy,
)  # fmt: skip

E = 4
COPY_FUNCTIONS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),  # noqa: S301  # its own bytes
    "cloudpickle": lambda env: pickle.loads(cloudpickle.dumps(env)),  # noqa: S301  # its own bytes
}


@pytest.fixture(params=COPY_FUNCTIONS)
def copy_env(request):
    """A function that copies an environment."""
    return COPY_FUNCTIONS[request.param]


@pytest.fixture(params=["deepcopy", "pickle", "cloudpickle"])
def deepcopy_env(request):
    """A function that copies an environment together with its wrappers."""
    return COPY_FUNCTIONS[request.param]


def run_steps(env, steps=8, seed=0):
    """Runs random steps and a reset without a seed, and returns their results."""
    rng, run = np.random.default_rng(seed), []
    space = env.action_space
    for _ in range(steps):
        if np.issubdtype(space.dtype, np.floating):
            actions = rng.uniform(-1.0, 1.0, space.shape).astype(np.float32)
        else:
            actions = rng.integers(0, 3, space.shape)
        run.append(host(env.step(on_device(env, actions))[:4]))
    run.append(host(env.reset()[0]))
    return run


def assert_equal_runs(one, other):
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def get_addresses(env):
    return {name: address(array) for name, array in env.unwrapped.simulation.buffers.items() if array.size}


def assert_independent(env, env_copy):
    """Asserts that a copy shares no memory with the original, continues like it, and works after the original is deleted."""
    assert not set(get_addresses(env).values()) & set(get_addresses(env_copy).values())
    before = host(env.unwrapped.get_state())
    third = copy.deepcopy(env)
    run = run_steps(env_copy)
    for name, values in host(env.unwrapped.get_state()).items():
        np.testing.assert_array_equal(values, before[name])
    assert_equal_runs(run, run_steps(env))
    env.close()
    del env
    assert_equal_runs(run, run_steps(third))


class TestVectorEnv:
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_single_agent_env(self, device, copy_env, mode):
        env = make("tests/Mixed-v0", E, device=device, autoreset_mode=mode, per_env=("noise",), noise=[1.0, 2.0, 3.0, 4.0])
        env.reset(seed=3)
        run_steps(env)
        env.set_attr("noise", [5.0, 6.0, 7.0, 8.0])
        env.set_attr("bonus", 2)
        env_copy = copy_env(env)
        assert env_copy.params == env.params
        assert env_copy.get_attr("noise") == (5.0, 6.0, 7.0, 8.0)
        assert env_copy.np_random_seed == env.np_random_seed
        assert (env_copy.spec, env_copy.device, env_copy.num_envs) == (env.spec, env.device, E)
        assert (env_copy.autoreset_mode, env_copy.max_episode_steps) == (env.autoreset_mode, 6)
        assert_independent(env, env_copy)

    def test_multi_agent_env_with_roles_and_reset_pool(self, device, copy_env):
        env = street_env.make(E, device, autoreset_mode="SameStep", max_episode_steps=3)
        env.set_reset_pool({"x": np.arange(12, dtype=np.float32).reshape(3, 4)})
        env.reset(seed=0)
        env.set_state({"role": on_device(env, np.array([1, 1, 0, 1]))})
        env_copy = copy_env(env)
        np.testing.assert_array_equal(env_copy.roles["guard"].start, 2)
        assert_independent(env, env_copy)

    def test_copy_before_the_first_reset(self, copy_env):
        env = make("tests/Mixed-v0", E)
        env_copy = copy_env(env)
        assert not env_copy.ready
        with pytest.raises(gym.error.ResetNeeded):
            env_copy.step(np.zeros((E, 2), int))
        np.testing.assert_array_equal(env.reset(seed=1)[0], env_copy.reset(seed=1)[0])

    def test_copy_has_the_same_random_generator(self, copy_env):
        env = make("tests/Mixed-v0", E)
        env.np_random.random(3)
        env_copy = copy_env(env)
        np.testing.assert_array_equal(env.reset()[0], env_copy.reset()[0])

    def test_copy_has_its_own_output_buffers(self, device):
        env = make("tests/Mixed-v0", E, device=device, buffers=1)
        obs, _ = env.reset(seed=0)
        env_copy = copy.deepcopy(env)
        before = host(obs)
        assert address(env_copy.reset(seed=1)[0]) != address(obs)
        np.testing.assert_array_equal(host(obs), before)

    def test_env_without_a_spec(self):
        env = VectorEnv(street_env.STREET, E, device="cpu", output="numpy")
        env.reset(seed=0)
        assert_independent(env, pickle.loads(pickle.dumps(env)))  # noqa: S301  # its own bytes

    def test_closed_env_is_refused(self, copy_env):
        env = make("tests/Mixed-v0", E)
        env.close()
        with pytest.raises(gym.error.ClosedEnvironmentError):
            copy_env(env)

    def test_copy_in_another_process(self, tmp_path):
        env = make("tests/Mixed-v0", E)
        env.reset(seed=2)
        run_steps(env)
        (tmp_path / "env").write_bytes(pickle.dumps(env))
        code = (
            "import pickle, sys; from pathlib import Path; from tests.vector.test_copies import run_steps; "
            "folder = Path(sys.argv[1]);"
            "env = pickle.loads((folder / 'env').read_bytes()); (folder / 'run').write_bytes(pickle.dumps(run_steps(env)))"
        )
        path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=path)
        assert_equal_runs(pickle.loads((tmp_path / "run").read_bytes()), run_steps(env))  # noqa: S301  # its own bytes


class TestWrappers:
    def test_normalization_and_episode_statistics(self, device, deepcopy_env):
        env = make("tests/Mixed-v0", E, device=device)
        env = RecordEpisodeStatistics(NormalizeReward(NormalizeObservation(env)))
        env.reset(seed=0)
        run_steps(env, 20)
        env_copy = deepcopy_env(env)
        np.testing.assert_array_equal(env_copy.statistics().returns, env.statistics().returns)
        run = run_steps(env_copy, 20)
        assert_equal_runs(run, run_steps(env, 20))
        assert env.statistics().episodes == env_copy.statistics().episodes > 0
        np.testing.assert_array_equal(env.statistics().returns, env_copy.statistics().returns)

    def test_flatten_agents(self, device, deepcopy_env):
        env = FlattenAgents(street_env.make(E, device))
        env.reset(seed=0)
        run_steps(env, 2)
        assert_independent(env, deepcopy_env(env))

    def test_action_wrappers(self, deepcopy_env):
        env = ClipAction(RescaleAction(make("gpuvec/Pendulum-v1", E), -1.0, 1.0))
        env.reset(seed=0)
        run_steps(env, 2)
        assert_independent(env, deepcopy_env(env))

    @pytest.mark.parametrize("output", ["torch", "numpy", "jax"])
    def test_wrappers_of_every_framework(self, deepcopy_env, output):
        if output != "numpy":
            pytest.importorskip(output)
        env = ToNumpy(NormalizeObservation(make("tests/Mixed-v0", E, output=output)))
        env.reset(seed=0)
        run_steps(env, 2)
        env_copy = deepcopy_env(env)
        actions = np.ones((E, 2), np.int32)
        first, second = (one.step(actions)[0] for one in (env, env_copy))
        np.testing.assert_array_equal(first, second)


def test_copies_of_a_parallel_env_are_independent(deepcopy_env):
    """`supersuit.concat_vec_envs_v1` copies a parallel environment in this way."""
    pytest.importorskip("pettingzoo")
    from gpuvec import parallel_env

    env = parallel_env("gpuvec/TagGridWorld-v0", num_taggers=2)
    env.reset(seed=0)
    first, second = deepcopy_env(env), deepcopy_env(env)
    actions = dict.fromkeys(env.agents, 1)
    first_obs = [one.step(actions)[0] for one in (first, second, env)]
    for name in env.agents:
        np.testing.assert_array_equal(first_obs[0][name], first_obs[2][name])
        np.testing.assert_array_equal(first_obs[1][name], first_obs[2][name])
    first.reset(seed=5)
    first.step(actions)
    second_obs = [one.step(actions)[0] for one in (second, env)]
    for name in env.agents:
        np.testing.assert_array_equal(second_obs[0][name], second_obs[1][name])
    env.close()
    second.step(actions)
