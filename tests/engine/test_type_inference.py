"""Changes of numba-cuda's type inference: types, warnings and sizes are those of Numba, and nothing is computed twice."""

import inspect
import operator
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from gpuvec.engine.backends.cuda import numba_cuda, type_inference
from gpuvec.engine.compiler.functions import inline_function

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]


def straight(x, y):
    z = x * y
    return (z, z)[0] + 2


def branches(x, y):
    total, limit = 0, None
    if x > 1:
        total = x * 0.5
    elif y > 2:
        total = total + y
    return total if limit is None else limit


def loops(x, y):
    total = 0
    for k in range(y):
        total = total + k * x
    return total


def infer(function, propagate, refined=()):
    """Infers the types of a function of a float32 and an int32.

    Args:
        function: the function.
        propagate: a method of `TypeInferer`.
        refined: variables whose types depend on later statements, as that of an empty list does.

    Returns:
        ({variable: type}, the number of passes).
    """
    from numba.cuda import types
    from numba.cuda.core import bytecode, errors, interpreter, ssa, typeinfer
    from numba.cuda.descriptor import cuda_target

    identity = bytecode.FunctionIdentity.from_function(function)
    code = ssa.reconstruct_ssa(interpreter.Interpreter(identity).interpret(bytecode.ByteCode(identity)))
    context = cuda_target.typing_context
    context.refresh()
    inferer = typeinfer.TypeInferer(context, code, errors.WarningsFixer(errors.NumbaWarning))
    for index, (name, kind) in enumerate(zip(("x", "y"), (types.float32, types.int32), strict=True)):
        inferer.seed_argument(name, index, kind)
    inferer.build_constraint()
    inferer.refine_map |= {name: SimpleNamespace(refine=lambda inferer, kind: None) for name in refined}
    passes, run = [], inferer.constraints.propagate
    inferer.constraints.propagate = lambda inferer: (passes.append(1), run(inferer))[1]
    propagate(inferer)
    return {name: str(variable.type) for name, variable in inferer.typevars.items()}, len(passes)


@pytest.mark.parametrize(
    ("function", "refined", "is_single"),
    [(straight, (), True), (branches, (), True), (loops, (), False), (straight, ("z",), False)],
)
def test_types_of_one_pass_are_those_of_numba(monkeypatch, function, refined, is_single):
    from numba.cuda.core.typeinfer import TypeInferer

    monkeypatch.setattr(type_inference, "has_plain_values", lambda function: True)
    expected, num_passes = infer(function, TypeInferer.propagate.__wrapped__)
    types, num_passes_once = infer(function, TypeInferer.propagate, refined)
    assert types == expected
    assert num_passes >= 2
    assert (num_passes_once == 1) == is_single


def test_functions_of_other_packages_are_inferred_as_by_numba():
    from numba.cuda.core.typeinfer import TypeInferer

    assert infer(straight, TypeInferer.propagate) == infer(straight, TypeInferer.propagate.__wrapped__)


def test_warnings_are_reported_with_the_line_of_their_statement():
    from numba.cuda.core import errors
    from numba.cuda.core.typeinfer import ConstraintNetwork

    def statement(line, *texts_and_kinds):
        def infer_statement(inferer):
            for text, kind in texts_and_kinds:
                warnings.warn(text, kind, stacklevel=1)

        infer_statement.loc = SimpleNamespace(filename="author.py", line=line)
        return infer_statement

    slow, old = errors.NumbaPerformanceWarning, DeprecationWarning

    def run(propagate):
        network, fixer = ConstraintNetwork(), errors.WarningsFixer(errors.NumbaWarning)
        for constraint in (statement(3), statement(4, ("a", slow), ("b", slow)), statement(5, ("c", old), ("d", slow))):
            network.append(constraint)
        with warnings.catch_warnings(record=True) as others:
            warnings.simplefilter("always")
            propagate(network, SimpleNamespace(warnings=fixer))
        return dict(fixer._warnings), [(str(w.message), w.category, w.lineno) for w in others]

    stored, others = run(ConstraintNetwork.propagate)
    assert (stored, others) == run(ConstraintNetwork.propagate.__wrapped__)
    assert stored == {("author.py", 4, slow): {"a", "b"}, ("author.py", 5, slow): {"d"}}
    assert [text for text, *_ in others] == ["c"]


def test_types_of_values_are_those_of_numba(monkeypatch):
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import context as context_module

    @intrinsic
    def negate(typingctx, x):
        return x(x), lambda context, builder, sig, args: builder.neg(args[0])

    context = cuda_target.typing_context
    context.refresh()
    resolve = type(context).resolve_value_type
    values = (operator.add, operator.getitem, len, negate, bool, np.float32, np, 3, (1, 2.0))
    expected = [resolve.__wrapped__(context, value) for value in values]
    typed, typeof = [], context_module.typeof
    monkeypatch.setattr(context_module, "typeof", lambda value, purpose: typed.append(value) or typeof(value, purpose))
    assert [context.resolve_value_type(value) for value in values] == expected
    assert typed == list(values[4:])
    with pytest.raises(ValueError, match="Cannot determine Numba type"):
        context.resolve_value_type(vars)


def test_texts_of_statements_are_made_for_debug_prints_alone(monkeypatch):
    from numba.cuda import lowering

    assert re.findall(r".*\bstr\(.*", inspect.getsource(lowering)) == ["        self.debug_print(str(inst))"]
    assert lowering.str(3) == ""
    monkeypatch.setattr(lowering.config, "DEBUG_JIT", True)
    assert lowering.str(3) == "3"


def test_sizes_are_computed_once(monkeypatch):
    from llvmlite import ir
    from numba.cuda.descriptor import cuda_target

    context, size_of = cuda_target.target_context, type(cuda_target.target_context).get_abi_sizeof
    kinds = (ir.IntType(1), ir.DoubleType(), ir.ArrayType(ir.FloatType(), 3), ir.IntType(8).as_pointer())
    kinds += (ir.LiteralStructType([ir.IntType(8), ir.DoubleType()]), ir.ArrayType(ir.FloatType(), 5))
    expected = [size_of.__wrapped__(context, kind) for kind in kinds]
    assert [context.get_abi_sizeof(kind) for kind in kinds] == expected == [1, 8, 12, 8, 16, 20]
    monkeypatch.setattr(ir.Type, "get_abi_size", None)
    assert [context.get_abi_sizeof(kind) for kind in kinds] == expected


def test_calls_with_equal_types_share_a_template(monkeypatch):
    from numba.cuda import dispatcher

    @inline_function
    def scaled(x, factor):
        return x * factor

    def caller(x):
        return scaled(x, 3) + scaled(x, 4) + scaled(x, 5.0)

    names, make_template = [], dispatcher.typing.make_concrete_template
    record = SimpleNamespace(make_concrete_template=lambda name, **kws: names.append(name) or make_template(name, **kws))
    monkeypatch.setattr(dispatcher, "typing", record)
    options = {"device": True, "abi_info": {"abi_name": "f"}, "output": "ptx", "cc": (9, 0)}
    assert "f" in numba_cuda.cuda.compile(caller, "float64(int64)", **options)[0]
    assert names == ["CallTemplate(scaled)"] * 2
