"""A process that compiles an environment again and again does not grow by all that the compiler made."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEBIBYTE = 2**20
# Each in a process of its own, without machine code on disk: what is allocated for each of some values, once the first are
# compiled. malloc's own count is asked, as the system's leaves out what is free and includes what others share.
PROGRAM = """
import ctypes, gc, os, sys
os.environ["GPUVEC_CACHE"] = "off"

class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used free f".split()]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Allocated

def allocated():
    while gc.collect():  # what a finaliser lets go is found by the next collection
        pass
    found = libc.mallinfo2()
    return found.used + found.mapped

{setup}
for k in range(2):
    compile_again(k)
before = allocated()
for k in range(2, 6):
    compile_again(k)
print((allocated() - before) // 4)
"""

HOST = """
import gymnasium as gym
import gpuvec

envs = gym.make_vec("{id}", 4, device="cpu", output="numpy", {settings})
envs.action_space.seed(0)

def compile_again(k):
    envs.set_attr("{name}", {first} + k / 64)
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
"""


def growth(setup: str) -> float:
    """MiB that the process keeps for each further compilation."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(setup=setup)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / MEBIBYTE


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much is allocated")
@pytest.mark.parametrize(
    ("id", "name", "first", "settings", "limit"),
    [("gpuvec/CartPole-v1", "gravity", 9.0, "", 1), ("gpuvec/Pendulum-v1", "g", 9.0, "", 1)],
)
def test_each_value_of_set_attr(id: str, name: str, first: float, settings: str, limit: float) -> None:
    assert growth(HOST.format(id=id, name=name, first=first, settings=settings)) < limit
