"""The outputs of an environment do not depend on the launch of its kernels: on threads per block, blocks or CPU threads."""

import gymnasium as gym
import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.bundled_envs import SHORT_EPISODES, SMALL_PARAMS, THREAD_PER_ENV

from gpuvec.engine.backends.cpu import threads as cpu_threads
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch

# They differ in envs per block, threads per block, and whether a separate kernel writes the observations.
LAUNCH_CONFIGS = [
    MultiAgentLaunch(1, 32, False, True),
    MultiAgentLaunch(3, 64, False, True),
    MultiAgentLaunch(2, 32, True, True, 8, 64),
]


def one_array(value):
    """The observations of all roles in one array, (E, ...); an array is returned as it is."""
    return np.concatenate([x.reshape(len(x), -1) for x in value.values()], 1) if isinstance(value, dict) else value


def run_steps(name, num_envs, device, steps, **options):
    """All outputs of a reset and of `steps` steps, on the host."""
    output = "numpy" if device in ("cpu", "simulator") else "cupy"
    env = gym.make_vec(f"gpuvec/{name}", num_envs=num_envs, device=device, output=output, **{**SHORT_EPISODES, **options})
    env.action_space.seed(1)
    outputs = [one_array(host(env.reset(seed=9)[0]))]
    for _ in range(steps):
        *arrays, info = env.step(on_device(env, env.action_space.sample()))
        episode_end = host(info["_final_obs"])
        outputs += [*(one_array(host(x)) for x in arrays), episode_end, one_array(host(info["final_obs"]))[episode_end]]
    env.close()
    return outputs


def assert_equal(a, b):
    """Asserts that two runs have equal outputs, and that episodes ended in them."""
    assert sum(int(x.sum()) for x in a[3::6]) + sum(int(x.sum()) for x in a[4::6]) > 0, "no episode ended"
    for n, (x, y) in enumerate(zip(a, b, strict=True)):
        np.testing.assert_array_equal(x, y, err_msg=f"output {n}", strict=True)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("name", "params"), SMALL_PARAMS.items())
def test_sets_are_independent_of_the_number_of_cpu_threads(name, params, monkeypatch):
    monkeypatch.setattr(cpu_threads, "AGENTS_PER_THREAD", 16)
    runs = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)), raising=False)
        runs.append(run_steps(name, 101, "cpu", 12, **params))
    for run in runs[1:]:
        assert_equal(runs[0], run)


@pytest.mark.simulator
@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    ("name", "threads"), [("CartPole-v1", 64), ("Pendulum-v1", 64), ("CartPole-v1", 128), ("CartPole-v1", 32)]
)
def test_simulator_is_independent_of_threads_per_block(simulator, monkeypatch, name, threads):
    monkeypatch.setattr(
        "gpuvec.engine.backends.simulator.make_launch_config", lambda schema, num_envs, max_threads: SingleAgentLaunch(threads)
    )
    options = {"max_episode_steps": 2}
    assert_equal(run_steps(name, 70, simulator, 3, **options), run_steps(name, 70, "cpu", 3, **options))


@pytest.mark.covering(1)
@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize("launch_config", LAUNCH_CONFIGS, ids=str)
@pytest.mark.parametrize(("name", "params"), SMALL_PARAMS.items())
def test_sets_in_the_simulator_are_independent_of_the_launch_config(simulator, monkeypatch, name, params, launch_config):
    monkeypatch.setattr(
        "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda schema, num_envs: launch_config
    )
    options = {"max_episode_steps": 2, **params}
    assert_equal(run_steps(name, 4, simulator, 3, **options), run_steps(name, 4, "cpu", 3, **options))


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("name", THREAD_PER_ENV)
    def test_outputs_are_independent_of_threads_per_block(self, gpu, monkeypatch, name):
        runs = []
        for launch_config in (
            SingleAgentLaunch(32),
            SingleAgentLaunch(32, latency_bound=True),
            SingleAgentLaunch(64),
            SingleAgentLaunch(128),
            SingleAgentLaunch(512),
            SingleAgentLaunch(1024),
        ):
            monkeypatch.setattr(
                "gpuvec.engine.backends.cuda.launch.make_launch_config",
                lambda env, num_envs, launch_config=launch_config: launch_config,
            )
            runs.append(run_steps(name, 3001, gpu, 30, max_episode_steps=7))
        for run in runs[1:]:
            assert_equal(runs[0], run)

    @pytest.mark.parametrize(("name", "params"), SMALL_PARAMS.items())
    def test_sets_are_independent_of_the_launch_config(self, gpu, monkeypatch, name, params):
        # Eight worlds of RICE-N exceed the shared memory of a block.
        envs_per_block = 4 if name == "RICE-N-v0" else 8
        runs = []
        for launch_config in (
            *LAUNCH_CONFIGS,
            MultiAgentLaunch(envs_per_block, 128, False, True),
            MultiAgentLaunch(1, 1024, False, True),
        ):
            monkeypatch.setattr(
                "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
                lambda schema, num_envs, launch_config=launch_config: launch_config,
            )
            runs.append(run_steps(name, 501, gpu, 30, max_episode_steps=7, **params))
        for run in runs[1:]:
            assert_equal(runs[0], run)
