"""CUDA does not survive a fork: a typed error says so, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

FORKS = """
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
    signal.alarm(600)  # a guard against a child that hangs
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
def test_use_in_a_forked_process_is_a_typed_error(use: str) -> None:
    # The warning that a process with threads was forked is Python's own, and beside the point here.
    command = [sys.executable, "-W", "ignore", "-c", FORKS, use]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "spawn" in found.stdout
