"""CUDA kernels in Numba's simulator equal the loops of the CPU bit for bit: indices, barriers and clocks without a GPU.

A block has 32 threads here, so 33 envs need two blocks, the second nearly empty, and 65 need three.
"""

import itertools
import time

import gymnasium as gym
import numpy as np
import pytest
from tests.support.bundled_envs import MULTI_AGENT, SINGLE_AGENT

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.simulator import short_switch_interval
from gpuvec.errors import ActionError
from gpuvec.testing.target_check.target_comparison import ComparisonJob, ComparisonReport, compare
from gpuvec.testing.target_check.targets import SIMULATOR

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.skipif(not numba_cuda.SIMULATED, reason="needs NUMBA_ENABLE_CUDASIM=1: run `pytest -m simulator` with it"),
]

cuda = numba_cuda.cuda  # The simulator replaces this global of a kernel.
MODES = ["NextStep", "SameStep", "Disabled"]
# Every environment runs in every mode, with different numbers of blocks.
SIZES = dict(zip(SINGLE_AGENT, itertools.cycle((65, 33, 32, 31, 1)), strict=False))
# The first one is simulated quickly.
MULTI_AGENT_PARAMS = {"TagGridWorld-v0": {"num_taggers": 2}, **{name: {} for name in MULTI_AGENT if "TagGrid" not in name}} | {
    "EpidemicEconomy-v0": {"num_states": 3},
    "Predators-v0": {"num_wolves": 2, "num_sheep": 3, "height": 6, "width": 6},
    "TagContinuous-v0": {"num_taggers": 2, "num_runners": 2},
}


def make_pair(name, num_envs, **options):
    """The same environment on the CPU and in the simulator."""
    make = lambda device: gym.make_vec(f"gpuvec/{name}", num_envs=num_envs, device=device, output="numpy", **options)
    return make("cpu"), make("simulator")


def array_bytes(value):
    """{name: bytes} of all arrays in nested tuples and dicts."""
    if isinstance(value, dict):
        return {f"{k}.{j}": b for k, v in value.items() for j, b in array_bytes(v).items()}
    if isinstance(value, tuple | list):
        return array_bytes(dict(enumerate(value)))
    return {"": (np.asarray(value).dtype.str, np.shape(value), np.asarray(value).tobytes())}


def assert_equal(cpu, simulator, what):
    """Asserts that all arrays are equal bit for bit."""
    a, b = array_bytes(cpu), array_bytes(simulator)
    assert a.keys() == b.keys()
    assert [k for k in a if a[k] != b[k]] == [], what


def run_and_compare(cpu, simulator, steps, seed=0, shift=0):
    """Steps both with random actions, compares all outputs and the state, and returns how many episodes ended."""
    cpu.action_space.seed(seed)
    num_ended, is_disabled = 0, cpu.metadata["autoreset_mode"].value == "Disabled"
    for t in range(steps):
        action = cpu.action_space.sample() + shift
        a, b = cpu.step(action), simulator.step(action)
        assert_equal(a, b, f"outputs of step {t}")
        assert_equal(cpu.state_dict(), simulator.state_dict(), f"state after step {t}")
        episode_end = a[2] | a[3]
        num_ended += int(episode_end.sum())
        if is_disabled and episode_end.any():
            options = {"reset_mask": episode_end}
            assert_equal(cpu.reset(options=options), simulator.reset(options=options), f"masked reset after step {t}")
            assert_equal(cpu.state_dict(), simulator.state_dict(), f"state after the masked reset after step {t}")
    return num_ended


def compare_with_cpu(name, num_envs, episodes, max_episode_steps, mode, **params):
    """The comparison of `gpuvec check` between the simulator and the CPU."""
    job = ComparisonJob(
        f"gpuvec/{name}", "sim", SIMULATOR.options, {}, num_envs, episodes, max_episode_steps, 3, params, (mode,)
    )
    return compare(job)


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SIZES)
def test_single_agent_env_equals_the_cpu_in_every_mode(name, mode):
    comparison = compare_with_cpu(name, SIZES[name], 3, 4, mode)
    assert comparison.num_results >= 13 * SIZES[name]
    assert comparison == ComparisonReport(num_results=comparison.num_results)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("name", "params"), MULTI_AGENT_PARAMS.items())
def test_multi_agent_env_equals_the_cpu(name, params):
    # Both first worlds of Predators lack a kind of animals, so their episodes end in the first step.
    num_results = 8 if name == "Predators-v0" else 10
    assert compare_with_cpu(name, 2, 2, 2, "SameStep", **params) == ComparisonReport(num_results=num_results)


def test_reset_without_a_seed_continues():
    cpu, simulator = make_pair("CartPole-v1", 33, max_episode_steps=4)
    assert_equal(cpu.reset(seed=3), simulator.reset(seed=3), "seeded reset")
    assert run_and_compare(cpu, simulator, 6) >= 33
    assert_equal(cpu.reset(), simulator.reset(), "reset without a seed")
    assert_equal(cpu.state_dict(), simulator.state_dict(), "state after it")
    assert run_and_compare(cpu, simulator, 3) == 0


