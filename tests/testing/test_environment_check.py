"""Tests that `check_env` accepts correct environments, and reports fault, line and remedy of faulty ones."""

import dataclasses
import functools
import importlib
import sys
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from tests.support.bundled_envs import SINGLE_AGENT
from tests.support.compiled_runs import results_of_run

import gpuvec
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError, UnknownParameterError, install_command
from gpuvec.testing import check_env
from gpuvec.testing.compiled_runs.compiled_run import check_equal_step

# A walker on a line that must stay near the middle. It has floats, an int and a bool, and draws in reset and step.
SOURCE = """
import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpuvec import Key, SingleAgentEnv, normal, randint, random, uniform

REACH = 4.0
TABLE = np.array([0.5, 1.0])


class State(NamedTuple):
    x: float  # [m]
    v: float  # [m/s]
    turns: int  # so far
    lucky: bool


class Params(NamedTuple):
    push_speed: float = 0.3  # [m/s]
    noise: float = 0.05  # [m/s]
    patience: int = 40  # turns


def reset(key, p):
    v = 0.1 * normal(key, 2)
    return State(uniform(key, 0, -1.0, 1.0), v, randint(key, 4, 0, 3), uniform(key, 5, 0.0, 1.0) < 0.5)


def pushed(v, action, p):
    return 0.9 * v + (p.push_speed if action == 1 else -p.push_speed)


def step(s, action, key, p):
    v = pushed(s.v, action, p) + p.noise * normal(key, 0)
    x = min(max(s.x + 0.1 * v, -REACH), REACH)
    reward = 1.0 if abs(x) < 1.0 else 0.0
    over = s.turns >= p.patience or (abs(x) >= REACH and not s.lucky)
    return State(x, v, s.turns + 1, s.lucky), reward, over


def observe(s, p):
    return s.x, s.v, np.float32(s.turns) / np.float32(p.patience)


def spaces(p):
    high = np.array([REACH, np.inf, 2.0], np.float32)
    return Box(-high, high), Discrete(2)


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=100)
"""


