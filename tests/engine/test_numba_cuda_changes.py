"""Changes of numba-cuda: a module is passed to NVVM once, and code is the same without what inlined functions do not need."""

import re
import subprocess
import sys
from functools import partial, wraps
from importlib.util import find_spec
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.compiled_functions import verified_modules
from gpuvec.engine.compiler import functions
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.pass_pipeline import has_loops

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]


@pytest.fixture
def passed_modules(monkeypatch):
    """The LLVM modules that are passed to NVVM."""
    from numba.cuda.cudadrv import nvvm

    modules, compile_ir = [], nvvm.compile_ir

    def record(texts, **options):
        modules.extend(texts)
        return compile_ir(texts, **options)

    monkeypatch.setattr(nvvm, "compile_ir", record)
    return modules


def definition(modules, name):
    """The line that defines a function."""
    (line,) = (line for module in modules for line in module.splitlines() if re.match(rf"define .*@\S*{name}", line))
    return line


def test_each_module_is_passed_once(passed_modules):
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


def without_loops(x):
    total = 3
    if x > 2:
        total = x * 5
    elif x < 0:
        return total
    return total + x


def test_loops_alone_are_rewritten():
    from numba.cuda.core.transforms import canonicalize_cfg

    blocks = interpret(without_loops).blocks
    assert len(blocks) > 3
    assert not has_loops(blocks)
    assert canonicalize_cfg(blocks) == blocks


def test_pipelines_are_analyzed_once():
    from numba.cuda.compiler import DefaultPassBuilder

    def make_manager(no_rewrites):
        flags = SimpleNamespace(no_rewrites=no_rewrites, enable_ssa=True)
        return DefaultPassBuilder.define_untyped_pipeline(SimpleNamespace(func_ir=None, flags=flags))

    managers = [make_manager(no_rewrites) for no_rewrites in (False, True, False)]
    analyze = type(managers[0]).dependency_analysis
    assert [manager._analysis for manager in managers] == [analyze.__wrapped__(manager) for manager in managers]
    assert managers[0]._analysis is managers[2]._analysis
    assert managers[0]._analysis != managers[1]._analysis


def test_options_in_symbols_are_those_of_numba(monkeypatch):
    from numba.cuda.core import targetconfig
    from numba.cuda.flags import CUDAFlags

    def make_flags(**options):
        flags = CUDAFlags()
        for name, value in options.items():
            setattr(flags, name, value)
        return flags

    options = ({}, {"nvvm_options": {"opt": 3}}, {"nvvm_options": {"opt": 0}}, {"forceinline": True})
    name = CUDAFlags.get_mangle_string
    expected = [name.__wrapped__(make_flags(**values)) for values in options]
    assert [make_flags(**values).get_mangle_string() for values in options] == expected
    assert len(set(expected)) == 4
    monkeypatch.setattr(targetconfig, "zlib", None)
    assert [make_flags(**values).get_mangle_string() for values in options] == expected


def test_code_does_not_depend_on_which_blocks_are_read_for_a_variable(monkeypatch):
    from numba.cuda.core import ssa

    def mixed(x):
        total, step = 0, 1
        while x > 0:
            if x % 3 == 0:
                step = total + 1
                for k in range(x):
                    total = total + k * step
            elif x % 3 == 1:
                last = total
                total = step - total
            x = x - 1
        return total if x == 0 else last

    code = compile_function(mixed)
    rewritten, rewrite = [], ssa._run_ssa.__wrapped__
    monkeypatch.setattr(ssa, "_run_ssa", lambda blocks: rewritten.append(len(blocks)) or rewrite(blocks))
    assert compile_function(mixed) == code
    assert rewritten


def interpret(function):
    """The statements that Numba makes of the code of a function."""
    from numba.cuda.core import bytecode, interpreter

    identity = bytecode.FunctionIdentity.from_function(function)
    return interpreter.Interpreter(identity).interpret(bytecode.ByteCode(identity))


def with_statement(x):
    with x:
        return 1


def with_dictionary(x):
    numbers = {"a": x}
    return {"b": x, **numbers}


@pytest.mark.parametrize(
    ("function", "step", "is_needed"),
    [
        (with_statement, "peep_hole_delete_with_exit", True),
        (with_dictionary, "peep_hole_delete_with_exit", False),
        (with_statement, "peep_hole_fuse_dict_add_updates", False),
        (with_dictionary, "peep_hole_fuse_dict_add_updates", True),
    ],
)
def test_steps_are_left_out_for_functions_that_do_not_need_them(monkeypatch, function, step, is_needed):
    from numba.cuda.core import interpreter

    limited = getattr(interpreter, step)
    code = interpret(function).dump_to_string()
    monkeypatch.setattr(interpreter, step, limited.__wrapped__)
    assert interpret(function).dump_to_string() == code
    monkeypatch.setattr(interpreter, step, lambda code: code)
    assert (interpret(function).dump_to_string() != code) == is_needed


