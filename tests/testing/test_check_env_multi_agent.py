"""Tests that `check_env` reports dependence on the order of agents, and other faults of multi-agent environments."""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.support import meadow_env
from tests.support.bundled_envs import BUNDLED_ENVS, MULTI_AGENT
from tests.support.compiled_runs import run_compiled

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError, install_command
from gpuvec.testing import check_env
from gpuvec.testing.compiled_runs.result_checks import NonFiniteResultError, ResultChecks
from gpuvec.testing.race_check import check_races
from gpuvec.testing.reference_check import check_against_reference

SOURCE = (Path(__file__).parents[1] / "support" / "street_env.py").read_text()


@pytest.fixture
def write_module(tmp_path, monkeypatch, request):
    """A function that writes `street_env` with `old` replaced to a temporary file and returns the name of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"street_{abs(hash(request.node.name)):x}"

    def write(old="", new=""):
        assert not old or SOURCE.count(old) == 1
        (tmp_path / f"{name}.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        importlib.invalidate_caches()
        return name

    yield write
    sys.modules.pop(name, None)


class FaultyEnv(NamedTuple):
    """`street_env` with `old` replaced by `new`, the expected message, and the line that it must show, if any."""

    old: str
    new: str
    message: str
    expected_line: str | None


LEAVE = "        s.is_out[i] = True"
RESET = "def reset(i: int, s: Street, key: Key, p: StreetParams) -> None:"
SLIP = "def slip(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:"
LEAVE_PHASE = "def leave(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:"
ACTIVE = "def active(i: int, s: Street, p: StreetParams) -> bool:"
DISTANCE = "def distance(i: int, j: int, s: Street, p: StreetParams) -> float:"

FAULTY_ENVS = {
    "scatter": FaultyEnv(
        LEAVE,
        f"{LEAVE}\n        s.x[s.caught_by[i]] += 1.0",
        r"agent \d writes x\[\d\] in phase `leave`, and may write its own elements only: let agent \d write it",
        "s.x[s.caught_by[i]] += 1.0",
    ),
    "scatter through a view": FaultyEnv(
        LEAVE,
        "        first = s.x[0:1]\n        first[0] = 0.0",
        r"agent [1-4] writes x\[0\] in phase `leave`, and may write its own elements only: let agent 0 write it",
        LEAVE_PHASE,
    ),
    "read of a field written in the same phase": FaultyEnv(
        "        x = s.x[i] +",
        "        x = s.x[(i + 1) % 5] +",
        r"phase `slip` reads x\[1\] for agent 0, and writes x too, in line \d+; split it into two phases, or read a copy of x",
        "x = s.x[(i + 1) % 5] + p.strides[action] + p.noise * normal(key, 2 * i)",
    ),
    "rare read of a field written in the same phase": FaultyEnv(
        "                s.caught_by[i] = j",
        "                s.caught_by[i] = j + 0 * s.caught_by[(i + 1) % 5]",
        r"phase `catch` reads caught_by\[\d\] for agent \d, and writes caught_by too",
        "s.caught_by[i] = j + 0 * s.caught_by[(i + 1) % 5]",
    ),
    "read that is not logged": FaultyEnv(
        "        x = s.x[i] +",
        "        x = 0.1 * s.x.sum() +",
        r"phase `slip` gives x\[\d\] the value .* depending on the order of agents: it reads what it also writes; split",
        SLIP,
    ),
    "index of a missing agent": FaultyEnv(
        "    if j < 0:\n        return -100.0, -1.0\n",
        "",
        r"IndexError: x\[-1\] does not exist; where -1 stands for no agent, test for it first",
        "return s.x[j] - s.x[i], np.float32(s.role[j])",
    ),
    "write in reward": FaultyEnv(
        "    count = 0\n",
        "    s.x[i] += 2.0\n    count = 0\n",
        "writes to a read-only array; reset and phases write to the state",
        "s.x[i] += 2.0",
    ),
    "write to a role": FaultyEnv(
        LEAVE, "        s.role[i] = 0", "writes to a read-only array; .* agents_by_role are the engine's", "s.role[i] = 0"
    ),
    "write to a number of the env": FaultyEnv(
        LEAVE,
        "        s.num_walking = 0",
        r"assigns to Street\.num_walking; .*let count_of, .* set a number or bool of the env",
        None,
    ),
    "search read in a phase": FaultyEnv(
        "    if s.caught_by[i] >= 0:\n",
        "    if s.neighbors[i, 0] >= 0:\n",
        r"there is no getitem\(none, .*what `neighbors` finds is not in the state",
        "if s.neighbors[i, 0] >= 0:",
    ),
    "active of others": FaultyEnv(
        f"{ACTIVE}\n    return not s.is_out[i]",
        f"{ACTIVE}\n    return not s.is_out[0]",
        r"active reads is_out\[0\] for agent 1, and may read only elements of agent 1: write the result to a field in a phase",
        "return not s.is_out[0]",
    ),
    "reset forgets a field": FaultyEnv(
        "    s.is_out[i] = False\n    s.caught_by[i] = -1\n",
        "    s.is_out[i] = False\n",
        r"reset leaves caught_by\[0\] as the last episode left it; write every element of every field",
        RESET,
    ),
    "reset reads the last episode": FaultyEnv(
        "    s.is_out[i] = False\n    s.caught_by[i] = -1\n",
        "    s.is_out[i] = False\n    s.caught_by[i] = min(s.caught_by[i], -1)\n",
        r"reset reads caught_by\[0\] for agent 0 before it writes caught_by, so the value is of the last episode; compute it",
        "s.caught_by[i] = min(s.caught_by[i], -1)",
    ),
    "draw number twice": FaultyEnv(
        "    s.x[i] = randint(key, i, 0, p.length)",
        "    s.x[i] = randint(key, i, 0, p.length) + randint(key, i, 0, 2)",
        r"agent 0 uses draw number 0 twice, first in line \d+, and draws the same value again; give each draw of an agent in a",
        "s.x[i] = randint(key, i, 0, p.length) + randint(key, i, 0, 2)",
    ),
    "draw number of another phase": FaultyEnv(
        "    if s.caught_by[i] >= 0:\n",
        "    if s.caught_by[i] >= 0 or randint(key, 2 * i, 0, 9) == 0:\n",
        "agent 0 uses draw number 0 after phase `slip`, which gets the same key, and draws the same value again",
        "if s.caught_by[i] >= 0 or randint(key, 2 * i, 0, 9) == 0:",
    ),
    "key of its own": FaultyEnv(
        RESET,
        "def reset(i, s, own, p):\n    key = Key(1, 2, 3, 4, 5)",
        "draws with a key that it created; draw with the key that is its argument",
        None,
    ),
    "float64": FaultyEnv(
        "        s.x[i] = min(max(x, 0.0), np.float32(p.length))",
        "        s.x[i] = min(max(x * 2, 0.0), np.float32(p.length))",
        "makes a float64; an int and a float are operands: write 2.0, not 2",
        "s.x[i] = min(max(x * 2, 0.0), np.float32(p.length))",
    ),
    "float64 table": FaultyEnv(
        "0.5], np.float32)", "0.5])", r"table 'strides' of tables\(p\) is float64; it must be float32", None
    ),
    "row width": FaultyEnv(
        ", np.float32(s.num_walking), ",
        ", ",
        r"2 neighbors of 2 values and 2 of the agent itself are 6 values, but the observation space has shape \(7,\)",
        "def self_features(i: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float, float]:",
    ),
    "int reward": FaultyEnv(
        "reward=reward,", "reward=lambda i, s, t, p: s.caught_by[i],", "reward returns int32; it must return a", None
    ),
    "vote": FaultyEnv(
        "    return s.num_walking == 0", "    return s.num_walking", "terminated returns int32; it must return a bool", None
    ),
    "active": FaultyEnv(
        f"{ACTIVE}\n    return not s.is_out[i]",
        f"{ACTIVE}\n    return s.x[i]",
        "active returns float32; it must return a bool, as a comparison is",
        ACTIVE,
    ),
    "phase that returns": FaultyEnv(
        LEAVE, f"{LEAVE}\n    return s.is_out[i]", "phase `leave` returns bool; it must return nothing: write new values", None
    ),
    "parameters": FaultyEnv(
        LEAVE_PHASE, "def leave(i, s, key, p):", r"must be leave\(i, s, action, key, p\)", None
    ),
    "count in a field of agents": FaultyEnv(
        'count_of("num_walking"', 'count_of("caught_by"',
        r"count_of\('caught_by', ...\) sets a field .* one int for the world", None,
    ),
    "neighbors without features": FaultyEnv(
        "self_features, other_features, p.num_observed", "self_features, None, p.num_observed",
        "max_neighbors=2, and other_features is", None,
    ),
    "distance less than its position allows": FaultyEnv(
        "else abs(s.x[i] - s.x[j])",
        "else 0.5 * abs(s.x[i] - s.x[j])",
        r"the distance of agents \d and \d is [\d.]+, less than their difference in 'x', [\d.]+, though the search has "
        r"position=\('x',\), squared=False; declare fields and `squared` so that no distance is less, or leave position out",
        DISTANCE,
    ),
    "distance that is not squared": FaultyEnv(
        'position=("x",), squared=False',
        'position=("x",), squared=True',
        r"the distance of agents \d and \d is [\d.]+, less than their squared difference in 'x', [\d.]+, though",
        DISTANCE,
    ),
    "out of bounds": FaultyEnv(
        "[p.walkers, 1.0]",
        "[p.walkers, 0.1]",
        r"after 1 steps observation 6 of agent \d is 0\.5, outside its space, 0 to 0\.1: widen the space, or clip",
        "def self_features(i: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float, float]:",
    ),
    "reward not finite": FaultyEnv(
        "    return np.float32(count)",
        "    return np.float32(count) + 1e38 * s.x[i] * 1e38",
        r"the reward of agent \d in step 1 is inf: guard",
        "def reward(i: int, s: Street, t: Time, p: StreetParams) -> float:",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY_ENVS)
def test_a_faulty_environment_raises_with_line_and_remedy(case, write_module):
    faulty = FAULTY_ENVS[case]
    name = write_module(faulty.old, faulty.new)
    with pytest.raises(AuthoringError, match=faulty.message) as error:
        check_env(f"{name}:SLIPPERY_STREET", num_envs=4, steps=40, kernels=False)
    if faulty.expected_line is not None:
        lines = SOURCE.replace(faulty.old, faulty.new).splitlines()
        place = next(k + 1 for k, line in enumerate(lines) if line.strip() == faulty.expected_line)
        assert f"{name}.py, line {place}, `{faulty.expected_line}`: " in str(error.value)


@pytest.mark.parametrize("name", MULTI_AGENT)
def test_bundled_games_have_no_races(name):
    assert "no two draws of a step have the same number" in check_races(BUNDLED_ENVS[name], steps=3, seed=0)["draws"]


class TestCorrectEnvironment:
    def test_all_checks_pass(self, write_module):
        checks = {
            check.name: check
            for check in check_env(f"{write_module()}:SLIPPERY_STREET", num_envs=9, steps=24, replay_seconds=0.2)
        }
        expected_checks = [
            "parameters",
            "types",
            "reset",
            "ownership",
            "order",
            "draws",
            "spaces",
            "rare states",
            "plain Python",
            "seeds",
            "simulator",
            "sm_90",
        ]
        assert list(checks) == expected_checks
        assert all(checks[name].ran for name in expected_checks[:10])
        assert checks["ownership"].detail == "in 12 steps with random actions agents write only their own elements"
        assert checks["draws"].detail == "reset draws 5 numbers; no two draws of a step have the same number"
        assert "kernel of a step compiled" in checks["sm_90"].detail or install_command("compile") in checks["sm_90"].detail

    def test_a_larger_game_passes(self, write_module):
        """In a larger game the check covers all functions, and the observations of some agents."""
        env = importlib.import_module(write_module()).SLIPPERY_STREET
        larger = dataclasses.replace(env, params=env.params._replace(walkers=30, num_observed=4))
        assert "no two draws of a step have the same number" in check_races(larger, steps=2, seed=1)["draws"]
        run = run_compiled(larger, 2, 5)
        assert "resets and steps agree to 1e-05, except 0" in check_against_reference(larger, run, 0)

    def test_runs_that_differ_from_plain_python_raise(self, write_module):
        """The test changes the run, because compiled code has the same source."""
        env = importlib.import_module(write_module()).SLIPPERY_STREET
        for what, name in {"states": "x", "obs": "", "reward": "", "infos": "agent_mask"}.items():
            run = run_compiled(env, 2, 5)
            assert "except 0" in check_against_reference(env, run, 0)
            for arrays in getattr(run, what):
                array = arrays[name] if name else arrays
                array[1, 3] = array[1, 3] + 0.25 if array.dtype != np.bool_ else not array[1, 3]
            with pytest.raises(
                AuthoringError, match=r"results differ from plain Python: after \d steps .* of environment 1 is"
            ):
                check_against_reference(env, run, 0)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.skipif(not numba_cuda.SIMULATED, reason="needs NUMBA_ENABLE_CUDASIM=1: run `pytest -m simulator` with it")
def test_the_simulator_is_checked(write_module):
    checks = {check.name: check for check in check_env(f"{write_module()}:SLIPPERY_STREET", num_envs=3, steps=8)}
    assert checks["simulator"] == ("simulator", True, "equals the CPU bit for bit")


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
def test_a_message_names_the_function_of_a_feature_that_is_not_finite(number, is_last):
    """An observation has two blocks, and then the agent's own features."""
    p = meadow_env.MEADOW.params._replace(observe_sets=True)
    env = dataclasses.replace(meadow_env.MEADOW, params=p)
    functions = meadow_env.gift_feature, meadow_env.cell_features, meadow_env.features
    sizes = p.sheep**2, 2 * p.height * p.width, 8
    obs = np.zeros((1, p.sheep, sum(sizes)), np.float32)
    obs[0, 1, sum(sizes[: number + 1]) - 1 if is_last else sum(sizes[:number])] = np.nan
    line = functions[number].__code__.co_firstlineno
    with pytest.raises(NonFiniteResultError, match=rf"meadow_env.py, line {line}, .* observation \d+ of agent 1 .* is nan"):
        ResultChecks(env, make_schema(env), 1).check_observations(obs, 3)
