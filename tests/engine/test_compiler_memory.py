"""A process that compiles an environment again and again does not grow by all that the compiler made."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuvec.engine.backends.cuda import numba_cuda

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
for k in range(3):
    compile_again(k)
before = allocated()
for k in range(3, 6):
    compile_again(k)
print((allocated() - before) // 3)
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


GPU = """
from gymnasium.vector import AutoresetMode
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.registration import load_env
from gpuvec.vector.env_params import apply_params

GAME = load_env("gpuvec_envs.{module}:ENV")

def compile_again(k):
    env, _ = apply_params(GAME, {{"{name}": {first} + k / 64}}, (), 1)
    with numba_cuda.offline((9, 0)):
        for played in (False, True):
            for kernel in make_kernels(env, KernelOptions(AutoresetMode.SAME_STEP, 100), make_launch_config(env, 2000), played):
                kernel.cubin((9, 0))
"""


def growth(setup: str) -> float:
    """MiB that the process keeps for each further compilation."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(setup=setup)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / MEBIBYTE


@pytest.mark.first_variants(1)
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much is allocated")
@pytest.mark.parametrize(
    ("id", "name", "first", "settings"),
    [
        ("CartPole-v1", "gravity", 9.0, ""),
        ("TagContinuous-v0", "max_speed", 1.0, "num_runners=4"),
    ],
)
def test_each_value_of_set_attr(id: str, name: str, first: float, settings: str) -> None:
    assert growth(HOST.format(id=f"gpuvec/{id}", name=name, first=first, settings=settings)) < 1


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much is allocated")
@pytest.mark.parametrize(("module", "name", "first"), [("cartpole", "gravity", 9.0), ("tag_continuous", "max_speed", 1.0)])
def test_each_kernel_for_a_gpu(module: str, name: str, first: float) -> None:
    assert growth(GPU.format(module=module, name=name, first=first)) < 1