@pytest.mark.parametrize("num_envs", [1, 31, 32, 33])
def test_any_number_of_blocks_equals_the_cpu(num_envs):
    cpu, simulator = make_pair("CartPole-v1", num_envs, autoreset_mode="SameStep", max_episode_steps=3)
    assert_equal(cpu.reset(seed=5), simulator.reset(seed=5), "seeded reset")
    assert run_and_compare(cpu, simulator, 12) >= 4 * num_envs


def test_masked_resets_with_seeds_and_options():
    cpu, simulator = make_pair("MountainCar-v0", 40, max_episode_steps=6)
    assert_equal(cpu.reset(seed=1), simulator.reset(seed=1), "seeded reset")
    masks = np.random.default_rng(0).random((6, 40)) < 0.3
    seeds = [None if k % 3 == 0 else 2**40 + k for k in range(40)]
    for k, mask in enumerate(masks):
        run_and_compare(cpu, simulator, 4, seed=k)
        seed = [None, 2**33 + 7, seeds][k % 3]
        options = {"reset_mask": mask, "low": -0.55, "high": -0.45} if k % 2 else {"reset_mask": mask}
        assert_equal(cpu.reset(seed=seed, options=options), simulator.reset(seed=seed, options=options), f"reset {k}")
        assert_equal(cpu.state_dict(), simulator.state_dict(), f"state after reset {k}")


def test_params_per_env_equal_the_cpu():
    gravity = np.linspace(0.001, 0.004, 35).tolist()
    cpu, simulator = make_pair("MountainCar-v0", 35, per_env=("gravity", "low"), gravity=gravity, max_episode_steps=6)
    assert_equal(cpu.reset(seed=2), simulator.reset(seed=2), "seeded reset")
    assert run_and_compare(cpu, simulator, 20) >= 35


def check_errors(cpu, simulator):
    """The messages of both when `check` raises."""
    messages = []
    for env in (cpu, simulator):
        with pytest.raises(ActionError) as error:
            env.check()
        messages.append(str(error.value))
        env.check()  # A fault is reported once.
    return messages


def test_invalid_actions_raise_the_same_error():
    cpu, simulator = make_pair("CartPole-v1", 40, validate=True, max_episode_steps=6)
    for env in (cpu, simulator):
        env.reset(seed=0)
    run_and_compare(cpu, simulator, 12)
    actions = np.zeros(40, np.int64)
    actions[[37, 12]] = -3, 2
    assert_equal(cpu.step(actions), simulator.step(actions), "step with invalid actions")
    assert_equal(cpu.state_dict(), simulator.state_dict(), "state with faults")
    a, b = check_errors(cpu, simulator)
    assert a == b
    assert a.startswith("environment 12 was given action 2; allowed are 0 to 1.")


def test_steps_after_the_episode_end_raise_the_same_error():
    cpu, simulator = make_pair("Pendulum-v1", 40, validate=True, autoreset_mode="Disabled", max_episode_steps=3)
    for env in (cpu, simulator):
        env.reset(seed=0)
    action = np.full((40, 1), 0.5, np.float32)
    for _ in range(4):
        assert_equal(cpu.step(action), simulator.step(action), "step")
    a, b = check_errors(cpu, simulator)
    assert a == b
    assert a.startswith("environment 0 was stepped after its episode ended")


def test_concurrent_threads_share_one_array(monkeypatch):
    """The simulator creates a shared array at the first access of a thread, and other threads may run before it is stored."""
    monkeypatch.undo()  # the fixture `shuffled_threads`, with which only one thread runs at a time
    array_ids = []

    @cuda.jit
    def kernel(out):
        shared = numba_cuda.simulated_shared_array(cuda.shared, "values", (16,), np.int32)
        shared[cuda.threadIdx.x] = 1
        array_ids.append(id(shared))
        cuda.syncthreads()
        out[cuda.threadIdx.x] = shared.sum()

    def slow_empty(*args, empty=np.empty, **kwargs):
        time.sleep(0.01)
        return empty(*args, **kwargs)

    out = np.zeros(16, np.int32)
    monkeypatch.setattr(np, "empty", slow_empty)
    with short_switch_interval():
        kernel[1, 16](out)
    assert len(set(array_ids)) == 1
    assert out.tolist() == [16] * 16


def test_a_missing_barrier_changes_results():
    """Each thread reads what another one writes, a lower or a higher one, and some of each kind run before it."""

    @cuda.jit
    def kernel(out, has_barrier):
        shared = numba_cuda.simulated_shared_array(cuda.shared, "values", (16,), np.int32)
        thread = cuda.threadIdx.x
        shared[thread] = thread
        if has_barrier:
            cuda.syncthreads()
        out[thread] = shared[15 - thread]

    out = np.zeros((2, 16), np.int32)
    for has_barrier in (False, True):
        kernel[1, 16](out[int(has_barrier)], has_barrier)
    assert out[1].tolist() == list(range(15, -1, -1))
    assert out[0, :8].min() == out[0, 8:].min() == -1
