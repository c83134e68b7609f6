"""Tests that `check_env`, with its defaults, finds faults that occur only late in an episode.

Each fault replaces a part of `trolley_env`, for one trolley or for several, or of `board_env`, which are the correct versions
of all of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError
from gpuvec.registration import load_env
from gpuvec.testing import check_env, environment_check
from gpuvec.testing.compiled_runs.compiled_run import load_recorded_run, record_run
from gpuvec.testing.worker_process import WorkerProcess

SUPPORT = Path(__file__).parents[1] / "support"
PAGE = Path(__file__).parents[2] / "docs" / "api" / "late_faults.md"
ENVS = {"trolley": "trolley_env:TROLLEY", "trolleys": "trolley_env:TROLLEYS", "board": "board_env:ENV"}
SOURCES = {name: (SUPPORT / f"{env.partition(':')[0]}.py").read_text() for name, env in ENVS.items()}
TIME_LIMIT = 2.0  # CPU seconds, after which a loop counts as endless
# Faults in the results of compiled code, or in code that does not return. Plain Python finds the others when it repeats a run.
IN_COMPILED_RESULTS = ("NaN", "infinity", "outside its space", "not finite", "endless loop")


class LateFault(NamedTuple):
    """An environment in which the text `old` is replaced by `new`."""

    old: str
    new: str
    message: str  # a pattern that the message after the line matches
    line: str = ""  # the start of the line that the message shows; by default it is a line that the fault changes


IN_STEP = r".* This occurs in step \d+ of environment \d+, step \d+ of its episode\."
FOR_AGENT = r".* This occurs for i = \d in step \d+ of environment \d+, step \d+ of its episode\."
DEPENDS = ", so results depend on the row, the episode or the seed; pass the key to draws alone"
RUNS = r"is where `{}` still runs after 2 s of CPU time; is it a loop that does not end\? A loop needs a bound"
WIDTH = "width = 0.01 if age < 180 else 0.02"
GUST = "uniform(key, 3 * i, -0.01, 0.01)"
REWARD = "    return 1.0 - abs(s.x[i]) / REACH"

SINGLE_AGENT = {
    "index above a table": LateFault(
        "SLOPES[min(age // p.section, NUM_SECTIONS - 1)]",
        "SLOPES[age // p.section]",
        r".*IndexError: SLOPES\[20\] does not exist; its shape is \(20,\), so clip the index to 0 to 19" + IN_STEP,
    ),
    "negative index of a table": LateFault(
        "SLOPES[max(NUM_SECTIONS - 1 - age // p.section, 0)]",
        "SLOPES[NUM_SECTIONS - 1 - age // p.section]",
        r".*IndexError: SLOPES\[-1\] does not exist; .* the index must be from 0 to 19, and Python would count" + IN_STEP,
    ),
    "index above a tuple": LateFault(
        "THRUSTS[(gear + age // 64) % 4]",
        "THRUSTS[gear + age // 180]",
        r".*IndexError: THRUSTS\[4\] does not exist; its length is 4, so clip the index to 0 to 3" + IN_STEP,
    ),
    "negative index of a tuple": LateFault(
        "THRUSTS[(gear + age // 64) % 4]",
        "THRUSTS[gear - age // 200]",
        r".*IndexError: THRUSTS\[-1\] does not exist; .* the index must be from 0 to 3, and Python would count" + IN_STEP,
    ),
    "shift by the width of the type": LateFault(
        "1 << min(age // 8, 20)",
        "1 << (age // 6)",
        ".*ValueError: a shift by 3[2-5]; an integer of 32 bits can be shifted by 0 to 31; clip the count" + IN_STEP,
    ),
    "negative shift": LateFault(
        "1 << min(age // 8, 20)",
        "1 << ((190 - age) // 8)",
        ".*ValueError: a shift by -[1-3]; an integer of 32 bits can be shifted by 0 to 31; clip the count" + IN_STEP,
    ),
    "division by zero": LateFault(
        "200 // max(200 - age, 1)",
        "200 // (200 - age)",
        ".*ZeroDivisionError: integer division or modulo by zero; test the divisor first" + IN_STEP,
    ),
    "modulo by zero": LateFault(
        "7 % max(205 - age, 1)",
        "7 % (205 - age)",
        ".*ZeroDivisionError: integer .*modulo by zero; test the divisor first" + IN_STEP,
    ),
    "NaN in the state": LateFault(
        "math.sqrt(max(1.0 - np.float32(age) / 200.0, 0.0))",
        "math.sqrt(1.0 - np.float32(age) / 200.0)",
        "after 201 steps heat of the state of environment 0 is nan, which is not finite: guard divisions, roots and logarithms",
    ),
    "infinity in the state": LateFault(
        "0.01 * math.sqrt(max(1.0 - np.float32(age) / 200.0, 0.0))",
        "0.001 / np.float32(max(200 - age, 0))",
        "after 200 steps heat of the state of environment 0 is inf, which is not finite: guard .*; inf is first computed here",
    ),
    "observation outside its space": LateFault(
        "return 0.99 * heat + 0.01 *",
        "return heat + 0.0055 + 0.0 *",
        r"after 182 steps observation 2 of environment 0 is 1\.00\d+, outside its space, -1 to 1: widen the space, or clip",
        "def observe(s, p):",
    ),
    "reward that is not finite": LateFault(
        "reward = 1.0 - abs(x) / REACH",
        "reward = (1.0 - abs(x) / REACH) / np.float32(200 - s.age)",
        r"the reward of environment \d in step 201 is (inf|nan): guard divisions, roots and logarithms",
    ),
    "draw number twice": LateFault(
        "randint(key, 2, 0,",
        "randint(key, 0, 0,",
        r"draw number 0 is used twice, first in line \d+, and gives the same value twice; give each draw its own" + IN_STEP,
    ),
    "draw number above the range": LateFault(
        "randint(key, 2, 0,",
        "randint(key, 2**31 - 2, 0,",
        "draw number 2147483646 is reserved; use numbers from 0 to 2147483643" + IN_STEP,
    ),
    "negative draw number": LateFault(
        "randint(key, 2, 0,",
        "randint(key, -1, 0,",
        "draw number -1 is reserved; use numbers from 0 to 2147483643" + IN_STEP,
    ),
    "draw number from the state": LateFault(
        "randint(key, 2, 0,",
        "randint(key, age, 0,",
        r"draw number \d+ depends on data, so it may equal that of another draw; compute it from literals" + IN_STEP,
    ),
    "draw number from a draw": LateFault(
        "randint(key, 2, 0,",
        "randint(key, 4 + randint(key, 2, 0, 4), 0,",
        r"draw number \d depends on data, so it may equal that of another draw; compute it from literals" + IN_STEP,
    ),
    "reversed bounds of uniform": LateFault(
        WIDTH,
        "width = np.float32(180 - age) / 10000.0",
        "uniform draws from 0.0001 to -0.0001; the lower bound must not be above the upper one" + IN_STEP,
        "return uniform(key, 0, -width, width)",
    ),
    "empty randint": LateFault(
        "max(210 - age, 1)) % 4",
        "205 - age) % 4",
        r"randint draws from 0 to below (0|-\d), where there is no integer; the upper bound must be greater" + IN_STEP,
    ),
    "endless loop": LateFault(
        "rest = rest // 10", "rest = rest // 10 if rest < 200 else rest", RUNS.format("step") + IN_STEP, "while rest > 0:"
    ),
    "row": LateFault(WIDTH, "width = 0.01 * np.float32(key.row if age > 200 else 1)", "reads row of the key" + DEPENDS),
    "episode": LateFault(
        WIDTH, "width = 0.01 * np.float32(key[3] % 2 if age > 200 else 1)", "reads element 3 of the key" + DEPENDS
    ),
    "row in a state that is never reached": LateFault(
        WIDTH, "width = 0.01 * np.float32(key.row if age == 1000 else 1)", "reads row of the key" + DEPENDS
    ),
    "comparison of keys": LateFault(WIDTH, "width = 0.01 if age < 180 or key == key else 0.02", "compares the key" + DEPENDS),
}
MULTI_AGENT = {
    "index above a field": LateFault(
        "s.memory[i, s.age[i] % p.memory_size]",
        "s.memory[i, s.age[i] // 25]",
        r".*IndexError: memory\[\d, 8\] does not exist; its shape is \(3, 8\), so clip the index to 0 to 7" + FOR_AGENT,
    ),
    "negative index of a field": LateFault(
        "if s.leader[i] >= 0:",
        "if s.leader[i] >= 0 or s.age[i] > 200:",
        r".*IndexError: v\[-1\] does not exist; where -1 stands for no agent, test for it first; .* 0 to 2, and" + FOR_AGENT,
        "pull = 0.1 * s.v[s.leader[i]]",
    ),
    "index above a table": LateFault(
        "p.slopes[min(age // p.section, NUM_SECTIONS - 1)]",
        "p.slopes[age // p.section]",
        r".*IndexError: p\.slopes\[20\] does not exist; its shape is \(20,\), so clip the index to 0 to 19" + FOR_AGENT,
    ),
    "negative index of a table": LateFault(
        "p.slopes[min(age // p.section, NUM_SECTIONS - 1)]",
        "p.slopes[NUM_SECTIONS - 1 - age // p.section]",
        r".*IndexError: p\.slopes\[-1\] does not exist; .* the index must be from 0 to 19" + FOR_AGENT,
    ),
    "shift by the width of the type": LateFault(
        "1 << min(age // 8, 20)",
        "1 << (age // 6)",
        ".*ValueError: a shift by 3[2-5]; an integer of 32 bits can be shifted by 0 to 31; clip the count" + FOR_AGENT,
    ),
    "division by zero": LateFault(
        "200 // max(200 - age, 1)",
        "200 // (200 - age)",
        ".*ZeroDivisionError: integer division or modulo by zero; test the divisor first" + FOR_AGENT,
    ),
    "NaN in the state": LateFault(
        "math.sqrt(max(1.0 - np.float32(s.age[i]) / 200.0, 0.0))",
        "math.sqrt(1.0 - np.float32(s.age[i]) / 200.0)",
        r"after 201 steps heat\[0\] of the state of environment 0 is nan, which is not finite: guard divisions",
    ),
    "infinity in the state": LateFault(
        "0.01 * math.sqrt(max(1.0 - np.float32(s.age[i]) / 200.0, 0.0))",
        "0.001 / np.float32(max(200 - s.age[i], 0))",
        r"after 200 steps heat\[0\] of the state of environment 0 is inf, .*; plain Python raises FloatingPointError here",
    ),
    "observation outside its space": LateFault(
        "0.99 * s.heat[i] + 0.01 *",
        "s.heat[i] + 0.0055 + 0.0 *",
        r"after 182 steps observation 2 of agent 0 of environment 0 is 1\.00\d+, outside its space, -1 to 1: widen the space",
        "def observe_track(i, s, t, p):",
    ),
    "reward that is not finite": LateFault(
        REWARD,
        "    return (1.0 - abs(s.x[i]) / REACH) / np.float32(200 - t.step)",
        r"the reward of agent \d of environment \d in step 200 is (inf|nan): guard divisions, roots and logarithms",
    ),
    "draw number of another agent": LateFault(
        "randint(key, 3 * i + 1, 0,",
        "randint(key, 3 * i + 3, 0,",
        r"agent \d uses draw number [36] in phase `accelerate`, and agent \d does .*: they draw the same; agent i may use",
    ),
    "draw number of two agents": LateFault(
        "randint(key, 3 * i + 1, 0,",
        "randint(key, 3 * (i % 2) + 1, 0,",
        r"agent 2 uses draw number 1 in phase `accelerate`, and agent 0 does .*: they draw the same; agent i may use k \* i",
    ),
    "draw number twice": LateFault(
        "randint(key, 3 * i + 1, 0,",
        "randint(key, 3 * i, 0,",
        r"agent \d uses draw number \d twice, first in line \d+, and draws the same value again; give each draw of an agent",
    ),
    "draw number of two phases": LateFault(
        "        pull = 0.1 * s.v[s.leader[i]]",
        "        pull = 0.1 * s.v[s.leader[i]] + (0.0 if s.age[i] < 200 else uniform(key, 3 * i, -0.1, 0.1))",
        r"agent \d uses draw number \d after phase `accelerate`, which gets the same key, and draws the same value again; give",
    ),
    "draw number above the range": LateFault(
        "randint(key, 3 * i + 1, 0,",
        "randint(key, 2**31 - 2 + i, 0,",
        r"draw number 214748364\d is reserved; use numbers from 0 to 2147483643" + FOR_AGENT,
    ),
    "reversed bounds of uniform": LateFault(
        GUST,
        "uniform(key, 3 * i, -0.01, np.float32(180 - age) / 1000.0)",
        r"uniform draws from -0\.01 to -0\.\d+; the lower bound must not be above the upper one" + FOR_AGENT,
    ),
    "empty randint": LateFault(
        "max(210 - age, 1)))",
        "205 - age))",
        r"randint draws from 0 to below (0|-\d), where there is no integer; the upper bound must be greater" + FOR_AGENT,
    ),
    "endless loop": LateFault(
        "rest = rest // 10",
        "rest = rest // 10 if rest < 200 else rest",
        RUNS.format("accelerate") + FOR_AGENT,
        "while rest > 0:",
    ),
    "endless loop in the reward": LateFault(
        REWARD,
        "    x = abs(s.x[i])\n    while x > 0.0 and t.step > 200:\n        x += 1.0\n    return 1.0 - x / REACH",
        RUNS.format("reward") + FOR_AGENT,
    ),
    "row": LateFault(
        GUST, "uniform(key, 3 * i, -0.01, 0.01 * np.float32(key.row if age > 200 else 1))", "reads row of the key" + DEPENDS
    ),
    "episode in a state that is never reached": LateFault(
        GUST,
        "uniform(key, 3 * i, -0.01, 0.01 * np.float32(key.episode if age == 1000 else 1))",
        "reads episode of the key" + DEPENDS,
    ),
}
ARRAYS = {
    "index above an array of the state": LateFault(
        "y = (s.y + 1) % p.height if action == DOWN else s.y",
        "y = s.age // 34 if action == DOWN else s.y",
        r".*IndexError: painted\[3, \d\] does not exist; its shape is \(3, 4\), so clip the index to 0 to 2" + IN_STEP,
        "s.painted[y, x] = ",
    ),
    "negative index of an array of the state": LateFault(
        "x = (s.x + 1) % p.width if action == RIGHT else s.x",
        "x = (s.x + 1) % p.width - s.age // 100 if action == RIGHT else s.x",
        r".*IndexError: painted\[\d, -1\] does not exist; .* the index must be from 0 to 3, and Python would" + IN_STEP,
        "s.painted[y, x] = ",
    ),
    "infinity in an array of the state": LateFault(
        "max(100 - age, 2)",
        "max(100 - age, 0)",
        r"after 100 steps wetness\[\d\]\[\d\] of the state of environment 0 is inf, which is not finite: guard divisions",
    ),
    "pixel outside its space": LateFault(
        "np.float32(min(s.age, 100)) / 100.0",
        "np.float32(s.age) / 100.0",
        r"after 101 steps observation \d+ of environment 0 is 1\.01, outside its space, 0 to 1: widen the space, or clip",
        "def observe(cell, s, p):",
    ),
    "modulo by zero in the action mask": LateFault(
        "s.age % 4 != 3",
        "100 % (105 - s.age) != 3",
        ".*ZeroDivisionError: integer .*modulo by zero; test the divisor first.* This occurs for action = [12] in step 105 of",
    ),
}
CELLS = {
    "index above a table in a phase of cells": LateFault(
        "p.slopes[min(s.day // p.section, NUM_SECTIONS - 1)]",
        "p.slopes[s.day // p.section]",
        r".*IndexError: p\.slopes\[20\] does not exist; .* This occurs for cell = \(0, 0\) in step 20\d of",
    ),
    "index above the set of a scatter": LateFault(
        "return min(number, NUM_SECTIONS - 1)",
        "return number",
        r"at returns 20 for element 0 of 'agents'; visits has shape \(20,\): clip the index, .* This occurs in step 20\d of",
        "def section_of(i, s, p):",
    ),
    "draw number of two cells": LateFault(
        "uniform(key, p.columns * y + x, 0.0, 0.01)",
        "uniform(key, y + x, 0.0, 0.01)",
        "element 2 of 'cells' uses draw number 1 in .*, and element 1 of 'cells' does in .*: they draw the same",
    ),
    "infinity in a field of cells": LateFault(
        "max(200 - s.day, 1)",
        "max(200 - s.day, 0)",
        r"after 200 steps grass\[0\]\[0\] of the state of environment 0 is inf, .* raises FloatingPointError here",
        "s.grass[cell] = ",
    ),
}
MULTI_AGENT |= CELLS
FAULTS = {("trolley", name): fault for name, fault in SINGLE_AGENT.items()}
FAULTS |= {("trolleys", name): fault for name, fault in MULTI_AGENT.items()}
FAULTS |= {("board", name): fault for name, fault in ARRAYS.items()}


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """A function that writes a source to a module and returns the name of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name, source):
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def correct_run():
    """A function that returns the compiled run of a correct version, recorded as `check_env` does with its defaults."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def record(name):
            env = load_env(f"tests.support.{ENVS[name]}")
            size = environment_check._run_size(env, make_schema(env), 33, None)
            worker = stack.enter_context(WorkerProcess(record_run, env, **size._asdict(), seed=0, time_limit=20.0))
            worker.answer()
            return load_recorded_run(worker.folder, size.limit)

        yield record


@pytest.fixture
def repeat_correct_run(correct_run, monkeypatch):
    """A function that lets `check_env` repeat the run of a correct version, since each compilation takes three seconds.

    Up to a fault, which occurs late in an episode, the run of the faulty version is the same.
    """

    def repeat(name):
        monkeypatch.setattr(
            environment_check, "WorkerProcess", lambda *args, **kwargs: contextlib.nullcontext(RecordedWorker())
        )
        monkeypatch.setattr(environment_check, "load_recorded_run", lambda folder, limit: correct_run(name))

    return repeat


class RecordedWorker:
    """The worker process of a run that was recorded before."""

    folder = Path()

    def answer(self):
        return "a seed repeats its run"


def fault_message(env, fault, write_module):
    """Checks a faulty environment and returns the number of the line that the message names, and the message after it."""
    source, (_, _, variable) = SOURCES[env], ENVS[env].partition(":")
    assert source.count(fault.old) == 1, fault.old
    name = write_module("late_fault", source.replace(fault.old, fault.new))
    with pytest.raises(AuthoringError) as error:
        check_env(f"{name}:{variable}", kernels=False, time_limit=TIME_LIMIT)
    found = re.fullmatch(rf".*{name}\.py, line (\d+), `(.*?)`: (.*)", str(error.value), re.DOTALL)
    assert found is not None, str(error.value)
    return int(found[1]), found[2], found[3]


# The check that finds these faults also finds one that `.ci/run` tests: with another message, on another side of a range, in
# another set, or in another environment.
SIMILAR = {
    ("trolley", "negative index of a table"): "negative index of a tuple",
    ("trolley", "index above a tuple"): "index above a table",
    ("trolley", "negative shift"): "shift by the width of the type",
    ("trolley", "division by zero"): "modulo by zero",
    ("trolley", "infinity in the state"): "NaN in the state",
    ("trolley", "draw number above the range"): "negative draw number",
    ("trolley", "draw number from the state"): "draw number from a draw",
    ("trolley", "empty randint"): "reversed bounds of uniform",
    ("trolley", "episode"): "row",
    ("trolley", "row in a state that is never reached"): "episode in a state that is never reached",
    ("trolleys", "negative index of a field"): "index above a field",
    ("trolleys", "draw number of another agent"): "draw number of two cells",
    ("trolleys", "draw number of two agents"): "draw number of two cells",
    ("trolleys", "endless loop in the reward"): "endless loop",
    ("trolleys", "index above a table in a phase of cells"): "index above the set of a scatter",
    ("trolleys", "infinity in a field of cells"): "infinity in an array of the state",
    ("board", "negative index of an array of the state"): "index above an array of the state",
}
SIMILAR |= {("trolleys", case): SIMILAR.get(("trolley", case), case) for case in MULTI_AGENT if case in SINGLE_AGENT}
VARIANTS = [pytest.param(*fault, marks=pytest.mark.slow if fault in SIMILAR else ()) for fault in FAULTS]


@pytest.mark.parametrize(("env", "case"), VARIANTS)
def test_a_late_fault_is_found_with_its_line(env, case, write_module, repeat_correct_run):
    source, fault = SOURCES[env], FAULTS[env, case]
    if not any(words in case for words in IN_COMPILED_RESULTS):
        repeat_correct_run(env)
    line, text, message = fault_message(env, fault, write_module)
    lines = source.replace(fault.old, fault.new).splitlines()
    assert lines[line - 1].strip() == text
    assert text.startswith(fault.line) if fault.line else text not in map(str.strip, source.splitlines())
    assert re.match(fault.message, message), message


def test_similar_faults_are_tested():
    assert set(SIMILAR.values()) <= {case for env, case in FAULTS if (env, case) not in SIMILAR}


def test_the_number_of_planted_faults():
    """Each fault of the tests has a row in the documentation of the check."""
    assert len(SINGLE_AGENT) >= 12
    assert len(MULTI_AGENT) >= 12
    rows = re.findall(r"^\| (.+?) \| (.*?) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert {name for name, single, _ in rows if single == "yes"} == SINGLE_AGENT.keys() | ARRAYS.keys()
    assert {name for name, _, multi in rows if multi == "yes"} == MULTI_AGENT.keys()


@pytest.mark.first_variants(1)  # each fault of the third one is the first that its checks find
@pytest.mark.parametrize("env", SOURCES)
def test_the_correct_versions_pass(env):
    checks = {check.name: check.detail for check in check_env(f"tests.support.{ENVS[env]}", kernels=False)}
    assert checks["plain Python"].endswith("resets and steps agree to 1e-05, except 0")
    assert checks["spaces"].endswith("all rewards and states finite")
