"""Compilation of the functions that authors write, with Numba, for the CPU and for CUDA.

Numba types the literal in `0.5 * x` as float64, and so promotes the whole expression. Here `float` means float32: float
constants in a function's code, in its defaults, in its closure and in its module are compiled as float32, and the plain
functions that it calls by name are compiled with it. The types of `2 * x` and `math.pi` do not change;
`gpuvec.testing.check_env` checks them in the typed code. The same function object is compiled for the CPU and, where a kernel
of a GPU calls it, by numba-cuda.
"""

from __future__ import annotations

import builtins
import dis
import linecache
import math
import random
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from gpuvec.engine.compiler.counted_range import RANGE_NAME, register_counted_range
from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.frames import with_large_frame
from gpuvec.engine.compiler.frozen import CONSTANT_TYPES, frozen_function
from gpuvec.engine.compiler.function_objects import is_function_object
from gpuvec.engine.compiler.numba_api import cpu_numba
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.errors import AuthoringError

P = TypeVar("P", bound=tuple[Any, ...])
NUM_RECENT_FUNCTIONS = 64
MAX_ARGUMENTS = 30  # of a call that Python compiles to one instruction

# Functions for which `inline_function` made a Numba function.
_inline_functions: WeakSet[Callable[..., Any]] = WeakSet()
# Numba functions of `inline_function` by the key of their content.
_equal_functions: WeakValueDictionary[Any, Any] = WeakValueDictionary()
# Numba functions by frozen function. Functions of equal content are compiled once for as long as something refers to the
# result, and the most recent ones are kept alive beyond that.
_device_functions: WeakValueDictionary[types.FunctionType, Any] = WeakValueDictionary()
_recent_functions: OrderedDict[types.FunctionType, Any] = OrderedDict()


