"""A function that several others call is passed to NVVM once."""

import pytest

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.functions import inline_function

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]


def test_each_module_is_passed_once(monkeypatch):
    from numba.cuda.cudadrv import nvvm

    passed_modules, compile_ir = [], nvvm.compile_ir

    def record(modules, **options):
        passed_modules.extend(modules)
        return compile_ir(modules, **options)

    monkeypatch.setattr(nvvm, "compile_ir", record)

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

    with numba_cuda.offline((9, 0)):
        numba_cuda.compile_extern_c(numba_cuda.cuda.jit(device=True)(both), "int32", "both", (9, 0))
    definitions = [line for module in passed_modules for line in module.splitlines() if line.startswith("define")]
    assert len(passed_modules) == 4
    assert sum("shared" in line for line in definitions) == 1
