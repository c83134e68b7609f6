"""`debug=True` finds faults of each step on every backend, and changes no result."""

from __future__ import annotations

import copy
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.support.arrays import on_device
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.meadow_env import MEADOW
from tests.support.trolley_env import TROLLEY
from tests.support.vector_envs import make_envs

from gpuvec import Floats, Ints, Key, MultiAgentEnv, Observation, SingleAgentEnv, VectorEnv, each, uniform
from gpuvec.errors import AuthoringError
from gpuvec.testing.compiled_runs.compiled_run import allowed_actions
from gpuvec.testing.step_checks import StepChecks

TABLE = np.arange(5, dtype=np.float32)
NO_FAULT, ABOVE, NEGATIVE, NAN, OUTSIDE, METRIC_INDEX, METRIC_NAN, NO_ACTION = range(8)
FAULT_STEP = 3


class Rover(NamedTuple):
    age: int
    x: float
    marks: Annotated[Floats, "world", 4]


class Params(NamedTuple):
    fault: int = NO_FAULT


def reset(s: Rover, key: Key, p: Params) -> Rover:
    for k in range(4):
        s.marks[k] = 0.0
    return Rover(0, uniform(key, 0, 0.0, 0.5), s.marks)


def step(s: Rover, action: int, key: Key, p: Params) -> Any:
    age = s.age + 1
    late = age >= FAULT_STEP
    x = TABLE[5 if late and p.fault == ABOVE else 0]
    s.marks[-1 if late and p.fault == NEGATIVE else action] = 1.0
    if late and p.fault == NAN:
        x = x / np.float32(age - FAULT_STEP)
    return Rover(age, x, s.marks), 1.0, False


def observe(s: Rover, p: Params) -> Any:
    return (np.float32(2.0) if s.age >= FAULT_STEP and p.fault == OUTSIDE else s.x,)


class Metrics(NamedTuple):
    speed: float


def metric(age: int, p: Params) -> Metrics:
    late = age >= FAULT_STEP
    speed = TABLE[5 if late and p.fault == METRIC_INDEX else 1]
    return Metrics(speed / np.float32(0 if late and p.fault == METRIC_NAN else 1))


def metrics(s: Rover, p: Params) -> Metrics:
    return metric(s.age, p)


def allowed(action: int, s: Rover, p: Params) -> bool:
    return s.age < FAULT_STEP or p.fault != NO_ACTION


class Rovers(NamedTuple):
    age: Ints
    x: Floats
    map: Annotated[Floats, "cells"]


def reset_rover(i: int, s: Rovers, key: Key, p: Params) -> None:
    s.age[i] = 0
    s.x[i] = uniform(key, i, 0.0, 0.5)


def reset_cell(cell: tuple[int, int], s: Rovers, key: Key, p: Params) -> None:
    s.map[cell] = 0.0


def drive(i: int, s: Rovers, action: int, key: Key, p: Params) -> None:
    s.age[i] += 1
    late = s.age[i] >= FAULT_STEP and i == 1
    s.x[i] = TABLE[5 if late and p.fault == ABOVE else 0]
    if late and p.fault == NAN:
        s.x[i] = s.x[i] / np.float32(s.age[i] - FAULT_STEP)


def grow(cell: tuple[int, int], s: Rovers, key: Key, p: Params) -> None:
    y = cell[0]
    s.map[cell] = s.x[0 - 1 if p.fault == NEGATIVE and y == 1 and s.age[0] >= FAULT_STEP else 0]


def observe_rover(i: int, s: Rovers, t: Any, p: Params) -> Any:
    return (np.float32(2.0) if i == 1 and s.age[i] >= FAULT_STEP and p.fault == OUTSIDE else s.x[i],)


def metrics_of_rovers(s: Rovers, p: Params) -> Metrics:
    return metric(s.age[1], p)


def allowed_of_rover(i: int, action: int, s: Rovers, p: Params) -> bool:
    return i == 0 or s.age[i] < FAULT_STEP or p.fault != NO_ACTION


