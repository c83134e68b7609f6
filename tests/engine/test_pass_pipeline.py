"""Functions compile to the same code, and fail with the same errors, as with Numba's own pass manager."""

import re
from functools import reduce
from types import SimpleNamespace

import pytest
from numba.core import types
from numba.core.compiler import Compiler
from numba.core.errors import NumbaError

from gpuvec.engine.compiler.functions import make_dispatcher
from gpuvec.engine.compiler.pass_pipeline import has_loops, may_have_closures


def branches(x, y):
    total, limit = 0.0, None
    for k in range(4):
        total += x if k < y else total * 0.5
    return total if limit is None else limit


def closure(x, y):
    def scale(z):
        return z * y

    return scale(x) + scale(y)


def reduction(x, y):
    return reduce(lambda a, b: a + b, (x, y), 0)


def wrong_type(x, y):
    return x + "text"


def generator(x, y):
    yield x


def unknown_name(x, y):
    return missing(x)  # noqa: F821


def compile_function(function, pipeline_class=None):
    """The LLVM IR or the text of the error, without the numbers that Numba counts up in the process."""
    dispatcher = make_dispatcher(function)
    if pipeline_class is not None:
        dispatcher._compiler.pipeline_class = pipeline_class
    try:
        dispatcher.compile((types.float32, types.int64))
    except (NumbaError, NotImplementedError) as error:
        # Numba indents messages deeper after each error.
        return type(error), str(error).split()
    (result,) = dispatcher.overloads.values()
    return re.sub(r"\w*v\d+B\w*|\.\d+|0x\w+", "", result.library.get_llvm_str())


@pytest.mark.parametrize("function", [branches, closure, reduction, wrong_type, generator, unknown_name])
def test_results_are_those_of_numba(function):
    assert compile_function(function) == compile_function(function, Compiler)


def test_closures_are_recognized():
    assert [may_have_closures(f.__code__) for f in (branches, closure, reduction, wrong_type)] == [False, True, True, False]
    assert may_have_closures((lambda n: [k * k for k in range(n)]).__code__)


def test_loops_are_recognized():
    def block(*targets):
        return SimpleNamespace(terminator=SimpleNamespace(get_targets=lambda: targets))

    assert not has_loops({0: block(4, 8), 4: block(8), 8: block()})
    assert has_loops({0: block(4), 4: block(4, 8), 8: block()})
    assert has_loops({0: block(8), 8: block(), 4: block(8)})
