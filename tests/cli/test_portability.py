"""Tests that gpuvec works on the CPU where modules and calls of POSIX and of Linux are missing, as on macOS and on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What Windows lacks. `os.fork` and others are used by the standard library and torch themselves, which know of both systems.
PROGRAM = """
import importlib.util, os, pkgutil, signal, sys
import cloudpickle, gymnasium, numba, numpy, torch, torch.distributed  # which are not under test

MISSING = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "numba_cuda", "numba.cuda"}

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Finder())
for name in "O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_DIRECTORY geteuid sched_getaffinity nice sysconf killpg getpgid".split():
    delattr(os, name)
os.supports_dir_fd = set()
del signal.SIGXCPU
"""


def run_without_posix(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", PROGRAM + code]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_an_environment_steps_and_ppo_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import gpuvec
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4, output="numpy")
envs.reset(seed=0)
assert (envs.step(envs.action_space.sample())[1] == 1).all()
from gpuvec.learners.ppo import PPOArgs, train
result = train(PPOArgs(env="gpuvec/CartPole-v1", device="cpu", num_envs=8, num_iterations=2))
assert all(torch.isfinite(parameter).all() for parameter in result.network.parameters())
print("trained")
"""
    done = run_without_posix(code, tmp_path)
    assert done.stdout == "trained\n", done.stderr


def test_modules_of_the_cpu_are_imported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    modules = (
        *("gpuvec.cli", "gpuvec.doctor", "gpuvec.learners.runs.run_writer", "gpuvec.learners.deferred_signals"),
        *("gpuvec.testing.worker_process", "gpuvec.testing.target_check.target_comparison", "gpuvec.replay.live.server"),
        *("gpuvec.engine.backends.cache.store", "gpuvec.engine.backends.host_memory", "gpuvec.learners.population"),
    )
    done = run_without_posix(f"import {', '.join(modules)}", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_run_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
from gpuvec.learners.runs.folder import RunFolder
try:
    RunFolder(".")
except OSError as error:
    print(error)
"""
    done = run_without_posix(code, tmp_path)
    assert "need Linux or macOS" in done.stdout, done.stderr
    assert "On Windows use WSL, or train in Python without run_folder=." in done.stdout
    assert not done.stderr


def test_a_limit_of_cpu_time_warns_where_there_is_none(tmp_path: Path) -> None:
    code = """
import math, warnings
from gpuvec.testing.worker_process import allow_cpu_time
allow_cpu_time(math.inf)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    allow_cpu_time(5.0)
print(caught[0].message)
"""
    done = run_without_posix(code, tmp_path)
    assert done.stdout == "this system has no limit of CPU time: end a call that does not return yourself.\n", done.stderr
