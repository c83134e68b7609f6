"""NumPy 2.5 removed `row_stack`, which numba-cuda 0.30 still reads; the workaround is tested with any NumPy.

Each test runs in a separate process, which first deletes the name if NumPy has it.
"""

import os
import subprocess
import sys

import pytest

from gpuvec.engine.backends.cuda import numba_cuda

WITHOUT_ROW_STACK = """
import numpy as np
if hasattr(np, "row_stack"):
    del np.row_stack
    np.__all__ = [name for name in np.__all__ if name != "row_stack"]
assert not hasattr(np, "row_stack")
"""

COMPILE = """
import re
from gymnasium.vector import AutoresetMode
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda import kernels
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec_envs.cartpole import ENV

assert not hasattr(np, "row_stack"), "the workaround must remove the name again"
spec = make_kernel_spec(ENV, KernelOptions(AutoresetMode.SAME_STEP, 500))
for kernel in (*kernels.make_kernels(spec, None, "reset"), *kernels.make_kernels(spec, None, "step")):
    assert kernel.binary((9, 0)).code[:4] == b"\\x7fELF"
assert not hasattr(np, "row_stack")
print("compiled")
"""

SIMULATE = """
from gpuvec.engine.backends.cuda.numba_cuda import cuda

assert not hasattr(np, "row_stack"), "the workaround must remove the name again"

@cuda.jit
def kernel(x):
    x[cuda.threadIdx.x] += cuda.threadIdx.x

x = np.ones(4, np.int32)
kernel[1, 4](x)
assert x.tolist() == [1, 2, 3, 4]
print("simulated")
"""


def run(script, warnings="error", **environment):
    """The process of a script after `row_stack` is deleted."""
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", WITHOUT_ROW_STACK + script],
        env={k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.compile
def test_kernels_compile_without_row_stack():
    process = run(COMPILE)
    assert process.stdout == "compiled\n", process.stderr


def test_simulator_runs_without_row_stack():
    process = run(SIMULATE, NUMBA_ENABLE_CUDASIM="1")
    assert process.stdout == "simulated\n", process.stderr


@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator does not read the name")
def test_numba_cuda_without_the_workaround_fails():
    """If this test fails, `_import_cuda` no longer needs the workaround."""
    process = run("import numba.cuda.np.arrayobj", warnings="ignore")
    assert "AttributeError" in process.stderr
    assert "row_stack" in process.stderr
