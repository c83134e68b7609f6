"""Tests that the checks report faults that occur late in an episode or in a rare state, with their line.

Most tests use a compiled run of an environment without the fault, because the states before the fault are the same.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from tests.support.env_sources import DRIFT, RING

from gpuvec.errors import AuthoringError
from gpuvec.testing import check_env
from gpuvec.testing.compiled_runs.compiled_run import make_run, random_actions, record_run, step_results
from gpuvec.testing.environment_check import check_structural
from gpuvec.testing.race_check import check_races, check_races_in_run
from gpuvec.testing.reference_check import check_against_reference
from gpuvec.vector.env import VectorEnv

NUMBERS = itertools.count()
LONG_DRIFT = DRIFT.replace("horizon: int = 5", "horizon: int = 60").replace("uniform\n", "Key, randint, uniform\n", 1)
LONG_DRIFT = LONG_DRIFT.replace("\ndef reset", "\nTABLE = np.arange(35, dtype=np.int32)\n\ndef reset", 1)
STEPS, ROWS = 70, 5


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A function that writes source with `old` replaced by `new` to a module and returns the name of the module."""
    folder, names = tmp_path_factory.mktemp("rare"), []
    sys.path.insert(0, str(folder))

    def write(source, old="", new=""):
        assert not old or source.count(old) == 1, old
        names.append(f"rare_{next(NUMBERS)}")
        (folder / f"{names[-1]}.py").write_text(source.replace(old, new) if old else source)
        importlib.invalidate_caches()
        return names[-1]

    yield write
    sys.path.remove(str(folder))
    for name in names:
        sys.modules.pop(name, None)
        gym.registry.pop(f"tests/{name}-v0", None)


def run_compiled_steps(env):
    """Returns a compiled run that is longer than an episode."""
    rows = VectorEnv(env, ROWS, device="cpu", output="numpy")
    actions = random_actions(env, rows.simulation.schema, STEPS, ROWS, 0)
    results = list(step_results(rows, actions, 0))
    rows.close()
    return make_run(actions, results, env.max_episode_steps)


@pytest.fixture(scope="module")
def single_run(module):
    return run_compiled_steps(importlib.import_module(module(LONG_DRIFT)).ENV)


@pytest.fixture(scope="module")
def game_run(module):
    return run_compiled_steps(importlib.import_module(module(RING)).ENV)


VELOCITY_LINE = "    v = 0.9 * s.v + "
RETURN_LINE = "    return State(x, v, age, turns), 1.0 - abs(x), turns >= p.horizon"
OBSERVE_LINE = "    return s.x, s.v"
RESET_LINE = "    return State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -0.1, 0.1), 0.0, 0)"

MOVE_LINE = "    s.x[i] = s.last[(i + 1) % p.num_agents]"
START_LINE = "    s.x[i] = uniform(key, i, -1.0, 1.0)"

