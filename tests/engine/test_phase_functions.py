"""Reductions with `at`: known results, and equal to the reference in Python on every backend and for every launch."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from tests.engine.test_kernels_compile_multi_agent import compile_and_check
from tests.support.arrays import host, on_device
from tests.support.cuda_c_functions import ON_CPU, needs_host_compiler
from tests.support.harbor_env import HARBOR, SCATTERS
from tests.support.vector_envs import assert_bits_equal, make_envs, play_with_reference

from gpuvec import (
    Bools,
    Floats,
    Ints,
    MultiAgentEnv,
    Observation,
    all_of,
    any_of,
    argmin_of,
    count_of,
    each,
    max_of,
    min_of,
    sum_of,
)
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.testing import check_env

NUM_ENVS = 3
LARGE_HARBOR = {"ships": 70, "height": 40, "width": 30}


def assert_steps_equal_the_reference(device: str, params: dict[str, int], num_steps: int) -> None:
    """Asserts that a reset and each step of harbors are those of plain Python."""
    declaration = dataclasses.replace(HARBOR, params=HARBOR.params._replace(**params))
    env = make_envs(declaration, NUM_ENVS, device, autoreset_mode="Disabled")
    assert not play_with_reference(env, declaration, 5, num_steps).any()


@pytest.mark.slow_on("simulator")
@pytest.mark.first_variants(1)  # test_index_sets.py has sets of one element
@pytest.mark.parametrize("params", [{}, {"ships": 1, "height": 1, "width": 1}], ids=("several", "one"))
def test_scatters_equal_the_reference(backend, params):
    assert_steps_equal_the_reference(backend, params, 1 if backend == "simulator" else 9)


@pytest.mark.gpu
def test_scatters_in_global_memory_equal_the_reference(gpu):
    """With so many cells the state does not fit into shared memory, which a CPU does not have."""
    assert_steps_equal_the_reference(gpu, LARGE_HARBOR, 2)


class Points(NamedTuple):
    target: Ints  # the bin of each point; negative for none
    value: Floats
    weight: Ints
    count: Annotated[Ints, "bins"]
    total: Annotated[Ints, "bins"]
    least_weight: Annotated[Ints, "bins"]
    least: Annotated[Floats, "bins"]
    most: Annotated[Floats, "bins"]
    first: Annotated[Ints, "bins"]
    any_heavy: Annotated[Bools, "bins"]
    all_heavy: Annotated[Bools, "bins"]


class Params(NamedTuple):
    points: int = 1500
    bins: int = 5


def target(i: int, s: Points, p: Params) -> int:
    return s.target[i]


def value(i: int, s: Points, p: Params) -> float:
    return s.value[i]


def weight(i: int, s: Points, p: Params) -> int:
    return s.weight[i]


def is_heavy(i: int, s: Points, p: Params) -> bool:
    return s.weight[i] > 0


def reset(i: int, s: Points, key: Key, p: Params) -> None:
    s.target[i], s.value[i], s.weight[i] = -1, 0.0, 0


HISTOGRAMS = (
    count_of("count", is_heavy, at=target), sum_of("total", weight, at=target), min_of("least_weight", weight, at=target),
    min_of("least", value, at=target), max_of("most", value, at=target), argmin_of("first", value, at=target),
    any_of("any_heavy", is_heavy, at=target), all_of("all_heavy", is_heavy, at=target),
)  # fmt: skip
POINTS = MultiAgentEnv(
    state=Points,
    params=Params(),
    spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)),
    agents=lambda p: p.points,
    sets=lambda p: {"bins": p.bins},
    reset=(reset, *HISTOGRAMS),
    phases=HISTOGRAMS,
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(lambda i, s, t, p: (s.value[i],)),
    structural=("points", "bins"),
)


def histograms(target: Any, value: Any, weight: Any, bins: int) -> dict[str, Any]:
    """The results by NumPy, from the values of the points of each bin in the order of their indices."""
    results: dict[str, list[Any]] = {name: [] for name in Points._fields[3:]}
    limits = np.iinfo(np.int32)
    for b in range(bins):
        points = np.flatnonzero(target == b)
        numbers, weights = value[points] + np.float32(0), weight[points]
        finite = points[numbers < np.inf]
        results["count"].append((weights > 0).sum())
        results["total"].append(weights.sum(dtype=np.int32))
        results["least_weight"].append(weights.min(initial=limits.max))
        results["least"].append(np.fmin.reduce(numbers, initial=np.inf))
        results["most"].append(np.fmax.reduce(numbers, initial=-np.inf))
        results["first"].append(finite[np.argmin(value[finite])] if len(finite) else -1)
        results["any_heavy"].append((weights > 0).any())
        results["all_heavy"].append((weights > 0).all())
    return {name: np.array(values) for name, values in results.items()}


@pytest.mark.slow_on("simulator")
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("num_envs", [40, 1])
def test_many_elements_contribute_to_few(backend, num_envs):
    """Values are often equal, some are nan, infinite or -0.0, weights overflow, and the last bin has no point."""
    num_envs, points = (min(num_envs, 2), 40) if backend == "simulator" else (num_envs, 1500)
    env, rng = make_envs(POINTS, num_envs, backend, points=points), np.random.default_rng(0)
    env.reset(seed=0)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40], np.float32)
    values = rng.integers(-9, 10, (num_envs, points)).astype(np.float32)
    values = np.where(rng.random(values.shape) < 0.2, rng.choice(special[: 3 + 4 * (num_envs > 1)], values.shape), values)
    targets = rng.integers(-2, 4, values.shape).astype(np.int32)
    targets[0, values[0] < 0] = -1  # Without negative values, the least one of a bin is a zero.
    weights = rng.integers(-(2**31), 2**31, values.shape).astype(np.int32)
    env.set_state({"target": targets, "value": values, "weight": weights})
    env.step(on_device(env, np.zeros((num_envs, points), int)))
    state = host(env.get_state())
    for row in range(num_envs):
        for name, expected in histograms(targets[row], values[row], weights[row], 5).items():
            actual = state[name][row]
            assert_bits_equal(actual, expected.astype(actual.dtype), f"{name} of env {row}")
    assert state["first"][:, 4].tolist() == [-1] * num_envs


def test_check_env_accepts_scatters():
    """The reset has all scatters, a step one of each set and kind of result; other tests step all of them."""
    scatters = [s for s in SCATTERS if s.field in ("ships", "bought", "best_seller", "most_speed", "all_loaded", "deepest")]
    env = dataclasses.replace(HARBOR, phases=(*HARBOR.phases[:3], *scatters))
    check_env(env, num_envs=4, kernels=False, replay_seconds=0.2)


def replaced(**changes: Any) -> MultiAgentEnv:
    """Returns the environment of points with one reduction instead of its phases."""
    return dataclasses.replace(POINTS, **changes)


WRONG = {  # {fault: (reduction, the message)}
    "unknown field": (
        count_of("counts", is_heavy, at=target),
        r"count_of\('counts', ..., at=...\) writes 'counts', which is no such",
    ),
    "type of the field": (count_of("least", is_heavy, at=target), "writes 'least', which is float32: its field must be Ints"),
    "field of the world": (
        count_of("count", is_heavy),
        "must be one int for the world; for a field with several elements add at",
    ),
    "set": (
        count_of("count", is_heavy, "cells", at=target),
        "runs over 'cells', which is no set of elements: there are 'agents'",
    ),
    "world": (count_of("count", is_heavy, "world", at=target), "runs over 'world', which is no set of elements"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_field_or_set_is_refused(fault):
    reduction, message = WRONG[fault]
    with pytest.raises(AuthoringError, match=f"test_phase_functions.py, line [0-9]+, `def is_heavy.*{message}"):
        make_envs(replaced(phases=(reduction,)), 1)


def test_a_sum_of_floats_without_an_order_is_refused_at_the_declaration():
    with pytest.raises(
        AuthoringError, match=r"line [0-9]+, `def value\(i.*sum_of\('least', ..., at=...\) adds floats.*as Ints"
    ):
        replaced(phases=(sum_of("least", value, at=target),))


def test_at_must_be_a_function():
    with pytest.raises(AuthoringError, match=r"phase 0 has at='target' \(str\); it must be a function at\(index, s, p\)"):
        replaced(phases=(count_of("count", is_heavy, at="target"),))  # type: ignore[arg-type]  # the fault


def outside(i: int, s: Points, p: Params) -> int:
    return i


def reads_its_field(i: int, s: Points, p: Params) -> int:
    return min(s.count[0], 1)


def returns_pair(i: int, s: Points, p: Params) -> tuple[int, int]:
    return i, i


def write_cargo(cell: Any, s: Any, key: Key, p: Any) -> None:
    s.cargo[0] = 1


def test_a_phase_that_writes_a_field_of_another_set_is_refused():
    env = dataclasses.replace(HARBOR, phases=(*HARBOR.phases, each("map", write_cargo)))
    with pytest.raises(
        AuthoringError, match=r"`s.cargo\[0\] = 1`.*cargo belongs to 'agents', so only a phase each\('agents', ...\) may"
    ):
        check_env(env, num_envs=2, kernels=False)


FAULTS = {  # {fault: (reduction, the message of the check)}
    "index": (
        count_of("count", is_heavy, at=outside),
        r"`def outside.*at returns 5 for element 5 of 'agents'; count has shape \(5,\)",
    ),
    "own field": (count_of("count", is_heavy, at=reads_its_field), r"reads count\[0\], which it writes at the same time"),
    "two axes": (count_of("count", is_heavy, at=returns_pair), "returns UniTuple.*it must return the index in 'bins', an int"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_env_finds_faults_of_scatters(fault):
    reduction, message = FAULTS[fault]
    env = replaced(phases=(reduction,), params=Params(points=8), max_episode_steps=3)
    with pytest.raises(AuthoringError, match=message):
        check_env(env, num_envs=2, kernels=False)


def test_an_index_outside_of_the_set_contributes_nowhere(device):
    """Compiled code writes no other memory, also without a check."""
    env = make_envs(replaced(phases=(count_of("count", lambda i, s, p: True, at=outside),)), NUM_ENVS, device, points=8)
    env.reset(seed=0)
    env.step(on_device(env, np.zeros((NUM_ENVS, 8), int)))
    assert host(env.get_state())["count"].tolist() == [[1] * 5] * NUM_ENVS


CUDA_C = """
__device__ Ints<2> place(int i, const State& s, const Params& p) { return {s.y[i], s.x[i]}; }
__device__ int buyer(int i, int j, const State& s, const Params& p) { return i != j ? j : -1; }
__device__ int goods(int i, int j, const State& s, const Params& p) { return s.goods[i][j]; }
__device__ float less_depth(int row, int column, const State& s, const Params& p) { return -s.depth[row][column]; }
__device__ bool is_heavy(int i, const State& s, const Params& p) { return s.cargo[i] > 1; }
"""


@needs_host_compiler
def test_functions_of_scatters_in_cuda_c_compute_what_python_does(tmp_path):
    file = tmp_path / "harbor.cu"
    file.write_text(CUDA_C)
    envs = [make_envs(dataclasses.replace(HARBOR, cuda_c=str(file)), NUM_ENVS, **ON_CPU), make_envs(HARBOR, NUM_ENVS)]
    for env in envs:
        env.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(12):
        actions = rng.integers(0, 3, (NUM_ENVS, 6))
        for env in envs:
            env.step(actions)
        states = [env.get_state() for env in envs]
        for name, values in states[1].items():
            assert_bits_equal(states[0][name], values, name)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("space", ["shared", "global"])
def test_kernels_of_scatters_use_atomic_operations_of_one_memory(space):
    """The state of the large environment does not fit into shared memory."""
    env, params, num_operations = (POINTS, {"points": 9}, 8) if space == "shared" else (HARBOR, LARGE_HARBOR, 20)
    kernel = compile_and_check(
        dataclasses.replace(env, params=env.params._replace(**params)), 100, "step", AutoresetMode.SAME_STEP
    )[0]
    operations = [line for line in kernel.lines(r"\b(atom|red)\.") if "or.pred" not in line]
    assert len([line for line in operations if f".{space}." in line]) >= num_operations
    # The votes for the end of an episode are always counted in shared memory.
    assert len([line for line in operations if ".shared." not in line and ".global." not in line]) == 0