def with_array_of_list(x):
    return np.array([1, 2, x])


def with_array_of_tuple(x):
    return np.array((1, 2, x))


@pytest.mark.parametrize(("function", "num_searched"), [(with_array_of_list, 1), (with_array_of_tuple, 0)])
def test_arrays_of_lists_are_searched_in_blocks_with_lists(monkeypatch, function, num_searched):
    from numba.cuda.core import inline_closurecall

    searched = []
    monkeypatch.setattr(inline_closurecall, "_inline_const_arraycall", lambda block, *args: searched.append(block) or block)
    code = interpret(function)
    rewrite = inline_closurecall.RewriteArrayOfConsts(SimpleNamespace(typingctx=None))
    assert [rewrite.match(code, block, {}, {"call": "type"}) for block in code.blocks.values()] == [bool(num_searched)]
    assert len(searched) == num_searched


@pytest.mark.parametrize(
    ("line", "is_replaced"),
    [
        ('declare float @"___numba_atomic_float_max"(float* %".1", float %".2")', True),
        ("declare void @f(i32 immarg)", True),
        ("attributes #0 = { nounwind willreturn }", True),
        ("declare void @f(i32)", False),
    ],
)
def test_text_is_replaced_in_modules_that_need_it(line, is_replaced):
    from numba.cuda.cudadrv import nvvm

    module = f'target triple = "nvptx64-nvidia-cuda"\n{line}'
    assert nvvm.llvm_replace(module) == nvvm.llvm_replace.__wrapped__(module)
    assert (nvvm.llvm_replace(module) != module) == is_replaced


class Walker(NamedTuple):
    """Members of several types."""

    position: float
    steps: int
    active: bool
    goal: tuple[float, float]
    notes: tuple[()]


def make_walk(decorate):
    """A function that passes and returns tuples, by functions that `decorate` makes."""

    @decorate
    def move(walker, limits):
        x = max(limits[0], min(limits[1], walker.position + np.float32(0.5)))
        return Walker(x, walker.steps + 1, walker.active and x < limits[1], walker.goal, ())

    @decorate
    def distance(walker, start, weights):
        return abs(walker.goal[0] - walker.position) * weights[0] + abs(walker.goal[1] - start) * weights[1]

    def walk(steps):
        walker = Walker(np.float32(0), 0, steps > 2, (np.float32(3), np.float32(4)), ())
        while walker.steps < steps and walker.active:
            walker = move(walker, (np.float32(-1), np.float32(1.5)))
        return np.int32(distance(walker, walker.position, (np.float32(1), np.float32(2)))) + np.int32(walker.steps)

    return walk


def compile_walk(decorate):
    """The PTX of a function that calls both, without the objects that Numba declares for Python's exceptions."""
    options = {"device": True, "abi": "c", "abi_info": {"abi_name": "walk"}, "output": "ptx", "cc": (9, 0)}
    ptx = numba_cuda.cuda.compile(make_walk(decorate), "int32(int32)", **options)[0]
    return [line for line in ptx.splitlines() if "NumbaEnv" not in line]


def test_code_does_not_depend_on_how_tuples_are_passed(monkeypatch):
    from numba.cuda.compiler import CUDANativeLowering

    code = compile_walk(inline_function)
    monkeypatch.setattr(CUDANativeLowering, "run_pass", CUDANativeLowering.run_pass.__wrapped__)
    monkeypatch.setattr(functions, "_equal_functions", {})  # so that they are compiled again
    assert any("walk" in line for line in code)
    assert compile_walk(inline_function) == code


def test_tuples_without_flags_are_passed_whole_to_inlined_functions_alone(passed_modules):
    compile_walk(inline_function)
    for name, arguments in (("move", r'\[2 x float\] %"\.7"\)'), ("distance", r'float %"\.7", \[2 x float\] %"\.8"\)')):
        assert re.search(arguments, definition(passed_modules, name))
    passed_modules.clear()
    compile_walk(numba_cuda.cuda.jit(device=True))
    assert "[2 x float] %" not in definition(passed_modules, "move") + definition(passed_modules, "distance")


def test_compilation_does_not_import_linear_algebra():
    program = """
import sys
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.compiled_functions import verified_modules
from numba.cuda import types
from numba.cuda.np import arraymath, linalg
def kernel(x):
    pass
numba_cuda.compile_kernel(kernel, types.void(types.int64), (9, 0), "ltoir")
print("scipy.linalg" in sys.modules, arraymath._HAVE_BLAS, arraymath.ensure_blas is linalg.ensure_blas)
linalg.ensure_blas()
print("scipy.linalg" in sys.modules)
"""
    assert find_spec("scipy") is not None, "the test needs SciPy"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert output == ["False", "True", "True", "True"]


