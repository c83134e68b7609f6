"""CUDA cannot be used after a fork: use in a forked process raises `ForkError`, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

FORK_PROGRAM = """
import os, signal, sys
import gymnasium, torch
import gpuvec
from gpuvec.errors import ForkError, GpuvecError

env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=64, device="cuda")
env.reset(seed=0)
actions = torch.zeros(64, dtype=torch.int64, device="cuda")
env.step(actions)
torch.cuda.synchronize()
uses = {
    "step": lambda: env.step(actions),
    "reset": lambda: env.reset(seed=1),
    "get_state": lambda: env.get_state(),
    "make_vec": lambda: gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4, device="cuda"),
}
child = os.fork()
if child == 0:
    signal.alarm(600)  # ends a child that hangs
    try:
        uses[sys.argv[1]]()
    except ForkError as error:
        print(error, flush=True)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)
    os._exit(4)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, f"child ended with {os.waitstatus_to_exitcode(status)} (-14: it hung)"
env.step(actions)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("use", ["step", "reset", "get_state", "make_vec"])
def test_use_in_a_forked_process_raises_fork_error(use: str) -> None:
    # Python warns that a process with threads was forked, which this test does on purpose.
    command = [sys.executable, "-W", "ignore", "-c", FORK_PROGRAM, use]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "spawn" in process.stdout