@pytest.fixture
def write_module(tmp_path, monkeypatch, request):
    """A function that writes SOURCE with one part replaced to a temporary file and returns the name of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"walker_{abs(hash(request.node.name)):x}"

    def write(part=None, new=""):
        source = SOURCE
        if part is not None:
            assert source.count(PARTS[part]) == 1
            source = source.replace(PARTS[part], new)
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    yield write
    sys.modules.pop(name, None)


# Lines of SOURCE that tests replace.
PARTS = {
    "reset": "    return State(uniform(key, 0, -1.0, 1.0), v, randint(key, 4, 0, 3), uniform(key, 5, 0.0, 1.0) < 0.5)",
    "pushed": "    return 0.9 * v + (p.push_speed if action == 1 else -p.push_speed)",
    "x": "    x = min(max(s.x + 0.1 * v, -REACH), REACH)",
    "reward": "    reward = 1.0 if abs(x) < 1.0 else 0.0",
    "result": "    return State(x, v, s.turns + 1, s.lucky), reward, over",
    "observe": "    return s.x, s.v, np.float32(s.turns) / np.float32(p.patience)",
    "high": "    high = np.array([REACH, np.inf, 2.0], np.float32)",
    "step": "def step(s, action, key, p):",
    "spaces": "    return Box(-high, high), Discrete(2)",
}
NEXT_STATE = "State(x, v, s.turns + 1, s.lucky)"
FIRST_NEW_LINE = "the first line of the replacement"
RESET, STEP, OBSERVE = "def reset(key, p):", "def step(s, action, key, p):", "def observe(s, p):"


class FaultyEnv(NamedTuple):
    """SOURCE with `part` replaced by `new`, the expected message, and the line that the message must show."""

    part: str
    new: str
    message: str
    expected_line: str | None = FIRST_NEW_LINE


FAULTY_ENVS = {
    "int literal": FaultyEnv("x", "    x = 2 * s.x", "makes a float64; an int and a float are operands: write 2.0, not 2"),
    "division by an int": FaultyEnv("pushed", "    return v / 3", "makes a float64; an int and a float are operands"),
    "math.pi": FaultyEnv("pushed", "    return v * math.pi", "makes a float64; .* put PI = math.pi there, and use that"),
    "ints for uniform": FaultyEnv(
        "reset", "    return State(uniform(key, 0, -1, 1), v, 0, True)", "an int and a float are operands"
    ),
    "int on one path": FaultyEnv("reward", "    reward = 1.0 if s.lucky else 0", "on one path .* write 0.0, not 0"),
    "float64 table": FaultyEnv("reward", "    reward = TABLE[action]", r"np.array\(\.\.\., np.float32\) for a table"),
    "other random numbers": FaultyEnv(
        "reward", "    reward = np.random.uniform()", "there is no np.random.uniform .* draw with"
    ),
    "int reward": FaultyEnv("reward", "    reward = 1", "the reward is int64; it must be a float on every path", STEP),
    "int in a float field": FaultyEnv(
        "reset", "    return State(0, v, 0, True)", "field 'x' of State is declared as float and gets int64: write 0.0", RESET
    ),
    "number for terminated": FaultyEnv(
        "result", f"    return {NEXT_STATE}, reward, 0.0", "terminated is float32; it must be a bool", STEP
    ),
    "two results": FaultyEnv("result", f"    return {NEXT_STATE}, reward", r"must return \(State, reward, terminated\)", STEP),
    "path without result": FaultyEnv(
        "result", f"    if s.lucky:\n        return {NEXT_STATE}, reward, over", "on every path", STEP
    ),
    "tuple for the state": FaultyEnv("result", "    return (x, v, s.turns, s.lucky), reward, over", "it must be a State", STEP),
    "two values": FaultyEnv("observe", "    return s.x, s.v", r"returns 2 values, but .* has shape \(3,\)", OBSERVE),
    "four values": FaultyEnv(
        "observe", "    return s.x, s.v, s.x, s.v", "returns 4 values, but the observation space", OBSERVE
    ),
    "no tuple": FaultyEnv("observe", "    return s.x", "it returns float32; it must return a tuple of 3 floats", OBSERVE),
    "list": FaultyEnv("x", "    x = [s.x, v][0]", "makes a list, set, dict or string.*use a tuple"),
    "empty list": FaultyEnv("x", "    xs = []\n    x = s.x", "no lists, sets, dicts or strings: use a tuple"),
    "text": FaultyEnv("x", '    y = f"{s.x}"\n    x = s.x', "makes a list, set, dict or string"),
    "assertion": FaultyEnv("x", "    assert s.turns < 90\n    x = s.x", "raises an error, which a GPU cannot"),
    "generator": FaultyEnv("x", "    x = sum(y for y in (s.x, v))", "write a loop"),
    "class": FaultyEnv("x", "    class Local: pass\n    x = s.x", "no try, with, class or import"),
    "recursion": FaultyEnv(
        "pushed", "    return pushed(v, action, p)", r"calls itself \(step -> pushed -> pushed\).* write a loop", None
    ),
    "np.clip": FaultyEnv(
        "pushed", "    return np.clip(v, -1.0, 1.0)", r"there is no np.clip .* write min\(max\(x, low\), high\)"
    ),
    "float(bool)": FaultyEnv("reward", "    reward = float(x > 1.0)", "write 1.0 if c else 0.0"),
    "module.function": FaultyEnv(
        "pushed", "    return random.unit(3)", "Unknown attribute 'unit' of type Module.* import the function"
    ),
    "unknown parameter": FaultyEnv("pushed", "    return p.pull", "Unknown attribute 'pull' of type Params.* use a field"),
    "unknown name": FaultyEnv(
        "pushed", "    return pull", "name 'pull' is not defined", "v = pushed(s.v, action, p) + p.noise * normal(key, 0)"
    ),
    "assignment to a field": FaultyEnv("x", "    s.x = 0.0\n    x = s.x", "a NamedTuple is immutable: build a new one"),
    "_replace": FaultyEnv("x", "    s = s._replace(x=0.0)\n    x = s.x", "build a new State"),
    "action[0]": FaultyEnv("reward", "    reward = action[0] * 1.0", "the action of a Discrete space is an int"),
    "no key": FaultyEnv("step", "def step(s, action, p):\n    key = None", r"must be step\(s, action, key, p\)"),
    "draw number twice": FaultyEnv(
        "reset",
        "    return State(uniform(key, 0, -1.0, 1.0), uniform(key, 0, 0.0, 1.0), 0, True)",
        r"number 0 is used twice, first in line \d+, and gives the same value twice",
    ),
    "normal takes two": FaultyEnv(
        "reset", "    return State(uniform(key, 3, -1.0, 1.0), v, 0, True)", r"number 3 is used twice.*normal\(\) two"
    ),
    "key of its own": FaultyEnv(
        "reset", "    return State(uniform(Key(1, 2, 3, 4, 5), 0, -1.0, 1.0), 0.0, 0, True)", "draws with a key that it created"
    ),
    "out of bounds": FaultyEnv(
        "high",
        "    high = np.array([REACH, 0.4, 2.0], np.float32)",
        r"after \d+ steps observation 1 of environment \d is -?\d\.\d+, outside its space, -0\.4 to 0\.4: widen",
        OBSERVE,
    ),
    "observation not finite": FaultyEnv(
        "observe",
        "    return s.x, s.v, 0.0 / (s.x - s.x)",
        "after 0 steps observation 2 of environment 0 is nan, which is not finite: guard divisions",
    ),
    "reward not finite": FaultyEnv(
        "reward", "    reward = 1e38 * x * 1e38", "the reward of environment 0 in step 1 is -?inf", STEP
    ),
    "no plain Python": FaultyEnv(
        "reward",
        "    reward = 1.0 if 1.0 / (x - x) > 0.0 else 0.0",
        "does not run as plain Python, ZeroDivisionError: float division by zero; test the divisor first; it must run",
    ),
    "not pure": FaultyEnv(
        "x",
        "    x = s.x + (1.0 if 0.1 + 0.2 > 0.3 else 0.0)",
        r"results differ from plain Python: after \d+ steps x of environment \d is",
        STEP,
    ),
    "space of float64": FaultyEnv("spaces", "    return Box(-1.0, 1.0, (3,), np.float64), Discrete(2)", "dtype float32", None),
}


# test_check_env_late.py has these in long episodes.
LATE = ("out of bounds", "observation not finite", "reward not finite")


@pytest.mark.parametrize("case", [pytest.param(x, marks=pytest.mark.slow if x in LATE else ()) for x in FAULTY_ENVS])
def test_a_faulty_environment_raises_with_line_and_remedy(case, write_module):
    faulty = FAULTY_ENVS[case]
    name = write_module(faulty.part, faulty.new)
    with pytest.raises(AuthoringError, match=faulty.message) as error:
        check_env(f"{name}:ENV", num_envs=4, steps=40, kernels=False)
    if faulty.expected_line is not None:
        expected_line = faulty.new.splitlines()[0].strip() if faulty.expected_line is FIRST_NEW_LINE else faulty.expected_line
        lines = SOURCE.replace(PARTS[faulty.part], faulty.new).splitlines()
        place = next(k + 1 for k, line in enumerate(lines) if line.strip() == expected_line)
        assert f"{name}.py, line {place}, `{expected_line}`: " in str(error.value)


def test_the_engine_explains_a_compile_error(write_module):
    """The engine explains the error although the environment was not checked before."""
    name = write_module("pushed", "    return float(v > 1.0)")
    envs = gpuvec.VectorEnv(f"{name}:ENV", 1, device="cpu", output="numpy")
    envs.reset(seed=0)
    with pytest.raises(
        AuthoringError, match=r"walker_\w+\.py, line \d+, `return float.*: there is no float\(bool\).* write 1.0 if c"
    ):
        envs.step(np.zeros(1, np.int64))


def test_a_partial_is_refused_as_a_function(write_module):
    env = importlib.import_module(write_module()).ENV
    with pytest.raises(AuthoringError, match=r"step is a partial; it must be a plain function step\(s, action, key, p\)"):
        check_env(dataclasses.replace(env, step=functools.partial(env.step)))


class TestCorrectEnvironment:
    """The environment is in a file outside of the repository."""

    def test_all_checks_pass(self, write_module):
        checks = {check.name: check for check in check_env(f"{write_module()}:ENV")}
        assert list(checks) == ["parameters", "types", "draws", "spaces", "plain Python", "seeds", "simulator", "sm_90"]
        assert all(checks[name].ran for name in list(checks)[:6])
        assert checks["draws"].detail == "reset draws 5 numbers, step draws 2 numbers"
        assert "NUMBA_ENABLE_CUDASIM=1" in checks["simulator"].detail
        assert "kernel of a step compiled" in checks["sm_90"].detail or install_command("compile") in checks["sm_90"].detail

    def test_kernel_compilation_can_be_skipped(self, write_module):
        *others, kernels = check_env(f"{write_module()}:ENV", num_envs=3, steps=4, kernels=False)
        assert kernels == ("sm_90", False, "skipped because of kernels=False")
        ran = [check.name for check in others if check.ran]
        assert ran == ["parameters", "types", "draws", "spaces", "plain Python", "seeds"]

    def test_a_registered_environment_runs_in_make_vec(self, write_module):
        module = importlib.import_module(write_module())
        gpuvec.register("tests/Walker-v0", module.ENV)
        try:
            envs = gym.make_vec("tests/Walker-v0", num_envs=64, device="cpu", output="numpy", push_speed=0.5)
            assert envs.params.push_speed == 0.5
            assert envs.max_episode_steps == 100
            obs, _ = envs.reset(seed=0)
            total, episodes = np.zeros(64), 0
            for _ in range(300):
                obs, reward, terminated, truncated, _ = envs.step((obs[:, 0] + obs[:, 1] < 0).astype(np.int64))
                total += reward
                episodes += int((terminated | truncated).sum())
                assert envs.single_observation_space.contains(obs[0])
            assert episodes > 64
            # A walker that is pushed to the middle stays there.
            assert total.mean() > 250
            scalar = gym.make("tests/Walker-v0")
            assert scalar.observation_space.contains(scalar.reset(seed=1)[0])
        finally:
            del gym.registry["tests/Walker-v0"]

    def test_check_env_takes_ids_and_parameters(self, write_module):
        module = importlib.import_module(write_module())
        gpuvec.register("tests/Walker-v1", module.ENV, noise=0.0)
        try:
            assert check_env("tests/Walker-v1", num_envs=3, steps=8, push_speed=0.1)[0].ran
            with pytest.raises(UnknownParameterError, match="unknown parameter 'push_sped'; did you mean 'push_speed'"):
                check_env("tests/Walker-v1", push_sped=0.1)
        finally:
            del gym.registry["tests/Walker-v1"]
        with pytest.raises(AuthoringError, match="'CartPole-v1' is not an environment of gpuvec"):
            check_env("CartPole-v1")
        with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
            check_env(module.ENV, steps=0)
        with pytest.raises(ValueError, match="replay_seconds must be at least 0 CPU seconds, got -1"):
            check_env(module.ENV, replay_seconds=-1)
        with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
            check_env(module.ENV, num_envs=0)


# These have scalars, features and discrete or continuous actions, as the package of `gpuvec new-env`, whose tests run all
# checks, or Pendulum have.
SIMILAR = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0")


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ()) for name in SINGLE_AGENT]
)
def test_all_checks_pass_for_a_bundled_environment(name):
    """Tests of test_kernels_compile.py and test_kernels_compile_multi_agent.py compile the kernels."""
    checks = check_env(f"gpuvec/{name}", num_envs=9, steps=40, replay_seconds=0.1, kernels=False)
    assert all(check.ran for check in checks if check.name not in ("simulator", "sm_90"))


@pytest.mark.simulator
@pytest.mark.skipif(not numba_cuda.SIMULATED, reason="needs NUMBA_ENABLE_CUDASIM=1: run `pytest -m simulator` with it")
def test_the_simulator_is_checked(write_module):
    checks = {check.name: check for check in check_env(f"{write_module()}:ENV", num_envs=5, steps=12)}
    assert checks["simulator"] == ("simulator", True, "equals the CPU bit for bit")
    assert checks["sm_90"] == ("sm_90", False, "the simulator compiles no kernels")


def test_different_runs_raise(write_module):
    """The test changes the run, because pure functions cannot depend on the number of rows."""
    env = importlib.import_module(write_module()).ENV
    schema, (_, results) = make_schema(env), results_of_run(env, 3, 8)
    check_equal_step(env, schema, 5, results[5], results[5], "both")
    for name in ("observation", "reward", "terminated", "truncated", "state v"):
        changed = results[5][name].copy()
        changed[2] = 1 - changed[2]
        place = name.replace("observation", r"observation\[0\]")
        with pytest.raises(AuthoringError, match=f"both differ: after 5 steps environment 2, {place} is"):
            check_equal_step(env, schema, 5, results[5], {**results[5], name: changed}, "both")