SINGLE_AGENT_FAULTS = {
    "index of a table": (
        VELOCITY_LINE,
        "    v = np.float32(TABLE[s.turns]) * 0.0 + 0.9 * s.v + ",
        r"IndexError: TABLE\[35\] does not exist; its shape is \(35,\)",
    ),
    "negative index of a table": (
        VELOCITY_LINE,
        "    v = np.float32(TABLE[(29 - s.turns) if s.turns < 32 else 0]) * 0.0 + 0.9 * s.v + ",
        r"IndexError: TABLE\[-1\] does not exist; where -1 stands for no agent",
    ),
    "division by zero": (
        VELOCITY_LINE,
        "    v = np.float32(100 // (s.turns - 40)) * 0.0 + 0.9 * s.v + ",
        "ZeroDivisionError: integer division or modulo by zero",
    ),
    "remainder of zero": (
        VELOCITY_LINE,
        "    v = np.float32(np.int32(100) % np.int32(s.turns - 40)) * 0.0 + 0.9 * s.v + ",
        "ZeroDivisionError: integer .*modulo by zero",
    ),
    "shift": (
        VELOCITY_LINE,
        "    v = np.float32(1 << s.turns) * 0.0 + 0.9 * s.v + ",
        "ValueError: a shift by 32; an integer of 32 bits can be shifted by 0 to 31",
    ),
    "draw number from data": (
        VELOCITY_LINE,
        "    v = 0.01 * uniform(key, 1 + s.turns, 0.0, 1.0) + 0.9 * s.v + ",
        "draw number 1 depends on data, so it may equal that of another draw; compute it from literals",
    ),
    "draw number of the learners": (
        VELOCITY_LINE,
        "    v = 0.01 * uniform(key, 2**31 - 4, 0.0, 1.0) + 0.9 * s.v + ",
        "draw number 2147483644 is reserved; use numbers from 0 to 2147483643",
    ),
    "negative draw number": (
        VELOCITY_LINE,
        "    v = 0.01 * uniform(key, -1, 0.0, 1.0) + 0.9 * s.v + ",
        "draw number -1 is reserved",
    ),
    "draw number twice in a rare state": (
        VELOCITY_LINE,
        "    v = 0.9 * s.v + (uniform(key, 0, 0.0, 0.1) if s.turns == 40 else 0.0) + ",
        "draw number 0 is used twice",
    ),
    "bounds of uniform": (
        VELOCITY_LINE,
        "    v = 0.01 * uniform(key, 1, 0.0, np.float32(39 - s.turns)) + 0.9 * s.v + ",
        "uniform draws from 0 to -1; the lower bound must not be above the upper one",
    ),
    "empty randint": (
        VELOCITY_LINE,
        "    v = 0.01 * np.float32(randint(key, 1, 0, 40 - s.turns)) + 0.9 * s.v + ",
        "randint draws from 0 to below 0, where there is no integer; the upper bound must be greater",
    ),
    "row": (
        VELOCITY_LINE,
        "    v = 0.01 * np.float32(key.row if s.turns == 40 else 0) + 0.9 * s.v + ",
        "reads row of the key, so results depend on the row, the episode or the seed; pass the key to draws alone",
    ),
    "episode by its index": (
        RESET_LINE,
        RESET_LINE.replace("0.0, 0)", "0.0, 0 * np.int32(key[3]))"),
        "reads element 3 of the key",
    ),
    "key of its own": (
        VELOCITY_LINE,
        "    v = 0.01 * uniform(Key(1, 2, 3, 4, s.turns), 1, 0.0, 1.0) + 0.9 * s.v + ",
        "draws with a key that it created; draw with the key that is its argument",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SINGLE_AGENT_FAULTS)
def test_a_rare_fault_of_a_single_agent_environment_raises(case, module, single_run):
    old, new, message = SINGLE_AGENT_FAULTS[case]
    name = module(LONG_DRIFT, old, new)
    with pytest.raises(AuthoringError, match=message) as error:
        check_against_reference(importlib.import_module(name).ENV, single_run, 0)
    assert f"{name}.py, line " in str(error.value)


def test_correct_environments_pass(module, single_run, game_run):
    env = importlib.import_module(module(LONG_DRIFT)).ENV
    assert check_against_reference(env, single_run, 0) == "355 of 355 resets and steps agree to 1e-05, except 0"
    game = importlib.import_module(module(RING)).ENV
    assert "agree to 1e-05, except 0" in check_against_reference(game, game_run, 0)
    assert check_races_in_run(game, game_run, 0).startswith("in 150 of ")


def test_agents_may_share_a_draw_number_besides_their_own(module):
    source = RING.replace(START_LINE, "    s.x[i] = 0.1 * uniform(key, 4, -1.0, 1.0) + 0.9 * uniform(key, i, -1.0, 1.0)")
    assert check_races(importlib.import_module(module(source)).ENV, 2, 0)["draws"].startswith("reset draws 8 numbers")


MULTI_AGENT_FAULTS = {
    "index of a field": (
        MOVE_LINE,
        "    s.x[i] = s.last[(i + 1) % p.num_agents + (1 if s.gained[i] == 40.0 and i == 2 else 0)]",
        r"IndexError: last\[4\] does not exist; its shape is \(4,\)",
    ),
    "race in a rare state": (
        MOVE_LINE,
        "    s.x[i] = s.last[i] if s.gained[i] != 40.0 else s.x[(i + 1) % p.num_agents]",
        r"phase `move` reads x\[\d\] for agent \d, and writes x too",
    ),
    "all agents draw one number": (
        START_LINE,
        "    s.x[i] = uniform(key, 0, -1.0, 1.0)",
        "all agents use draw number 0 in `reset` and no other number, so they draw the same; agent i may use",
    ),
    "overlapping ranges": (
        START_LINE,
        "    s.x[i] = uniform(key, 2 * i, -1.0, 0.0) + uniform(key, 3 * i + 1, 0.0, 1.0)",
        "agent 2 uses draw number 4 in `reset`, and agent 1 does in `reset`: they draw the same; agent i may use",
    ),
    "ranges of two phases in different steps": (
        MOVE_LINE,
        "    s.x[i] = s.last[i] + 0.0 * (uniform(key, i, 0.0, 1.0) if s.gained[i] == 39.0 else uniform(key, 3 * i, 0.0, 1.0))",
        r"agent \d uses draw number \d in phase `move`, and agent \d does in phase `move`",
    ),
    "draw number from a field": (
        MOVE_LINE,
        "    s.x[i] = s.last[i] + 0.0 * uniform(key, np.int32(s.gained[i]), 0.0, 1.0)",
        "draw number 0 depends on data",
    ),
}


@pytest.mark.parametrize("case", MULTI_AGENT_FAULTS)
def test_a_rare_fault_of_a_multi_agent_environment_raises(case, module, game_run):
    old, new, message = MULTI_AGENT_FAULTS[case]
    name = module(RING, old, new)
    env = importlib.import_module(name).ENV

    def check():
        check_races(env, 4, 0)
        check_races_in_run(env, game_run, 0)

    with pytest.raises(AuthoringError, match=message) as error:
        check()
    assert f"{name}.py, line " in str(error.value)


LATE_FAULTS = {
    "index": (
        VELOCITY_LINE,
        "    v = np.float32(TABLE[s.turns]) * 0.0 + 0.9 * s.v + ",
        SINGLE_AGENT_FAULTS["index of a table"][2],
    ),
    "NaN in the state": (
        RETURN_LINE,
        "    age = age + 0.0 * math.sqrt(np.float32(39 - s.turns))\n" + RETURN_LINE,
        "after 41 steps age of the state of environment 0 is nan, which is not finite: guard divisions",
    ),
    "infinite reward": (
        RETURN_LINE,
        "    return State(x, v, age, turns), 1.0 / np.float32(s.turns - 40), turns >= p.horizon",
        "the reward of environment 0 in step 41 is -?inf: guard divisions",
    ),
    "observation": (
        OBSERVE_LINE,
        "    return s.x, 2.0 if s.turns == 41 else 0.0",
        "after 41 steps observation 1 of environment 0 is 2, outside its space, -1 to 1",
    ),
}
BOUNDED_DRIFT = LONG_DRIFT.replace("Box(-np.inf, np.inf, (2,), np.float32)", "Box(-BOUND, BOUND)").replace(
    "\ndef spaces", "\nBOUND = np.array([np.inf, 1.0], np.float32)\n\ndef spaces"
)


@pytest.mark.first_variants(1)  # test_check_env_late.py has more kinds of faults
@pytest.mark.parametrize("case", LATE_FAULTS)
def test_by_default_whole_episodes_are_checked(case, module):
    old, new, message = LATE_FAULTS[case]
    source = BOUNDED_DRIFT if case == "observation" else LONG_DRIFT
    with pytest.raises(AuthoringError, match=message):
        check_env(f"{module(source, old, new)}:ENV", num_envs=5, kernels=False)


ENDLESS_LOOPS = {
    "in the first step": (VELOCITY_LINE, "    while s.x == s.x:\n        turns = 0\n    v = 0.9 * s.v + ", "while s.x == s.x"),
    "in compiled code alone": (
        VELOCITY_LINE,
        "    far = 16777215.0\n    while far <= 16777216.0:\n        far += 1.0\n    v = 0.0 * far + 0.9 * s.v + ",
        None,
    ),
    "in plain Python too": (
        VELOCITY_LINE,
        "    while s.turns > 39:\n        turns = 0\n    v = 0.9 * s.v + ",
        "while s.turns > 39",
    ),
}


@pytest.mark.first_variants(1)  # test_check_env_late.py has an endless loop late in an episode
@pytest.mark.parametrize("case", ENDLESS_LOOPS)
def test_an_endless_loop_is_reported(case, module):
    """In float32 16777216 + 1 is 16777216, and plain Python computes the floats of a `SingleAgentEnv` in float64."""
    old, new, line = ENDLESS_LOOPS[case]
    name = module(LONG_DRIFT, old, new)
    with pytest.raises(AuthoringError) as error:
        check_env(f"{name}:ENV", num_envs=5, kernels=False, time_limit=1.0)
    message = str(error.value)
    assert f"{name}.py, line " in message
    if line is None:
        assert "`def step(s, action, key, p):`: compiled code" in message
        assert "does not return within 1 s of CPU time, in step 1; plain Python shows no fault" in message
    else:
        assert re.search(f"`({re.escape(line)}:|turns = 0)`: is where `step` still runs after 1 s of CPU time", message)


def test_a_process_that_crashes_is_explained(module, monkeypatch):
    """Plain Python repeats the last states and shows the index that is out of range."""
    name = module(LONG_DRIFT, *SINGLE_AGENT_FAULTS["index of a table"][:2])
    monkeypatch.setattr("gpuvec.testing.environment_check.record_run", crash_in_step_36)
    with pytest.raises(AuthoringError, match=r"IndexError: TABLE\[35\] does not exist; its shape is"):
        check_env(f"{name}:ENV", num_envs=5, kernels=False)


def crash_in_step_36(env, folder, *, num_envs, limit, seed, **options):
    """Does what `record_run` does, and ends the process as an access beyond an array would."""
    record_run(env, folder, num_envs=num_envs, steps=35, limit=limit, seed=seed, time_limit=20.0)
    actions = np.load(folder / "actions.npy")
    np.save(folder / "actions.npy", np.concatenate([actions, actions[:1]]))
    os.abort()


class TestStructural:
    """Each parameter on which shapes depend must be in `structural`."""

    def test_a_missing_structural_parameter_is_reported(self, module):
        name = module(RING, 'structural=("num_agents",), ', "")
        with pytest.raises(
            AuthoringError, match=r"shapes depend on parameter 'num_agents'.* with 5 the number of agents is 5 instead of"
        ):
            check_env(f"{name}:ENV", kernels=False)

    def test_a_missing_structural_parameter_of_a_single_agent_environment_is_reported(self, module):
        name = module(
            LONG_DRIFT, "Box(-np.inf, np.inf, (2,), np.float32)", "Box(-np.inf, np.inf, (p.horizon // 30,), np.float32)"
        )
        env = importlib.import_module(name).ENV
        with pytest.raises(AuthoringError, match=r"shapes depend on parameter 'horizon': with 59 the observation space has"):
            check_structural(env)

    def test_values_that_check_refuses_are_skipped(self, module):
        env = importlib.import_module(
            module(
                RING, "ENV = MultiAgentEnv(", "def refuse(p):\n    raise ValueError\n\nENV = MultiAgentEnv(\n    check=refuse,"
            )
        ).ENV
        assert check_structural(env) == "with 0 other values of parameters that are not structural all shapes stay the same"
        env = dataclasses.replace(env, check=None, structural=())
        with pytest.raises(AuthoringError, match="put 'num_agents' into structural"):
            check_structural(env)
