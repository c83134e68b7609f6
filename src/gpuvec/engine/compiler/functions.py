"""Author-written Python functions become Numba functions, for the CPU and for CUDA alike.

Numba types the literal in `0.5 * x` as float64 and so promotes the whole expression. Here `float` means float32: float
constants in a function's code, in its defaults, in its closure and in the module around it are read as float32, and
the plain functions that it calls by name are compiled with it. What this cannot see (`2 * x`, `math.pi`) is found by
`gpuvec.testing.check_env` in the typed code. numba-cuda re-targets an `njit` function that a kernel calls, so one
decorator serves every backend.
"""

from __future__ import annotations

import dis
import linecache
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from gpuvec.engine.compiler.counted_range import RANGE_NAME, cpu_counted_range
from gpuvec.engine.compiler.frames import with_large_frame
from gpuvec.engine.compiler.frozen import frozen_function
from gpuvec.engine.compiler.refused_names import refuse_host_names
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.errors import AuthoringError

P = TypeVar("P", bound=tuple[Any, ...])


def dispatcher_of(function: Callable[..., Any], **options: bool) -> Any:
    """`function` as a Numba function that is compiled as far as LLVM's language: see `numba_target`."""
    from gpuvec.engine.compiler.numba_target import Dispatcher

    fixed = {"nopython": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return Dispatcher(function, targetoptions=fixed | options)


def inline_function(function: Callable[..., Any]) -> DeviceFunction:
    """`function` as a Numba function for other compiled functions to call; LLVM puts it in place.

    Division follows IEEE, as on a GPU: Numba's default tests every divisor for zero in order to raise. Numba would compile
    a function anew for each literal that it is called with (every draw number, say); here one version serves all.
    """
    dispatcher = dispatcher_of(function, forceinline=True)
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: template(*without_literals(args, kws))
    _inlined.add(function)
    return dispatcher  # type: ignore[no-any-return]  # of Numba, which has no types


_inlined: WeakSet[Callable[..., Any]] = WeakSet()


def is_inline(function: Callable[..., Any]) -> bool:
    """Whether `inline_function` made a Numba function of it."""
    return function in _inlined


def without_literals(args: Any, kws: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The types of a call's arguments, where that of a literal is the type of all of its kind."""
    from numba.core.types import unliteral

    return tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()}


@with_large_frame
def compile_for(dispatcher: Any, arguments: tuple[Any, ...]) -> None:
    """Compiles a Numba function for arguments of these Numba types, if that is not done yet."""
    dispatcher.compile(arguments)


# Functions of equal content are compiled once while something uses them, and the last few beyond that.
_compiled: WeakValueDictionary[types.FunctionType, Any] = WeakValueDictionary()  # of frozen functions
_recently_compiled: OrderedDict[types.FunctionType, Any] = OrderedDict()
RECENT = 64  # functions


def device_function(function: Callable[..., Any]) -> DeviceFunction:
    """`function` as a Numba function with float32 literals, and with it all plain functions that it calls.

    Raises:
        AuthoringError: the function calls itself, directly or through others, or reads what not every backend has.
    """
    return _device(function, ())  # type: ignore[no-any-return]  # of Numba, which has no types


def _device(function: Any, callers: tuple[Any, ...]) -> Any:
    if not isinstance(function, types.FunctionType):  # it is Numba's already
        return function
    function = frozen_function(function)
    dispatcher = _compiled.get(function)
    if dispatcher is None:
        dispatcher = _compiled[function] = _made(function, callers)
    _recently_compiled[function] = dispatcher
    _recently_compiled.move_to_end(function)
    if len(_recently_compiled) > RECENT:
        _recently_compiled.popitem(last=False)
    return dispatcher


def _made(function: types.FunctionType, callers: tuple[Any, ...]) -> Any:
    if function in callers:
        chain = " -> ".join(f.__name__ for f in (*callers, function))
        raise AuthoringError(
            f"{function.__module__}.{function.__qualname__} calls itself ({chain}); device code has no recursion: write a loop."
        )
    refuse_host_names(function)

    def single(value: Any) -> Any:
        """What `value` is read as in device code."""
        if type(value) is float:
            return np.float32(value)
        if type(value) is tuple:
            return tuple(map(single, value))
        if isinstance(value, types.FunctionType):
            return _device(value, (*callers, function))
        return value

    code = function.__code__
    instructions = list(dis.get_instructions(code))
    read = {op.argval for op in instructions if op.opname == "LOAD_GLOBAL"}
    scope = {name: single(value) if name in read else value for name, value in function.__globals__.items()}
    if {op.opname for op in instructions if op.argval == "range"} == {"LOAD_GLOBAL"} and "range" not in scope:
        code = code.replace(co_names=tuple(RANGE_NAME if name == "range" else name for name in code.co_names))
        scope[RANGE_NAME] = cpu_counted_range()
    cells = tuple(types.CellType(single(cell.cell_contents)) for cell in function.__closure__ or ())
    clone = types.FunctionType(
        code.replace(co_consts=single(code.co_consts)), scope, function.__name__, single(function.__defaults__), cells
    )
    clone.__doc__, clone.__module__, clone.__qualname__ = function.__doc__, function.__module__, function.__qualname__
    return inline_function(clone)


def author_function(function: Any) -> Any:
    """The author's function in Python: `function` itself, unless it stands for one that is written in CUDA C++."""
    return getattr(function, "author", function)


def params_as_scalars(params: P) -> P:
    """`params` with every float as float32 and every int as int32: what a kernel freezes."""

    def freeze(value: Any) -> Any:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        return np.int32(value) if isinstance(value, int | np.integer) else np.float32(value)

    return type(params)(*map(freeze, params))


def generate_function(name: str, source: str, **scope: Any) -> Any:
    """The function `name` of generated `source`, which tracebacks and Numba's errors can show.

    Numba knows no `*args` in kernels and no loop over fields of different types, so code whose shape follows the
    fields of an environment is written out.
    """
    file = f"<gpuvec {name} {abs(hash(source)):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), scope)
    return scope[name]