def make_dispatcher(function: Callable[..., Any], **options: bool) -> Any:
    """Makes a Numba function that is compiled to LLVM's intermediate representation alone (see `numba_target`).

    Args:
        function: the Python function.
        options: options of Numba's compiler.
    """
    from gpuvec.engine.compiler.numba_target import LLVMDispatcher

    fixed_options = {"nopython": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return LLVMDispatcher(function, targetoptions=fixed_options | options)


def inline_function(function: Callable[..., Any]) -> DeviceFunction:
    """Makes a Numba function of `function` that LLVM inlines into the compiled functions that call it.

    Division follows IEEE 754, as on a GPU; by default Numba tests every divisor for zero in order to raise an exception. Numba
    would also compile a function again for each literal argument, such as the number of each draw. Here the literals of a type
    share one version. Functions of equal content share one Numba function for as long as something refers to it.
    """
    assert isinstance(function, types.FunctionType), "Numba compiles Python functions"
    values = referenced_values(function)
    key = None if values is None else equality_key(function, values)
    if key is not None and (equal := _equal_functions.get(key)) is not None:
        return equal  # type: ignore[no-any-return]  # of Numba, which has no types
    dispatcher = make_dispatcher(function, forceinline=True)
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: template(*without_literals(args, kws))
    _inline_functions.add(function)
    if key is not None:
        dispatcher.referenced_values = values  # so that no other object gets an address that is in the key
        _equal_functions[key] = dispatcher
    return dispatcher  # type: ignore[no-any-return]  # of Numba, which has no types


def referenced_values(function: types.FunctionType) -> dict[str, Any] | None:
    """Returns {name: value} of the defaults, the closure and the globals of a function, or None if they cannot be compared.

    The content of an array can change, so a function that refers to one cannot be compared. A function cannot be compared
    either if a variable of its closure has no value yet, or if it defines other functions.

    Args:
        function: the function.
    """
    code = function.__code__
    # Some of these names are attributes. A global of the same name is compared then as well.
    values = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    try:
        values |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    except ValueError:
        return None
    for name in [name for name, value in values.items() if is_function_object(value)]:
        values |= _attributes_read(code, name, values.pop(name))
    values |= {"__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__}
    has_function = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    has_array = any(isinstance(value, np.ndarray) for value in values.values())
    return None if has_function or has_array else values


def _attributes_read(code: types.CodeType, name: str, functions: Any) -> Iterator[tuple[str, Any]]:
    """Yields (source, value) of the attributes of an object of functions that code reads, such as ("ctx.ops.load", ...)."""
    source, value = "", None
    for instruction in dis.get_instructions(code):
        has_attributes = is_function_object(value) or hasattr(type(value), "_fields")
        if has_attributes and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            source, value = f"{source}.{instruction.argval}", getattr(value, instruction.argval)
        else:
            if source:
                yield source, value  # an object itself where code does more with it than read an attribute
            is_read = instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and instruction.argval == name
            source, value = (name, functions) if is_read else ("", None)


def equality_key(function: types.FunctionType, values: dict[str, Any]) -> Any:
    """Returns a hashable key, which is equal for functions of equal code and values for as long as `values` exists.

    The engine composes its functions of closures: each reduction of an environment, for example, has its own function that adds
    two numbers. Functions of the engine refer to functions that are shared already, so whole trees of calls are shared.
    Objects other than numbers, text and tuples are equal only to themselves.

    Args:
        function: the function.
        values: its `referenced_values`.
    """
    code = function.__code__
    return function.__qualname__, code.co_filename, code, tuple(values), tuple(map(_value_key, values.values()))


def _value_key(value: Any) -> Any:
    """A key by which equal values of the same type are equal: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind in CONSTANT_TYPES:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, tuple):
        return kind, tuple(map(_value_key, value))
    # No other object has this address while `values` exists.
    return kind, id(value)


def bind(function: Callable[..., Any], /, **values: Any) -> DeviceFunction:
    """Compiles a function, and those of its module and of the engine that it calls, with other values of their global names.

    So functions that read from top to bottom are compiled for one environment and one device. Compiled code reads attributes of
    a dataclass or a NamedTuple as constants. Numba decides branches on a global name before it infers types, and LLVM those on
    an attribute.

    Args:
        function: the Python function.
        values: {global name: value}. What a function does not read is ignored. A value that is a Python function is bound, too.

    Raises:
        NameError: neither the module of `function` nor any of the engine has a global of that name, so that nothing reads it.
    """
    if unknown := values.keys() - function.__globals__.keys():
        modules = (vars(module) for name, module in sys.modules.items() if name.startswith("gpuvec.engine."))
        if unknown := unknown.difference(*modules):
            raise NameError(f"{function.__qualname__} is bound with values of {sorted(unknown)}, which no function reads.")
    return _bind(function, values, {})


def _bind(function: Any, values: dict[str, Any], bound: dict[Any, DeviceFunction]) -> DeviceFunction:
    """The compiled function of `function`; `bound` has those that are compiled with these values already."""
    if function not in bound:
        scope = function.__globals__ | values
        for name in {op.argval for op in dis.get_instructions(function.__code__) if op.opname == "LOAD_GLOBAL"}:
            value = scope.get(name)
            own_modules = ("gpuvec.engine.", function.__module__)
            if isinstance(value, types.FunctionType) and value.__module__.startswith(own_modules):
                scope[name] = _bind(value, values, bound)
        bound[function] = _inline_clone(function, function.__code__, scope, function.__defaults__, function.__closure__)
    return bound[function]


def _inline_clone(function: types.FunctionType, code: types.CodeType, scope: dict[str, Any], *others: Any) -> DeviceFunction:
    """The Numba function of a clone of `function` with other code, global names, defaults and closure."""
    clone = types.FunctionType(code, scope, function.__name__, *others)
    for name in ("__doc__", "__module__", "__qualname__"):
        setattr(clone, name, getattr(function, name))
    return inline_function(clone)


def is_inline(function: Callable[..., Any]) -> bool:
    """Whether `inline_function` made a Numba function of `function`."""
    return function in _inline_functions


def without_literals(args: Any, kws: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replaces the Numba type of each literal by the type that it shares with other values.

    Args:
        args: the types of a call's positional arguments.
        kws: {name: type} of its keyword arguments.
    """
    from numba.core.types import unliteral

    return tuple(map(unliteral, args)), {name: unliteral(argument_type) for name, argument_type in kws.items()}


@with_large_frame
def compile_for(dispatcher: Any, arguments: tuple[Any, ...]) -> None:
    """Compiles a Numba function, unless it is compiled for these types already.

    Args:
        dispatcher: the Numba function.
        arguments: the Numba types of its arguments.
    """
    dispatcher.compile(arguments)


def device_function(function: Callable[..., Any]) -> DeviceFunction:
    """Makes a Numba function of `function` with float32 literals, and of all plain functions that it calls.

    Raises:
        AuthoringError: the function calls itself, directly or through others, or reads a value that only some backends can
            compile.
    """
    return _device_function(function, ())  # type: ignore[no-any-return]  # of Numba, which has no types


def _device_function(function: Any, callers: tuple[Any, ...]) -> Any:
    """Returns the Numba function of `function`, which may be one already; `callers` is the chain of calls that leads to it."""
    if not isinstance(function, types.FunctionType):
        return function
    function = frozen_function(function)
    dispatcher = _device_functions.get(function)
    if dispatcher is None:
        dispatcher = _device_functions[function] = _make_device_function(function, callers)
    _recent_functions[function] = dispatcher
    _recent_functions.move_to_end(function)
    if len(_recent_functions) > NUM_RECENT_FUNCTIONS:
        _recent_functions.popitem(last=False)
    return dispatcher


def _make_device_function(function: types.FunctionType, callers: tuple[Any, ...]) -> Any:
    """Makes the Numba function of a frozen function."""
    if function in callers:
        chain = " -> ".join(f.__name__ for f in (*callers, function))
        raise AuthoringError(
            f"{function.__module__}.{function.__qualname__} calls itself ({chain}); device code has no recursion: write a loop."
        )
    refuse_host_names(function)

    def device_value(value: Any) -> Any:
        """Returns what replaces `value` in device code."""
        if type(value) is float:
            return np.float32(value)
        if type(value) is tuple:
            return tuple(map(device_value, value))
        if isinstance(value, types.FunctionType):
            return _device_function(value, (*callers, function))
        return value

    code = function.__code__
    instructions = list(dis.get_instructions(code))
    global_names = {op.argval for op in instructions if op.opname == "LOAD_GLOBAL"}
    scope = {name: device_value(value) if name in global_names else value for name, value in function.__globals__.items()}
    if {op.opname for op in instructions if op.argval == "range"} == {"LOAD_GLOBAL"} and "range" not in scope:
        code = code.replace(co_names=tuple(RANGE_NAME if name == "range" else name for name in code.co_names))
        scope[RANGE_NAME] = register_counted_range(cpu_numba())
    cells = tuple(types.CellType(device_value(cell.cell_contents)) for cell in function.__closure__ or ())
    code = code.replace(co_consts=device_value(code.co_consts))
    return _inline_clone(function, code, scope, device_value(function.__defaults__), cells)


def author_function(function: Any) -> Any:
    """Returns the author's Python function: `function` itself, or the one that a CUDA C++ implementation replaces."""
    return getattr(function, "author", function)


def params_as_scalars(params: P) -> P:
    """Returns `params` with every float as float32 and every int as int32, the constants of a kernel."""
    dtypes: list[Any] = [
        bool if isinstance(v, bool | np.bool_) else np.int32 if isinstance(v, int | np.integer) else np.float32 for v in params
    ]
    return type(params)(*(dtype(value) for dtype, value in zip(dtypes, params, strict=True)))


def call_source(function: str, arguments: Sequence[str]) -> str:
    """Returns the source of a call.

    Python collects the arguments of a call with more than 30 one by one, which Numba compiles as so many additions of tuples.

    Args:
        function: the name of the function.
        arguments: the source of each argument.
    """
    if len(arguments) <= MAX_ARGUMENTS:
        return f"{function}({', '.join(arguments)})"
    parts = [arguments[first : first + MAX_ARGUMENTS] for first in range(0, len(arguments), MAX_ARGUMENTS)]
    tuples = (f"({', '.join(part)},)" for part in parts)
    return f"{function}(*({' + '.join(tuples)}))"


def generate_function(name: str, source: str, **scope: Any) -> Any:
    """Executes generated source and returns a function that it defines. Tracebacks and Numba's errors show the source.

    Numba has no `*args` in kernels and no loop over fields of different types. So code whose shape depends on the fields of an
    environment is generated.

    Args:
        name: the name of the function.
        source: the source.
        scope: the global names of the source.
    """
    file = f"<gpuvec {name} {abs(hash(source)):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), scope)
    return scope[name]


# A check for names and statements that device code must not contain, by its bytecode, before anything is compiled.
#
# Numba for a CPU compiles more of Python and NumPy than Numba for a GPU: functions of arrays, its own random numbers, `print`
# and `try`. Code that contains them would run on a CPU, and end in an internal error of the compiler for a GPU. So this check,
# which is part of the compilation for every backend, refuses them.


RANDOM_REMEDY = "draw with uniform, normal or randint and the key: other random numbers can be neither seeded nor repeated"
OUTPUT_REMEDY = (
    "device code has no input or output: take it out, and look at `envs.get_state()`, or call the function by itself in Python"
)
ARRAY_REMEDY = "device code makes no arrays: use numbers, tuples, fields of the state, or a table that the module makes once"
# What replaces a function of NumPy, by its name. A function that is not listed has the same name in math, or is for arrays.
NUMPY_REPLACEMENTS = {
    "abs": "abs(x)", "absolute": "abs(x)", "fabs": "abs(x)",
    "minimum": "min(x, y)", "fmin": "min(x, y)", "maximum": "max(x, y)", "fmax": "max(x, y)", "clip": "min(max(x, low), high)",
    "sign": "math.copysign(1.0, x), or 1.0 if x > 0.0 else -1.0", "where": "a if condition else b", "square": "x * x",
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y", "true_divide": "x / y", "negative": "-x",
    "mod": "x % y", "remainder": "x % y", "floor_divide": "x // y", "power": "x**y", "float_power": "x**y",
    "arcsin": "math.asin", "arccos": "math.acos", "arctan": "math.atan", "arctan2": "math.atan2",
    "arcsinh": "math.asinh", "arccosh": "math.acosh", "arctanh": "math.atanh",
    "logical_and": "x and y", "logical_or": "x or y", "logical_not": "not x",
}  # fmt: skip
HOST_BUILTINS = tuple(getattr(builtins, name) for name in ("print", "input", "open", "breakpoint", "exec", "eval"))
# Instructions of `try` and `with`, in the order in which their lines are preferred for a message. The last has no line.
HANDLER_OPCODES = ("CHECK_EXC_MATCH", "BEFORE_WITH", "LOAD_SPECIAL", "PUSH_EXC_INFO")


def refuse_host_names(function: types.FunctionType) -> None:
    """Raises an error if `function` has a parameter or a statement, or reads a value, that only some backends can compile.

    Raises:
        AuthoringError: the message has the line, the name, and what to write in its place.
    """
    if function.__code__.co_kwonlyargcount:
        raise authoring_error(function, "device code has no keyword-only parameters: remove the *")
    instructions = list(dis.get_instructions(function))
    handlers = sorted(
        (HANDLER_OPCODES.index(op.opname), n) for n, op in enumerate(instructions) if op.opname in HANDLER_OPCODES
    )
    # The line of each instruction, or None
    lines = [op.positions.lineno if op.positions is not None else None for op in instructions]
    if handlers:
        problem = "device code has no try or with statement, as nothing in it raises: write an if"
        raise authoring_error(function, problem, lines[handlers[0][1]])
    free_names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for number, op in enumerate(instructions):
        name, value = op.argval, None
        if op.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(name, getattr(builtins, name, None))
        elif op.opname == "LOAD_DEREF" and name in free_names:
            value = cells[free_names.index(name)].cell_contents
        if value is None:
            continue
        # What the next instructions read from a module, such as `np.linalg.norm`
        for next_op in instructions[number + 1 :]:
            is_attribute = isinstance(value, types.ModuleType) and next_op.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if not is_attribute or not hasattr(value, next_op.argval):
                break
            name, value = f"{name}.{next_op.argval}", getattr(value, next_op.argval)
        if (remedy := _remedy(value)) is not None:
            raise authoring_error(function, f"there is no {name} in device code; {remedy}", lines[number])


def _remedy(value: Any) -> str | None:
    """Returns what to write in place of `value`; None if either all backends can compile it or none."""
    if any(value is builtin for builtin in HOST_BUILTINS):
        return OUTPUT_REMEDY
    owner, module = getattr(value, "__self__", None), getattr(value, "__module__", None) or ""
    if isinstance(owner, random.Random | np.random.RandomState | np.random.Generator) or module.startswith("numpy.random"):
        return RANDOM_REMEDY
    is_numpy_function = isinstance(value, np.ufunc) or (callable(value) and module.partition(".")[0] == "numpy")
    if not is_numpy_function or (isinstance(value, type) and issubclass(value, np.generic)):
        return None
    name = value.__name__
    if name in NUMPY_REPLACEMENTS:
        return f"write {NUMPY_REPLACEMENTS[name]}, which takes numbers: functions of NumPy take arrays"
    if isinstance(value, np.ufunc) and hasattr(math, name):
        return f"write math.{name}, which takes numbers: functions of NumPy take arrays"
    return ARRAY_REMEDY
