"""A process that compiles an environment repeatedly releases the memory of the compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuvec.engine.backends.cuda import numba_cuda

MEBIBYTE = 2**20
# A process without cached machine code prints how many bytes a further compilation allocates. The count comes from malloc,
# since the resident size of the process also includes freed memory and shared pages.
PROGRAM = """
import ctypes, gc, os, sys
os.environ["GPUVEC_CACHE"] = "off"

class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used free f".split()]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Allocated

def allocated():
    while gc.collect():  # A finaliser releases objects that only the next collection frees.
        pass
    info = libc.mallinfo2()
    return info.used + info.mapped

{setup}
for k in range(2):
    compile_again(k)
before = allocated()
for k in range(2, 3):
    compile_again(k)
print(allocated() - before)
"""

CPU_SETUP = """
import gymnasium as gym
import gpuvec

envs = gym.make_vec("gpuvec/CartPole-v1", 4, device="cpu", output="numpy")
envs.action_space.seed(0)

def compile_again(k):
    envs.set_attr("gravity", 9 + k / 64)
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
"""


GPU_SETUP = """
from gymnasium.vector import AutoresetMode
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.registration import load_env
from gpuvec.vector.env_params import apply_params

ENV = load_env("gpuvec_envs.tag_grid_world:ENV")

def compile_again(k):
    env, _ = apply_params(ENV, {"wall_hit_penalty": 1 + k / 64}, (), 1)
    spec = make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, 100))
    for kernel in make_kernels(spec, make_launch_config(spec.schema, 2000), "step"):
        kernel.cubin((9, 0))
"""


def memory_growth(setup: str) -> float:
    """MiB that the process allocates for a third compilation."""
    process = subprocess.run([sys.executable, "-c", PROGRAM.format(setup=setup)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return int(process.stdout) / MEBIBYTE


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much is allocated")
def test_set_attr_keeps_less_than_1_mib_per_value() -> None:
    assert memory_growth(CPU_SETUP) < 1


@pytest.mark.slow  # the test above has the loops of a CPU
@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much is allocated")
def test_gpu_kernels_keep_less_than_1_mib_per_value() -> None:
    """These are kernels of a multi-agent environment; those above are loops over environments with one agent."""
    assert memory_growth(GPU_SETUP) < 1
