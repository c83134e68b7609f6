"""Operators and built-in functions have the signatures that Numba infers, and each combination of types is inferred once."""

import itertools
import operator

import pytest
from numba.core import types
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from gpuvec.engine.compiler.functions import make_dispatcher

NUMBERS = [types.float32, types.int32, types.int64, types.uint8, types.boolean, types.literal(2), types.literal(-1)]
ARRAYS = [types.Array(types.float32, 1, "C"), types.Array(types.int8, 2, "C", readonly=True), types.UniTuple(types.int64, 2)]
INDICES = [types.int64, types.literal(1), types.UniTuple(types.uint32, 2), types.slice2_type]
OPERATORS = [operator.add, operator.pow, operator.lt, operator.floordiv, operator.iadd, operator.lshift, operator.and_]


@pytest.fixture(autouse=True)
def _load_declarations():
    cpu_target.typing_context.refresh()


def resolve(context, function, args):
    """(types of the arguments, type of the result), or None where Numba knows no such operation."""
    try:
        signature = context.resolve_function_type(context.resolve_value_type(function), args, {})
    except TypingError:
        return None
    return signature.args, signature.return_type


@pytest.mark.parametrize("function", OPERATORS)
def test_signatures_are_those_of_numba(function):
    context = make_dispatcher(lambda x: x).targetdescr.typing_context
    for args in itertools.product(NUMBERS, NUMBERS):
        expected = resolve(cpu_target.typing_context, function, args)
        assert [resolve(context, function, args) for _ in range(2)] == [expected, expected], args


@pytest.mark.parametrize(
    ("function", "args"),
    [
        *((operator.getitem, args) for args in itertools.product(ARRAYS, INDICES)),
        *((operator.setitem, (*args, types.float32)) for args in itertools.product(ARRAYS, INDICES)),
        *((function, (kind,)) for function in (bool, len, operator.not_, operator.neg) for kind in (*NUMBERS, *ARRAYS)),
    ],
)
def test_signatures_for_arrays_and_of_built_in_functions_are_those_of_numba(function, args):
    context = make_dispatcher(lambda x: x).targetdescr.typing_context
    expected = resolve(cpu_target.typing_context, function, args)
    assert [resolve(context, function, args) for _ in range(2)] == [expected, expected]


def test_code_generation_uses_the_inferred_signatures(monkeypatch):
    inferred, get_call_type = [], types.Function.get_call_type

    def record(self, context, args, kws):
        inferred.append((self.typing_key, args))
        return get_call_type(self, context, args, kws)

    monkeypatch.setattr(types.Function, "get_call_type", record)

    def polynomial(x, y):
        return not (x * x - y * x * y)

    make_dispatcher(polynomial).compile((types.int16, types.uint64))
    assert len(inferred) == len(set(inferred))
    # Other tests of the process may have stored signatures of float64, but not of int16.
    assert (operator.mul, (types.int16, types.int16)) in inferred


def test_a_function_accepts_another_implementation():
    context = make_dispatcher(lambda x: x).targetdescr.typing_context
    add = context.resolve_value_type(operator.add)
    another = types.Function([type("Another", (), {"key": operator.add})])
    assert [template.__name__ for template in add.augment(another).templates[-1:]] == ["Another"]
    assert add.augment(types.float32) is None


def test_a_signature_is_inferred_once(monkeypatch):
    context, calls = make_dispatcher(lambda x: x).targetdescr.typing_context, []
    get_call_type = types.Function.get_call_type

    def record(self, *args):
        calls.append(args)
        return get_call_type(self, *args)

    monkeypatch.setattr(types.Function, "get_call_type", record)
    for _ in range(2):
        assert resolve(context, operator.mul, (types.uint16, types.int8)) == ((types.uint64, types.int64), types.int64)
    assert len(calls) == 1
    resolve(cpu_target.typing_context, operator.mul, (types.uint16, types.int8))
    assert len(calls) == 2  # Numba's own compilations are as before
