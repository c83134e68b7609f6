"""Tests that `gpuvec check` accepts equal targets, and reports where a wrong one first differs.

A wrong target is one whose environment has a wrong line, as a second implementation in another language may have.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("tyro")

from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.env_sources import DRIFT, RING
from tests.support.wrong_targets import CPU_OPTIONS
from tests.support.wrong_targets import comparison_with as job

from gpuvec import MultiAgentEnv
from gpuvec.cli import main
from gpuvec.errors import DeviceError
from gpuvec.registration import load_env
from gpuvec.testing.target_check import target_comparison, targets
from gpuvec.testing.target_check.differences import differences, differs_in_bits, exceeds_tolerance
from gpuvec.testing.target_check.target_comparison import ComparisonJob, ComparisonReport, compare

NUMBER = r"-?\d[\d.e-]*"


@pytest.mark.parametrize(
    ("source", "old", "new", "where"),
    [
        pytest.param(
            DRIFT,
            "uniform(key, 0, -1.0, 1.0), uniform(key, 1, -0.1, 0.1)",
            "uniform(key, 1, -0.1, 0.1), uniform(key, 0, -1.0, 1.0)",
            rf"the first reset: environment 0, state x is {NUMBER} on cpu and {NUMBER} on wrong",
            id="swapped fields",
        ),
        pytest.param(
            DRIFT, "turns >= p", "turns > p", "step 5: environment 0, terminated is True on cpu and False on", id="horizon"
        ),
        pytest.param(DRIFT, "key, 1, -0.1", "key, 2, -0.1", "the first reset: environment 0, state v is", id="draw"),
        # With a missing barrier the last agent reads what the first has written.
        pytest.param(RING, "s.last[(i + 1)", "s.x[(i + 1)", "step 1: environment 0, agent 3, state x is", id="missing barrier"),
        pytest.param(
            RING,
            "    s.gained[i] = 0.0\n",
            "",
            r"step 9: environment 0, agent 0, state gained is 0\.0 on cpu and 8\.0 on wrong",
            id="forgotten field",
        ),
    ],
)
def test_a_wrong_line_is_reported_with_its_place(write_module, source, old, new, where):
    result = compare(job(write_module(source), write_module(source, old, new)))
    assert re.match(f"NextStep, in {where}", result.difference), result.difference
    assert result.script


def test_another_step_limit_is_reported(write_module):
    name = write_module(DRIFT)
    result = compare(job(name, name, max_episode_steps=4)._replace(modes=("SameStep",)))
    assert result.difference.startswith("SameStep, in step 4: environment 0, truncated is False on cpu and True on wrong")


def test_equal_targets_agree_in_every_mode(write_module):
    """Each run has two episodes of five steps; in two modes the reset of the second is an additional call."""
    name = write_module(DRIFT)
    result = compare(job(name, name)._replace(modes=target_comparison.AUTORESET_MODES))
    assert result == ComparisonReport(num_results=3 * ((1 + 5 + 1 + 5) + (1 + 5 + 5) + (1 + 5 + 1 + 5)))


class TestTolerances:
    def test_tolerances_and_types(self):
        one = np.float32([1.0, 100.0, 0.0, np.nan, np.inf, np.inf, 0.5])
        other = np.float32([1.000009, 100.0009, 9e-6, np.nan, np.inf, 3.0, 0.50002])
        assert exceeds_tolerance(one, other).tolist() == [False, False, False, False, False, True, True]
        assert exceeds_tolerance(np.int32([1, 2**20]), np.int32([1, 2**20 + 1])).tolist() == [False, True]
        assert differs_in_bits(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0])).tolist() == [True, False]
        (difference,) = differences({"a": one}, {"a": one.astype(np.float64)})
        assert difference == ("a", (), "float32[7]", "float64[7]")
        assert differences({"a": one}, {"b": one})[0].name == "names of the results"


class TestProcesses:
    def test_the_simulator_runs_in_a_separate_process(self, write_module):
        name, sim = write_module(DRIFT), targets.SIMULATOR
        comparison_job = ComparisonJob(
            f"{name}:tests/{name}-v0", sim.name, sim.options, sim.variables, 2, 1, 2, modes=("SameStep",)
        )
        assert target_comparison.compare_in_processes(comparison_job) == ComparisonReport(num_results=6)

    def test_a_process_that_aborts_is_reported(self, write_module):
        name = write_module(DRIFT)
        dying = write_module("import os, sys\nprint('no such address', file=sys.stderr, flush=True)\nos.abort()\n")
        result = target_comparison.compare_in_processes(job(name, dying))
        place = "NextStep, before the first reset"
        assert result.difference == f"{place}: the process of the target ended with signal SIGABRT\nno such address"

    def test_a_call_that_does_not_return_is_reported(self, write_module):
        right, endless = (
            write_module(DRIFT),
            write_module(DRIFT, "    v = 0.9", "    while s.turns == 2:\n        push = 0.0\n    v = 0.9"),
        )
        result = target_comparison.compare_in_processes(job(right, endless)._replace(time_limit=0.5))
        limit = "a call on cpu or on wrong does not return within 0.5 s of CPU time"
        assert result.difference == f"NextStep, in step 3: {limit}; if it is only slow, raise --time-limit"

    def test_modes_that_are_not_compared_in_time_are_reported(self, write_module, monkeypatch):
        """The clock of the test ends the time in the second mode, after its second episode and before the third ends."""
        name = write_module(DRIFT)
        in_time = job(name, name)._replace(modes=target_comparison.AUTORESET_MODES, episodes=3, compare_seconds=10.0)
        first_mode, second_mode = 3 * (1 + 5 + 1 + 5 + 1 + 5), 3 * (1 + 5 + 5)
        calls = []
        monkeypatch.setattr(
            target_comparison.time, "monotonic", lambda: float(len(calls) >= (first_mode + second_mode) // 3) * 10.0
        )
        result = compare(in_time, lambda place, is_first: calls.append(place) if "before" not in place else None)
        assert result == ComparisonReport(
            num_results=first_mode + second_mode, unfinished="SameStep after 2 of 3 episodes, Disabled"
        )

    def test_processes_share_their_time(self, write_module):
        name = write_module(DRIFT)
        late = job(name, name)._replace(modes=("NextStep", "Disabled"), compare_seconds=1e-9)
        assert target_comparison.compare_in_processes(late, num_processes=2) == ComparisonReport(
            unfinished="NextStep, Disabled"
        )

    def test_an_error_in_the_process_is_reported(self, write_module, tmp_path):
        name = write_module(DRIFT)
        report = target_comparison.run_job(None, tmp_path, job(name, name, pusch=1.0))
        difference = json.loads(report)["difference"]
        assert difference.startswith("UnknownParameterError: unknown parameter 'pusch'; did you mean 'push'?")


class TestCheckCommand:
    @pytest.fixture
    def right(self, write_module):
        return write_module(DRIFT)

    def test_a_failure_prints_a_script_that_reproduces_it(self, right, write_module, monkeypatch, capfd):
        """The test adds a faulty target to the table of targets."""
        wrong = write_module(DRIFT, "turns >= p", "turns > p")
        entry = targets.CPU._replace(name="faulty", options={**CPU_OPTIONS, "env": f"{wrong}:ENV"})
        monkeypatch.setitem(targets.TARGETS, "faulty", entry)
        monkeypatch.setattr("gpuvec.testing.environment_check.check_env", lambda *args, **kwargs: [])
        arguments = [
            "check",
            f"{right}:tests/{right}-v0",
            "--targets",
            "cpu,faulty",
            "--num-envs",
            "5",
            "--params",
            "horizon",
            "3",
        ]
        assert main(arguments) == 1
        printed, _, script = capfd.readouterr().out.partition("To reproduce it:\n")
        place = "NextStep, in step 3: environment 0, terminated is True on cpu and False on faulty"
        assert printed.splitlines()[-1] == f"faulty       FAIL  {place}"
        command = [sys.executable, "-c", textwrap.dedent(script)]
        monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        assert process.stdout.split() == ["True", "False"]

    def test_a_comparison_that_does_not_end_in_its_time_is_no_success(self, right, monkeypatch, capsys):
        monkeypatch.setattr("gpuvec.testing.environment_check.check_env", lambda *args, **kwargs: [])
        monkeypatch.setitem(targets.TARGETS, "same", targets.CPU._replace(name="same"))
        arguments = ["check", f"{right}:tests/{right}-v0", "--targets", "same", "--compare-seconds", "1e-9"]
        assert main(arguments) == 2
        printed = capsys.readouterr().out.splitlines()
        modes = ", ".join(target_comparison.AUTORESET_MODES)
        assert printed[-2].startswith(f"same         NOT FINISHED within 1e-09 s: {modes}; raise --compare-seconds, or lower ")
        assert printed[-1].startswith("             so far 0 results of 4096 environments in 3 autoreset modes")

    @pytest.mark.parametrize(
        ("source", "old", "new", "message"),
        [
            (DRIFT, "1.0 - abs(x)", "1.0 - math.pi * abs(x)", "makes a float64; only names of the module are read"),
            (DRIFT, "key, 1, -0.1", "key, 0, -0.1", "draw number 0 is used twice"),
            (RING, "s.last[(i + 1)", "s.x[(i + 1)", r"phase `move` reads x\[1\] for agent 0, and writes x too"),
            (RING, "    s.gained[i] = 0.0\n", "", r"reset leaves gained\[0\] as the last episode left it"),
        ],
        ids=["float64", "draw", "missing barrier", "forgotten field"],
    )
    def test_a_broken_rule_fails_before_targets_are_compared(
        self, write_module, capsys, monkeypatch, source, old, new, message
    ):
        monkeypatch.setattr(target_comparison, "compare_in_processes", lambda job: pytest.fail("nothing to compare"))
        name = write_module(source, old, new)
        assert main(["check", f"{name}:tests/{name}-v0"]) == 1
        assert re.search(rf"rules        FAIL  .*{message}", capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["Cartpol-v1"], "did you mean gpuvec/CartPole-v1?"),
            (["Blackjack-v1"], "Blackjack-v1 is an environment of Gymnasium, not of gpuvec"),
            (["nowhere:a/B-v0"], "there is no module 'nowhere'"),
            (
                ["CartPole-v1", "--targets", "cuda,sim"],
                "unknown target cuda; the targets are cpu, cuda-c-cpu, sim, numba, cuda-c.",
            ),
            (
                ["CartPole-v1", "--targets", "cpu"],
                "cpu is what the other targets are compared with; add at least one of cuda-c-cpu, sim, numba, cuda-c.",
            ),
            (["CartPole-v1", "--params", "grvity", "3"], "did you mean 'gravity'?"),
            (["CartPole-v1", "--params", "dt", "-1.0"], "dt is -1.0; it must be greater than 0"),
            (["CartPole-v1", "--episodes", "0"], "episodes must be at least 1, got 0."),
            (["CartPole-v1", "--num-envs", "-2"], "num_envs must be at least 1, got -2."),
            (["CartPole-v1", "--compare-seconds", "0"], "compare_seconds must be greater than 0, got 0.0."),
            (["CartPole-v1", "--seed", "-1"], "seed must be from 0 to 2**64 - 1, got -1."),
        ],
    )
    def test_invalid_arguments_are_explained(self, capsys, arguments, message):
        assert main(["check", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("gpuvec check: ")
        assert message in error

    def test_unavailable_targets_are_reported_with_a_reason(self, monkeypatch, capsys):
        def missing(name):
            raise DeviceError("no usable CUDA driver")

        monkeypatch.setattr(targets, "parse_device", missing)
        monkeypatch.setenv("CXX", sys.executable)
        reasons = dict.fromkeys(("numba", "cuda-c"), "no usable CUDA driver")
        selected, left_out = targets.select_targets([], load_env("gpuvec_envs.cartpole:ENV"))
        assert ([b.name for b in selected], left_out) == (["cuda-c-cpu", "sim"], reasons)
        _, left_out = targets.select_targets([], dataclasses.replace(load_env("gpuvec_envs.cartpole:ENV"), cuda_c=None))
        assert "has no functions in CUDA C++" in left_out["cuda-c"]
        assert main(["check", "CartPole-v1", "--targets", "sim,numba"]) == 2
        assert capsys.readouterr().err == "gpuvec check: target 'numba' is not available: no usable CUDA driver\n"


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_a_gpu_agrees_with_the_cpu(gpu, name):
    env = BUNDLED_ENVS[name]
    agents = env.agents(env.params) if isinstance(env, MultiAgentEnv) else 1
    comparison_job = ComparisonJob(f"gpuvec/{name}", "numba", targets.GPU.options, {}, 1024 // agents, 3, 60)
    assert compare(comparison_job).difference == ""
