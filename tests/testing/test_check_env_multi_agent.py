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

SOURCE = (Path(__file__).parents[1] / "support" / "hunt_env.py").read_text()


@pytest.fixture
def write_module(tmp_path, monkeypatch, request):
    """A function that writes `hunt_env` with `old` replaced to a temporary file and returns the name of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"hunt_{abs(hash(request.node.name)):x}"

    def write(old="", new=""):
        assert not old or SOURCE.count(old) == 1
        (tmp_path / f"{name}.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        importlib.invalidate_caches()
        return name

    yield write
    sys.modules.pop(name, None)


class FaultyEnv(NamedTuple):
    """`hunt_env` with `old` replaced by `new`, the expected message, and the line that it must show, if any."""

    old: str
    new: str
    message: str
    expected_line: str | None


LEAVE = "        s.alive[i] = False"
RESET, MOVE = "def reset(i, s, key, p):", "def move(i, s, action, key, p):"

FAULTY_ENVS = {
    "scatter": FaultyEnv(
        LEAVE,
        f"{LEAVE}\n        s.score[s.hunter[i]] += 1.0",
        r"agent \d writes score\[\d\] in phase `leave`, and may write its own elements only: let agent \d write it",
        "s.score[s.hunter[i]] += 1.0",
    ),
    "scatter through a view": FaultyEnv(
        LEAVE,
        "        first = s.x[0:1]\n        first[0] = 0.0",
        r"agent [1-4] writes x\[0\] in phase `leave`, and may write its own elements only: let agent 0 write it",
        "def leave(i, s, action, key, p):",
    ),
    "read of a field written in the same phase": FaultyEnv(
        "    v = 0.8 * s.v[i] +",
        "    v = 0.8 * s.v[(i + 1) % 5] +",
        r"phase `move` reads v\[1\] for agent 0, and writes v too, in line \d+; split it into two phases, or read a copy of v",
        "v = 0.8 * s.v[(i + 1) % 5] + p.push[action] + p.noise * normal(key, 2 * i)",
    ),
    "rare read of a field written in the same phase": FaultyEnv(
        "                s.hunter[i] = s.agents_by_role[k]",
        "                s.hunter[i] = s.agents_by_role[k] + 0 * s.hunter[(i + 1) % 5]",
        r"phase `catch` reads hunter\[\d\] for agent \d, and writes hunter too",
        "s.hunter[i] = s.agents_by_role[k] + 0 * s.hunter[(i + 1) % 5]",
    ),
    "read that is not logged": FaultyEnv(
        "    v = 0.8 * s.v[i] +",
        "    v = 0.8 * s.v.sum() +",
        r"phase `move` gives [vx]\[\d\] the value .* depending on the order of agents: it reads what it also writes; split",
        MOVE,
    ),
    "index of a missing agent": FaultyEnv(
        "    if j < 0:\n        return 0.0, 0.0\n",
        "",
        r"IndexError: x\[-1\] does not exist; where -1 stands for no agent, test for it first",
        "return (s.x[j] - s.x[i]) / p.length, 1.0 if s.role[j] == HUNTER else 0.5",
    ),
    "write in reward": FaultyEnv(
        "    return s.score[i]",
        "    s.score[i] += 2.0\n    return s.score[i]",
        "writes to a read-only array; reset and phases write to the state",
        "s.score[i] += 2.0",
    ),
    "write to a role": FaultyEnv(
        LEAVE, "        s.role[i] = 0", "writes to a read-only array; .* agents_by_role are the engine's", "s.role[i] = 0"
    ),
    "write to a number of the env": FaultyEnv(
        LEAVE, "        s.prey = 0", r"assigns to State\.prey; .*let count_of, .* set a number or bool of the env", None
    ),
    "search read in a phase": FaultyEnv(
        "    if s.hunter[i] >= 0:\n",
        "    if s.neighbors[i, 0] >= 0:\n",
        r"there is no getitem\(none, .*what `neighbors` finds is not in the state",
        "if s.neighbors[i, 0] >= 0:",
    ),
    "active of others": FaultyEnv(
        "def active(i, s, p):\n    return s.alive[i]",
        "def active(i, s, p):\n    return s.alive[0]",
        r"active reads alive\[0\] for agent 1, and may read only elements of agent 1: write the result to a field in a phase",
        "return s.alive[0]",
    ),
    "reset forgets a field": FaultyEnv(
        "    s.hunter[i] = -1\n    s.score[i] = 0.0\n",
        "    s.score[i] = 0.0\n",
        r"reset leaves hunter\[0\] as the last episode left it; write every element of every field",
        RESET,
    ),
    "reset reads the last episode": FaultyEnv(
        "    s.hunter[i] = -1\n    s.score[i] = 0.0\n",
        "    s.hunter[i] = min(s.hunter[i], -1)\n    s.score[i] = 0.0\n",
        r"reset reads hunter\[0\] for agent 0 before it writes hunter, so the value is of the last episode; compute it from",
        "s.hunter[i] = min(s.hunter[i], -1)",
    ),
    "draw number twice": FaultyEnv(
        "    s.v[i] = uniform(key, 2 * i + 1, -0.1, 0.1)",
        "    s.v[i] = normal(key, 2 * i)",
        r"agent 0 uses draw number 0 twice, first in line \d+, and draws the same value again; give each draw of an agent in a",
        "s.v[i] = normal(key, 2 * i)",
    ),
    "draw number of another phase": FaultyEnv(
        "    if s.hunter[i] >= 0:\n",
        "    if s.hunter[i] >= 0 or uniform(key, 2 * i, 0.0, 1.0) < 0.1:\n",
        "agent 0 uses draw number 0 after phase `move`, which gets the same key, and draws the same value again",
        "if s.hunter[i] >= 0 or uniform(key, 2 * i, 0.0, 1.0) < 0.1:",
    ),
    "key of its own": FaultyEnv(
        RESET,
        "from gpuvec import Key\n\n\ndef reset(i, s, own, p):\n    key = Key(1, 2, 3, 4, 5)",
        "draws with a key that it created; draw with the key that is its argument",
        None,
    ),
    "float64": FaultyEnv(
        "    s.x[i] = min(max(s.x[i] + v, 0.0), p.length)",
        "    s.x[i] = min(max(s.x[i] + v * 2, 0.0), p.length)",
        "makes a float64; an int and a float are operands: write 2.0, not 2",
        "s.x[i] = min(max(s.x[i] + v * 2, 0.0), p.length)",
    ),
    "float64 table": FaultyEnv(
        "0.3], np.float32)", "0.3])", r"table 'push' of tables\(p\) is float64; it must be float32", None
    ),
    "row width": FaultyEnv(
        ", np.float32(s.prey)\n",
        "\n",
        r"2 neighbors of 2 values and 2 of the agent itself are 6 values, but the observation space has shape \(7,\)",
        "def observe(i, s, t, p):",
    ),
    "int reward": FaultyEnv("    return s.score[i]", "    return s.hunter[i]", "reward returns int32; it must return a", None),
    "vote": FaultyEnv("    return s.prey == 0", "    return s.prey", "terminated returns int32; it must return a bool", None),
    "active": FaultyEnv(
        "def active(i, s, p):\n    return s.alive[i]",
        "def active(i, s, p):\n    return s.x[i]",
        "active returns float32; it must return a bool, as a comparison is",
        "def active(i, s, p):",
    ),
    "phase that returns": FaultyEnv(
        LEAVE, f"{LEAVE}\n    return s.alive[i]", "phase `leave` returns bool; it must return nothing: write new values", None
    ),
    "parameters": FaultyEnv(
        "def leave(i, s, action, key, p):", "def leave(i, s, key, p):", r"must be leave\(i, s, action, key, p\)", None
    ),
    "count in a field of agents": FaultyEnv(
        'count_of("prey"', 'count_of("hunter"', r"count_of\('hunter', ...\) sets a field .* one int for the world", None
    ),
    "neighbors without features": FaultyEnv(
        "observe, other_features, p.num_observed", "observe, None, p.num_observed",
        "max_neighbors=2, and other_features is", None,
    ),
    "distance less than its position allows": FaultyEnv(
        "    return abs(s.x[j] - s.x[i])",
        "    return 0.5 * abs(s.x[j] - s.x[i])",
        r"the distance of agents \d and \d is [\d.]+, less than their difference in 'x', [\d.]+, though the search has "
        r"position=\('x',\), squared=False; declare fields and `squared` so that no distance is less, or leave position out",
        "def distance(i, j, s, p):",
    ),
    "distance that is not squared": FaultyEnv(
        'position=("x",), squared=False',
        'position=("x",), squared=True',
        r"the distance of agents \d and \d is [\d.]+, less than their squared difference in 'x', [\d.]+, though",
        "def distance(i, j, s, p):",
    ),
    "out of bounds": FaultyEnv(
        " [1.0] * (2 * p.num_observed + 2) +",
        " [1.0] * (2 * p.num_observed) + [0.1, 1.0] +",
        r"after 0 steps observation 4 of agent \d is 0\.\d+, outside its space, 0 to 0\.1: widen the space, or clip",
        "def observe(i, s, t, p):",
    ),
    "reward not finite": FaultyEnv(
        "    return s.score[i]",
        "    return s.score[i] + 1e38 * s.x[i] * 1e38",
        r"the reward of agent \d in step 1 is inf: guard",
        "def reward(i, s, t, p):",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY_ENVS)
def test_a_faulty_environment_raises_with_line_and_remedy(case, write_module):
    faulty = FAULTY_ENVS[case]
    name = write_module(faulty.old, faulty.new)
    with pytest.raises(AuthoringError, match=faulty.message) as error:
        check_env(f"{name}:ENV", num_envs=4, steps=40, kernels=False)
    if faulty.expected_line is not None:
        lines = SOURCE.replace(faulty.old, faulty.new).splitlines()
        place = next(k + 1 for k, line in enumerate(lines) if line.strip() == faulty.expected_line)
        assert f"{name}.py, line {place}, `{faulty.expected_line}`: " in str(error.value)


@pytest.mark.parametrize("name", MULTI_AGENT)
def test_bundled_games_have_no_races(name):
    assert "no two draws of a step have the same number" in check_races(BUNDLED_ENVS[name], steps=3, seed=0)["draws"]


class TestCorrectEnvironment:
    def test_all_checks_pass(self, write_module):
        checks = {check.name: check for check in check_env(f"{write_module()}:ENV", num_envs=9, steps=24, replay_seconds=0.2)}
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
        assert checks["draws"].detail == "reset draws 10 numbers; no two draws of a step have the same number"
        assert "kernel of a step compiled" in checks["sm_90"].detail or install_command("compile") in checks["sm_90"].detail

    def test_a_larger_game_passes(self, write_module):
        """In a larger game the check covers all functions, and the observations of some agents."""
        env = importlib.import_module(write_module()).ENV
        larger = dataclasses.replace(env, params=env.params._replace(runners=30, num_observed=4))
        assert "no two draws of a step have the same number" in check_races(larger, steps=2, seed=1)["draws"]
        run = run_compiled(larger, 2, 5)
        assert "resets and steps agree to 1e-05, except 0" in check_against_reference(larger, run, 0)

    def test_runs_that_differ_from_plain_python_raise(self, write_module):
        """The test changes the run, because compiled code has the same source."""
        env = importlib.import_module(write_module()).ENV
        for what, name in {"states": "v", "obs": "", "reward": "", "infos": "agent_mask"}.items():
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
    checks = {check.name: check for check in check_env(f"{write_module()}:ENV", num_envs=3, steps=8)}
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
