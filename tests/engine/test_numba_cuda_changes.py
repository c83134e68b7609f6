"""Changes of numba-cuda: a module is passed to NVVM once, and code is the same without unused lifetimes of variables."""

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


def test_code_does_not_depend_on_unused_lifetimes(monkeypatch):
    from numba.cuda.core.postproc import PostProcessor

    def collatz(x):
        steps, limit = 0, None
        while x > 1:
            if x % 2 == 0:
                x //= 2
                continue
            x, steps = 3 * x + 1, steps + 1 if limit is None else limit
        return steps

    def compile_ptx():
        options = {"device": True, "abi_info": {"abi_name": "collatz"}, "output": "ptx", "cc": (9, 0)}
        return numba_cuda.cuda.compile(collatz, "int32(int32)", **options)[0]

    code = compile_ptx()
    monkeypatch.setattr(PostProcessor, "run", PostProcessor.run.__wrapped__)
    assert "collatz" in code
    assert compile_ptx() == code