def compile_function(function):
    options = {"device": True, "abi_info": {"abi_name": "f"}, "output": "ptx", "cc": (9, 0)}
    return numba_cuda.cuda.compile(function, "int32(int32)", **options)[0]


def test_registries_are_read_again_after_additions_alone(monkeypatch):
    from numba.cuda.extending import intrinsic
    from numba.cuda.target import CUDATargetContext, CUDATypingContext

    def negative(x):
        return -x

    compile_function(negative)
    compile_function(negative)  # reads what was registered while the registries were read
    reads = []
    for context in (CUDATargetContext, CUDATypingContext):
        load = context.load_additional_registries
        monkeypatch.setattr(context, "load_additional_registries", lambda self, load=load: (reads.append(self), load(self)))
    compile_function(negative)
    assert not reads

    @intrinsic
    def twice(typingctx, x):
        return x(x), lambda context, builder, sig, args: builder.add(args[0], args[0])

    def doubled(x):
        return twice(x)

    assert "f" in compile_function(doubled)
    assert reads


# A value that is defined in one of the two blocks before its use.
UNDEFINED_VALUE = """target triple = "nvptx64-nvidia-cuda"
target datalayout = "LAYOUT"
define void @f(i32 %x) {
entry:
  %c = icmp eq i32 %x, 1
  br i1 %c, label %one, label %end
one:
  %y = add i32 %x, 1
  br label %end
end:
  %z = add i32 %y, 1
  %p = inttoptr i32 %z to i32*
  store i32 %z, i32* %p
  ret void
}
!nvvmir.version = !{!0}
!0 = !{i32 2, i32 0, i32 3, i32 1}
"""


def test_modules_are_verified_on_request():
    from numba.cuda.cudadrv import nvvm

    module = UNDEFINED_VALUE.replace("LAYOUT", nvvm.NVVM().data_layout)
    assert nvvm.compile_ir(module, arch="compute_90")
    with verified_modules(), pytest.raises(nvvm.nvvmError, match="INVALID_IR"):
        nvvm.compile_ir(module, arch="compute_90")
    with pytest.raises(nvvm.nvvmError, match="INVALID_IR"):
        nvvm.compile_ir(module, arch="compute_90", g=None, opt=0)
    with pytest.raises(nvvm.nvvmError, match="COMPILATION"):
        nvvm.compile_ir(module.replace("add i32 %y", "fadd i32 %y"), arch="compute_90")


def accepts_location(context, loc=None):
    """An implementation that takes a location."""


def requires_location(context, *, loc):
    """An implementation that takes a location by name."""


def sets_local_variable(context):
    """An implementation with a variable of that name, which is no argument."""
    for loc in context:
        print(loc)


def test_location_arguments_are_those_of_the_signature():
    from numba.cuda.core import base

    wrapped = wraps(accepts_location)(lambda *args: None)
    implementations = (accepts_location, requires_location, sets_local_variable, wrapped, partial(accepts_location, 1), print)
    expected = [base._has_loc.__wrapped__(function) for function in implementations]
    assert [base._has_loc(function) for function in implementations] == expected == [True, True, False, True, True, False]


def test_listed_variables_are_those_of_numba():
    from numba.cuda.core import ir

    location, scope = ir.Loc("file", 1), None
    a, b, c = (ir.Var(scope, name, location) for name in "abc")
    call = ir.Expr.call(a, [b, c], {}, location)
    items = ir.Expr.build_map([(a, b)], 1, {}, {}, location)
    statements = [ir.Assign(call, a, location), ir.SetItem(a, b, c, location), ir.Assign(items, c, location), call, items]
    listed = [statement.list_vars() for statement in statements]
    assert listed == [type(statement).list_vars.__wrapped__(statement) for statement in statements]
    assert all(listed)


def test_singly_assigned_variables_are_those_of_numba(monkeypatch):
    from numba.cuda.lowering import Lower

    found, find = [], Lower._find_singly_assigned_variable

    def find_both(self):
        find.__wrapped__(self)
        expected = self._singly_assigned_vars
        find(self)
        found.append((expected, self._singly_assigned_vars))

    def loops(x):
        total, last = 0, x
        for k in range(x):
            total = total + k
            if total > 100:
                last = total - k
                break
            step = k * 2
            total += step
        return np.int32(total + last)

    monkeypatch.setattr(Lower, "_find_singly_assigned_variable", find_both)
    compile_function(loops)
    compile_function(lambda x: np.int32(x * 2 + 1))
    assert any(expected for expected, _ in found)
    assert all(expected == singly_assigned for expected, singly_assigned in found)
