"""The outputs of an env depend on its seed and its actions, and not on other envs, threads, or (to 1e-5) the device."""

import gymnasium as gym
import numpy as np
import pytest
from tests.support.bundled_envs import SINGLE_AGENT

from gpuvec.engine.backends.cpu import threads as cpu_threads

SIZES = [1, 2, 7, 31, 32, 33, 255, 256, 257, 1000]
STEPS = 25


def make(name, num_envs, device, **options):
    output = "numpy" if device == "cpu" else "cupy"
    return gym.make_vec(f"gpuvec/{name}", num_envs=num_envs, device=device, output=output, **options)


def host_array(array):
    return array if isinstance(array, np.ndarray) else array.get()


def random_actions(env, steps, num_envs, seed=0):
    """(T, E) or (T, E, K) random actions on the device of the env; column k does not depend on `num_envs`."""
    generators = [np.random.default_rng((seed, k)) for k in range(num_envs)]
    space = env.single_action_space
    if isinstance(space, gym.spaces.Discrete):
        actions = np.stack([g.integers(space.n, size=steps) for g in generators], 1)
    else:
        actions = np.stack([g.uniform(space.low, space.high, (steps, *space.shape)) for g in generators], 1).astype(np.float32)
    if env.device == "cpu":
        return actions
    import cupy

    return cupy.asarray(actions)


def run_steps(env, actions, seed=7):
    """Every output of a reset and of the steps, as one (E, ...) array for each output and time."""
    outputs = [env.reset(seed=seed)[0]]
    for action in actions:
        *step, infos = env.step(action)
        outputs += [*step, *(infos[k] for k in ("_final_obs",) if k in infos)]
    return [host_array(x) for x in outputs]


def assert_same_rows(a, b, num_rows):
    """Asserts that the first rows of all outputs are equal."""
    for t, (x, y) in enumerate(zip(a, b, strict=True)):
        np.testing.assert_array_equal(x[:num_rows], y[:num_rows], err_msg=f"output {t}", strict=True)


@pytest.fixture(scope="module")
def largest_run():
    """largest_run(name, device) -> the outputs of the largest number of envs, computed at the first call."""
    outputs = {}

    def get(name, device):
        if (name, device) not in outputs:
            env = make(name, max(SIZES), device, max_episode_steps=9)
            outputs[name, device] = run_steps(env, random_actions(env, STEPS, max(SIZES)))
        return outputs[name, device]

    return get


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    ("name", "num_envs"),
    [
        # The kernels of the others are of the kinds of CartPole and Pendulum.
        pytest.param(name, n, marks=() if name in ("CartPole-v1", "Pendulum-v1", "Breakout-v0") else pytest.mark.slow)
        for name in SINGLE_AGENT
        for n in (SIZES if name == "CartPole-v1" else (7, 257))
    ],
)
def test_row_is_independent_of_num_envs(name, num_envs, device, largest_run):
    env = make(name, num_envs, device, max_episode_steps=9)
    assert_same_rows(run_steps(env, random_actions(env, STEPS, num_envs)), largest_run(name, device), num_envs)


def test_rows_differ_from_each_other(device, largest_run):
    outputs = largest_run("CartPole-v1", device)
    assert len(np.unique(outputs[0], axis=0)) == len(np.unique(outputs[-4], axis=0)) == max(SIZES)
    assert 0 < sum(terminated.sum() for terminated in outputs[3::4]) < max(SIZES)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_outputs_are_independent_of_the_number_of_threads(mode, monkeypatch):
    """1, 2, 3 and 7 threads step 1,001 envs, so the parts of the threads differ in size."""
    monkeypatch.setattr(cpu_threads, "AGENTS_PER_THREAD", 100)
    runs = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)), raising=False)
        env = make("CartPole-v1", 1001, "cpu", autoreset_mode=mode, max_episode_steps=9)
        runs.append(run_steps(env, random_actions(env, STEPS, 1001)) + list(env.state_dict()["buffers"].values()))
        assert env.simulation._kernels.num_threads == threads
        env.close()
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_gpu_and_cpu_agree_from_reset_states(name, gpu):
    """Only ten steps are comparable, since a GPU fuses multiplications with additions, which rounds once instead of twice."""
    on_gpu, on_cpu = make(name, 4096, gpu), make(name, 4096, "cpu")
    actions = random_actions(on_cpu, 10, 4096)
    for seed in (0, 2**40 + 1):
        a, b = on_gpu.reset(seed=seed)[0], on_cpu.reset(seed=seed)[0]
        same = np.ones(4096, bool)
        np.testing.assert_allclose(host_array(a), b, rtol=0, atol=1e-6)
        for action in actions:
            import cupy

            *a, _ = on_gpu.step(cupy.asarray(action))
            *b, _ = on_cpu.step(action)
            a = [host_array(x) for x in a]
            # An env near a threshold may end a step earlier on one of the devices.
            same &= (a[2] == b[2]) & (a[3] == b[3])
            for x, y in zip(a[:2], b[:2], strict=True):
                np.testing.assert_allclose(x[same], y[same], rtol=1e-5, atol=1e-5)
        assert same.mean() > 0.999


@pytest.mark.gpu
@pytest.mark.parametrize("num_envs", [1, 255, 256, 257, 65_536, 1_000_003])
def test_envs_with_equal_seeds_are_equal_in_large_and_small_runs(num_envs, gpu):
    """Every env has its own seed, and 64 envs of a large run are compared with a run of these 64 alone."""
    rows = np.unique(np.linspace(0, num_envs - 1, 64).astype(np.int64))
    seeds = list(range(5, 5 + num_envs))
    large = make("CartPole-v1", num_envs, gpu, autoreset_mode="SameStep", max_episode_steps=20)
    small = make("CartPole-v1", len(rows), gpu, autoreset_mode="SameStep", max_episode_steps=20)
    import cupy

    actions = cupy.asarray(np.random.default_rng(1).integers(2, size=(60, num_envs)))
    a, b = large.reset(seed=seeds)[0], small.reset(seed=[seeds[k] for k in rows])[0]
    np.testing.assert_array_equal(host_array(a)[rows], host_array(b))
    for action in actions:
        a, b = large.step(action), small.step(cupy.ascontiguousarray(action[rows]))
        for x, y in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(host_array(x)[rows], host_array(y))
        ended = host_array(b[4]["_final_obs"])
        np.testing.assert_array_equal(host_array(a[4]["_final_obs"])[rows], ended)
        np.testing.assert_array_equal(host_array(a[4]["final_obs"])[rows][ended], host_array(b[4]["final_obs"])[ended])
