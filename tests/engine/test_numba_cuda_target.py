"""The target of numba-cuda for kernels of this package, which changes nothing for kernels of other packages."""

import os
import subprocess
import sys

import pytest

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.functions import inline_function

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]

OTHER_PACKAGE = """
import re, sys, types
import numpy as np
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # numba-cuda 0.30 reads the name
from numba import cuda, njit
from numba.cuda import compiler, descriptor, dispatcher  # noqa: F401

TABLE = np.arange(4096, dtype=np.float32)

def compile_kernel():
    def kernel(x):
        for k in range(3):
            x[k] = max(x[k], np.float32(2)) * TABLE[int(x[k]) + k]
    device = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))  # no GPU is needed
    try:
        ptx, _ = cuda.compile(kernel, "void(float32[::1])", cc=(9, 0), device=False, abi="numba")
    finally:
        dispatcher.get_current_device = device
    return re.sub(r"B\\d+v\\d+|v\\d+B", "", ptx)

def list_functions():
    functions = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("numba", "numba_cuda", "llvmlite", "numpy"):
            for attribute, value in list(vars(module).items()):
                if callable(value):
                    functions[name, attribute] = value
                if isinstance(value, type):
                    members = ((member, vars(value)[member]) for member in list(vars(value)))
                    kinds = types.FunctionType, property, classmethod, staticmethod
                    functions |= {(name, attribute, m): v for m, v in members if isinstance(v, kinds)}
    return functions

code, functions = compile_kernel(), list_functions()
assert ".const" in code and "large_table" not in code
import gpuvec
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.functions import inline_function
from numba.cuda import types as kinds

@inline_function
def clip(x):
    return max(x, 0) + min(x, 3)

def kernel(x):
    clip(x)

assert ".entry" in numba_cuda.compile_kernel(kernel, kinds.void(kinds.int64), (9, 0), "ptx")
after = list_functions()
print(sorted(key for key, function in functions.items() if after.get(key) is not function))
print(compile_kernel() == code)
"""


def test_kernels_of_other_packages_stay_the_same():
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", OTHER_PACKAGE], capture_output=True, text=True, check=False)
    assert process.stdout == "[]\nTrue\n", process.stdout + process.stderr


SIMULATOR = """
import sys, types
import numpy as np
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # numba-cuda 0.30 reads the name
from numba import cuda
from numba.cuda.simulator import kernel, kernelapi  # noqa: F401

def list_functions():
    modules = [module for name, module in sys.modules.items() if name.startswith("numba")]
    classes = [value for module in modules for value in list(vars(module).values()) if isinstance(value, type)]
    return {(owner, name): value for owner in (*modules, *classes) for name, value in list(vars(owner).items())
            if isinstance(value, types.FunctionType)}

functions = list_functions()
import gpuvec
from gpuvec.vector.env import VectorEnv
from gpuvec_envs.tag_grid_world import ENV

envs = VectorEnv(ENV, 1, device="simulator", output="numpy")
envs.reset(seed=0)
after = list_functions()
print(sorted(name for (owner, name), function in functions.items() if after.get((owner, name)) is not function))
"""


def test_the_simulator_of_other_packages_stays_the_same():
    """A reset in it allocates arrays in shared memory."""
    command, variables = [sys.executable, "-W", "ignore", "-c", SIMULATOR], os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert process.stdout == "[]\n", process.stdout + process.stderr


def compile_device(function):
    return numba_cuda.compile_extern_c(function, "int32", "f", (9, 0))


def test_each_module_is_passed_once(monkeypatch):
    from numba.cuda.cudadrv import nvvm

    modules, compile_ir = [], nvvm.compile_ir
    monkeypatch.setattr(nvvm, "compile_ir", lambda texts, **options: modules.extend(texts) or compile_ir(texts, **options))

    @inline_function
    def shared(x):
        return x * x

    @inline_function
    def left(x):
        return shared(x) + 1

    @inline_function
    def right(x):
        return shared(x) - 1

    def both(x):
        return left(x) * right(x)

    assert compile_device(numba_cuda.cuda.jit(device=True)(both))
    definitions = [line for module in modules for line in module.splitlines() if line.startswith("define")]
    assert len(modules) == 4
    assert sum("shared" in line for line in definitions) == 1


def test_literals_of_a_type_share_a_version():
    from gpuvec.engine.backends.cuda.numba_cuda_target import gpu_dispatcher

    @inline_function
    def scaled(x, factor):
        return x * factor

    def caller(x):
        return scaled(x, 3) + scaled(x, 4) + scaled(x, 5.0)

    assert compile_device(caller)
    assert len(gpu_dispatcher(scaled).overloads) == 2


def test_signatures_are_inferred_once():
    import operator

    from gpuvec.engine.backends.cuda.numba_cuda_target import GpuDispatcher

    context = GpuDispatcher.targetdescr.typing_context
    context.refresh()
    assert type(context.resolve_value_type(operator.add)).__module__.startswith("gpuvec.")