SPACES = Box(-1, 1, (1,)), Discrete(3)
ROVER = SingleAgentEnv(
    Rover, Params(), reset, step, observe, lambda p: SPACES, max_episode_steps=20, metrics=metrics, allowed=allowed
)
ROVERS = MultiAgentEnv(
    state=Rovers, params=Params(), agents=lambda p: 2, sets=lambda p: {"cells": (2, 3)}, spaces=lambda p: SPACES,
    reset=(reset_rover, each("cells", reset_cell)), phases=(drive, each("cells", grow)),
    reward=lambda i, s, t, p: 0.0, terminated=lambda i, s, p: False, observation=lambda p: Observation(observe_rover),
    max_episode_steps=20, metrics=metrics_of_rovers, allowed=allowed_of_rover,
)  # fmt: skip
IN_STEP = r"in step 3 of environment 1, step 3 of its episode"
FAULTS = {
    "above": (ABOVE, rf"TABLE\[5\] does not exist; its shape is \(5,\), so clip the index to 0 to 4.*{IN_STEP}"),
    "negative": (NEGATIVE, rf"(marks|x)\[-1\] does not exist; .* the index must be from 0 to (3|1), .*{IN_STEP}"),
    "not finite": (NAN, r"after 3 steps x(\[1\])? of the state of environment 1 is nan, which is not finite"),
    "outside": (OUTSIDE, r"after 3 steps observation 0 of (agent 1 of )?environment 1 is 2, outside its space, -1 to 1"),
    "index of a metric": (METRIC_INDEX, rf"TABLE\[5\] does not exist.*{IN_STEP}"),
    "metric not finite": (METRIC_NAN, r"after 3 steps metric 'speed' of environment 1 is inf: guard divisions"),
    "no action": (NO_ACTION, r"after 3 steps it allows no action for (agent 1 of )?environment 1: at least one"),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("env", [ROVER, ROVERS], ids=["one agent", "many agents"])
def test_a_fault_is_raised_in_its_step_with_its_place(device, env, case):
    """The faults depend on a parameter of each env, so all cases share their kernels."""
    fault, message = FAULTS[case]
    envs = make_envs(env, 3, device, debug=True, per_env=("fault",), fault=[NO_FAULT, fault, NO_FAULT])
    envs.reset(seed=0)
    actions = on_device(envs, np.zeros(envs.action_space.shape, np.int32))
    for _ in range(FAULT_STEP - 1):
        envs.step(actions)
    with pytest.raises(AuthoringError, match=r"test_debug\.py, line \d+, `.*`: .*" + message) as error:
        envs.step(actions)
    if env is ROVERS and case in ("above", "negative"):
        assert ("for i = 1" if case == "above" else "for cell = (1, 0)") in str(error.value)


@pytest.mark.simulator
def test_a_fault_is_raised_in_the_simulator(simulator):
    test_a_fault_is_raised_in_its_step_with_its_place(simulator, ROVERS, "above")


def test_a_fault_of_a_reset_is_raised(device):
    def reset_late(s: Rover, key: Key, p: Params) -> Rover:
        for k in range(4):
            s.marks[k] = TABLE[k + p.fault]
        return Rover(0, 0.0, s.marks)

    env = ROVER.__class__(**{**vars(ROVER), "reset": reset_late})
    envs = make_envs(env, 2, device, debug=True, per_env=("fault",), fault=[0, 2])
    with pytest.raises(AuthoringError, match=r"TABLE\[5\] does not exist; .* in the reset of environment 1"):
        envs.reset(seed=0)


@pytest.mark.parametrize(
    ("env", "mode", "limit"),
    [(TROLLEY, "SameStep", 7), (MEADOW, "NextStep", 20), (BUNDLED_ENVS["ConnectFour-v0"], "Disabled", 7)],
    ids=["scalars", "index sets", "turns"],
)
def test_repeated_steps_are_those_of_the_device(env, mode, limit):
    """States after steps, resets and further resets of some envs are equal, which needs the same keys of random numbers."""
    envs = make_envs(env, 3, "cpu", autoreset_mode=mode, max_episode_steps=limit)
    checks = StepChecks(env, envs.simulation)
    obs, infos = envs.reset(seed=[5, None, 2**40])
    checks.after_reset(obs, None, {})
    envs.action_space.seed(0)
    num_compared = num_ended = 0
    for t in range(30):
        actions = envs.action_space.sample()
        if "action_mask" in infos:
            actions = allowed_actions(actions, infos["action_mask"], envs.simulation.schema)
        expected = checks.before_step(actions)
        *results, infos = envs.step(actions)
        checks.after_step((*results, infos))
        for row, state in enumerate(expected):
            for field, values in envs.get_state().items() if state is not None else ():
                np.testing.assert_allclose(values[row], state[field], rtol=1e-5, atol=1e-6, err_msg=field)
                num_compared += 1
        ended = results[2] | results[3]
        num_ended += int(ended.sum())
        if mode == "Disabled" and ended.any():
            envs.reset(options={"reset_mask": ended})
        if t == 4:
            envs.reset(seed=11)
    assert num_compared > 100
    assert num_ended >= 3


@pytest.mark.parametrize("output", ["numpy", "dlpack"])
def test_results_with_debug_are_those_without(output):
    results = []
    for debug in (False, True):
        envs = VectorEnv(ROVERS, 3, device="cpu", output=output, debug=debug, autoreset_mode="SameStep", max_episode_steps=4)
        obs, _ = envs.reset(seed=1)
        actions = np.array([[0, 7], [1, 2], [2, -1]], np.int64)
        results.append([np.from_dlpack(obs).copy(), *(np.from_dlpack(envs.step(actions)[0]).copy() for _ in range(6))])
        envs.close()
    np.testing.assert_array_equal(*results)


def test_rollouts_and_invalid_options_are_refused():
    envs = VectorEnv(TROLLEY, 2, device="cpu", output="numpy", debug=True)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"debug=True cannot check: call step\(\) instead"):
        envs.rollout(2)


def test_a_copy_keeps_the_checks():
    envs = VectorEnv(ROVER, 2, device="cpu", output="numpy", debug=True, per_env=("fault",), fault=[0, ABOVE])
    envs.reset(seed=0)
    other = copy.deepcopy(envs)
    for _ in range(FAULT_STEP - 1):
        other.step(np.zeros(2, np.int32))
    with pytest.raises(AuthoringError, match="TABLE"):
        other.step(np.zeros(2, np.int32))
