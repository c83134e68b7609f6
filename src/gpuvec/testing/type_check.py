"""Checks the types of all values in the author's compiled functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np
from numba import typeof, types
from numba.core import ir
from numba.core.dispatcher import Dispatcher
from numba.np.numpy_support import from_dtype

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.functions import compile_for, device_function, params_as_scalars
from gpuvec.engine.layout.buffers import SCALARS
from gpuvec.engine.layout.declared_schema import make_critic_schema, reduction_name
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import ENGINE_FIELDS, ActionLayout, EnvSchema, MultiAgentSchema
from gpuvec.errors import AuthoringError
from gpuvec.observations import Time
from gpuvec.phases import AGENTS, PAIRS, Assign, ByRole, Each, Reduction, phase_function
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.reference.checked_functions import KEY_RULE, OWN_KEY
from gpuvec.testing.reference.python_reference import index_set_of, reset_phases

READABLE = "step"  # the field of a key that author code may read


def key_fault(value: ir.Inst, kind: types.Type, kind_of: Callable[[ir.Var], types.Type]) -> str | None:
    """Returns what is wrong with the key in an assigned value; None if nothing is.

    The types of compiled code show every use of a key, even in a branch that no run enters.

    Args:
        value: the value of an assignment in Numba's intermediate representation.
        kind: the type of the value.
        kind_of: returns the type of a variable.
    """
    if not isinstance(value, ir.Expr):
        return None
    if value.op == "call":
        callee = kind_of(value.func)
        if isinstance(callee, types.Dispatcher):
            return None
        passes_key = any(_is_key(kind_of(argument)) for argument in value.args)
        return OWN_KEY if _is_key(kind) else f"passes the key to {callee}, {KEY_RULE}" if passes_key else None
    if value.op in ("build_tuple", "cast", "phi") or not any(_is_key(kind_of(v)) for v in value.list_vars()):
        return None
    if value.op == "getattr":
        return None if value.attr == READABLE else f"reads {value.attr} of the key, {KEY_RULE}"
    if value.op == "static_getitem":
        return f"reads element {value.index} of the key, {KEY_RULE}"
    return f"{'compares' if value.op == 'binop' else 'reads all elements of'} the key, {KEY_RULE}"


def _is_key(kind: Any) -> bool:
    return isinstance(kind, types.BaseNamedTuple) and kind.instance_class is Key


KEY = typeof(Key._make([*(np.uint32(0),) * 4, np.int32(0)]))


def action_type(actions: ActionLayout, is_multi_agent: bool = False) -> types.Type:
    """Returns the Numba type of the action of an agent.

    Args:
        actions: the layout of actions.
        is_multi_agent: whether functions of a multi-agent environment receive it, as an array if it is long.
    """
    number = actions.dtype(0)
    if is_multi_agent and actions.is_long:
        return types.Array(typeof(number), 1, "C", readonly=True)
    return typeof((number,) * actions.components if actions.components else number)


def allowed_action_type(space: gym.Space[Any]) -> types.Type:
    """Returns the Numba type of the argument `action` of an author's function `allowed`.

    Args:
        space: the action space of one agent.
    """
    return types.int32 if isinstance(space, gym.spaces.Discrete) else types.UniTuple(types.int32, 2)


def check_metrics(function: Callable[..., Any], arguments: tuple[types.Type, ...]) -> None:
    """Checks the function `metrics` of an environment.

    Args:
        function: the function.
        arguments: the Numba types of the state and the parameters.

    Raises:
        AuthoringError: it has other parameters, or returns other values than floats.
    """
    check_parameters("metrics", function, "s, p")
    result = result_type(function, arguments)
    tuple_width(function, result, "a NamedTuple of floats")
    for name, kind in zip(result.fields if isinstance(result, types.BaseNamedTuple) else (), result, strict=False):
        require_type(function, f"metric {name!r} is {{}}; it must be a float: np.float32(x)", kind, types.Float)


def check_parameters(name: str, function: object, expected: str) -> None:
    """Checks that a field of an environment is a plain function with the right number of parameters.

    Args:
        name: the name of the field.
        function: the value of the field.
        expected: the names of the parameters, separated by commas.

    Raises:
        AuthoringError: it is something else, or has other parameters.
    """
    if not isinstance(function, FunctionType):
        raise AuthoringError(f"{name} is a {type(function).__name__}; it must be a plain function {name}({expected}).")
    if len(inspect.signature(function).parameters) != expected.count(",") + 1:
        name = function.__name__
        raise authoring_error(function, f"{name}{inspect.signature(function)} must be {name}({expected})")


def require_type(function: Callable[..., Any], problem: str, kind: types.Type, allowed: type[types.Type]) -> None:
    """Checks a Numba type.

    Args:
        function: an author's function.
        problem: what is wrong if it is another type, with "{}" for the type.
        kind: the type.
        allowed: its class.

    Raises:
        AuthoringError: it is another type.
    """
    if not isinstance(kind, allowed):
        raise authoring_error(function, problem.format(types.unliteral(kind)))


def tuple_width(function: Callable[..., Any], result: types.Type, expected: str) -> int:
    """Returns the number of values that a function returns.

    Args:
        function: an author's function.
        result: the Numba type of its result.
        expected: a description of what it must return.

    Raises:
        AuthoringError: it does not return a tuple of numbers.
    """
    if not isinstance(result, types.BaseTuple):
        raise authoring_error(function, f"it returns {result}; it must return {expected}: (a, b), or (a,) for one")
    for k, part in enumerate(result):
        if not isinstance(part, types.Number | types.Boolean):
            raise authoring_error(function, f"value {k} of those it returns is {part}; it must be a number")
    return len(result)


def index_type(num_axes: int) -> types.Type:
    """Returns the Numba type of an index in a set.

    Args:
        num_axes: the number of axes of the set.
    """
    return types.int32 if num_axes == 1 else types.UniTuple(types.int64, num_axes)


def result_type(function: Callable[..., Any], arguments: tuple[types.Type, ...]) -> types.Type:
    """Compiles a function as kernels do, checks the types of all values in it, and returns the type of its result.

    Args:
        function: an author's function.
        arguments: the Numba types of its arguments.

    Raises:
        AuthoringError: the function cannot be compiled, or computes a value that is not allowed in a kernel.
    """
    with explain_compiler_errors(function):
        dispatcher: Any = device_function(function)
        compile_for(dispatcher, arguments)
    _check_value_types(dispatcher, arguments, set())
    return dispatcher.overloads[arguments].signature.return_type


def _check_value_types(
    dispatcher: Dispatcher, arguments: tuple[types.Type, ...], checked: set[tuple[Dispatcher, tuple[types.Type, ...]]]
) -> None:
    """Raises AuthoringError for the first line with a container, a float64 computed from other types, or a misused key."""
    if (dispatcher, arguments) in checked:
        return
    checked.add((dispatcher, arguments))
    compile_for(dispatcher, arguments)
    annotated = dispatcher.overloads[arguments].type_annotation
    statements = [statement for block in annotated.blocks.values() for statement in block.body]
    for inst in sorted(statements, key=lambda statement: statement.loc.line):
        line = inst.loc.line
        if isinstance(inst, ir.Raise | ir.StaticRaise | ir.DynamicRaise):
            raise authoring_error(dispatcher.py_func, "raises an error, which a GPU cannot; clip, or end the episode", line)
        if not isinstance(inst, ir.Assign):
            continue
        value, kind = inst.value, annotated.typemap[inst.target.name]
        is_text = isinstance(kind, types.UnicodeType) or (isinstance(kind, types.StringLiteral) and isinstance(value, ir.Expr))
        if is_text or isinstance(kind, types.List | types.Set | types.DictType):
            problem = "makes a list, set, dict or string, which device code does not have; use a tuple, or fields of the state"
            raise authoring_error(dispatcher.py_func, problem, line)
        misuse = key_fault(value, kind, lambda variable: annotated.typemap[variable.name])
        if misuse is not None:
            raise authoring_error(dispatcher.py_func, misuse, line)
        callee = annotated.typemap[value.func.name] if isinstance(value, ir.Expr) and value.op == "call" else None
        if isinstance(callee, types.Dispatcher) and not callee.dispatcher.py_func.__module__.startswith("gpuvec."):
            _check_value_types(callee.dispatcher, tuple(annotated.calltypes[value].args), checked)
        operands = value.list_vars() if isinstance(value, ir.Expr) else [value] if isinstance(value, ir.Var) else []
        operand_types = [annotated.typemap[v.name] for v in operands]
        if _has_float64(kind) and not isinstance(value, ir.Arg) and not any(map(_has_float64, operand_types)):
            raise authoring_error(dispatcher.py_func, f"makes a float64; {_remedy(value, operand_types)}", line)


def _has_float64(kind: types.Type) -> bool:
    """Whether a value of a Numba type contains a float64."""
    parts = tuple(kind) if isinstance(kind, types.BaseTuple) else ()
    parts += (kind.dtype,) if isinstance(kind, types.Array) else (kind.type,) if isinstance(kind, types.Optional) else ()
    return kind == types.float64 or any(map(_has_float64, parts))


def _remedy(value: ir.Inst, operand_types: list[types.Type]) -> str:
    """What the author can do about a float64 that `value` computes from operands of the given types."""
    if isinstance(value, ir.Var):
        return "a variable is an int on one path and a float on another: write 0.0, not 0"
    if isinstance(value, ir.Expr) and value.op == "getattr" and isinstance(operand_types[0], types.Module):
        name = f"{operand_types[0].pymod.__name__}.{value.attr}"
        return f"only names of the module are read as float32: put {value.attr.upper()} = {name} there, and use that"
    if any(isinstance(kind, types.Integer) for kind in operand_types):
        return "an int and a float are operands: write 2.0, not 2, and np.float32(k) for an int k"
    if isinstance(value, ir.Expr):
        return "convert it with np.float32(...)"
    return "make it a float32: np.array(..., np.float32) for a table"


def check_single_agent_types(env: SingleAgentEnv, schema: EnvSchema) -> str:
    """Compiles the author's functions as kernels do, and checks the type of every value in them.

    Args:
        env: the environment.
        schema: its schema.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a function cannot be compiled, computes a value that is not allowed in a kernel, or returns a wrong
            type.
    """
    arrays = schema.array_fields if isinstance(schema, MultiAgentSchema) else {}
    is_image = schema.obs.is_image
    reset_parameters, observe_parameters = "s, key, p" if arrays else "key, p", "cell, s, p" if is_image else "s, p"
    for name, expected in {"reset": reset_parameters, "step": "s, action, key, p", "observe": observe_parameters}.items():
        check_parameters(name, getattr(env, name), expected)
    action, p = action_type(schema.action), typeof(params_as_scalars(env.params))
    hints = get_type_hints(env.state, include_extras=True)
    zeros = {k: np.zeros(arrays[k].shape, arrays[k].dtype) if k in arrays else SCALARS[hint](0) for k, hint in hints.items()}
    state = typeof(env.state(**zeros))

    _check_state_type(env, env.reset, result_type(env.reset, ((state,) if arrays else ()) + (KEY, p)))
    result = result_type(env.step, (state, action, KEY, p))
    if not isinstance(result, types.BaseTuple) or len(result) != 3:
        raise authoring_error(env.step, f"it returns {result}; it must return (State, reward, terminated), on every path")
    after, reward, terminated = result
    _check_state_type(env, env.step, after)
    require_type(env.step, "the reward is {}; it must be " + RESULT_TYPES["float"][1], reward, types.Float)
    require_type(env.step, "terminated is {}; it must be " + RESULT_TYPES["bool"][1], terminated, types.Boolean)
    if env.allowed is not None:
        check_parameters("allowed", env.allowed, "action, s, p")
        is_allowed = result_type(env.allowed, (allowed_action_type(env.spaces(env.params)[1]), state, p))
        require_type(env.allowed, "it returns {}; it must return a bool", is_allowed, types.Boolean)
    if env.metrics is not None:
        check_metrics(env.metrics, (state, p))
    expected_width = schema.obs.shape[0]
    cell, kind = ((index_type(2),), "channels") if is_image else ((), "floats")
    width = tuple_width(env.observe, result_type(env.observe, (*cell, state, p)), f"a tuple of {expected_width} {kind}")
    if width != expected_width:
        raise authoring_error(env.observe, f"it returns {width} values, but the observation space has shape {schema.obs.shape}")
    return "every value is a float32, an integer or a bool"


def _check_state_type(env: SingleAgentEnv, function: Callable[..., Any], result: types.Type) -> None:
    """Raises AuthoringError unless the type of the result of a function is the state with fields of the declared types."""
    state = env.state.__name__
    if not isinstance(result, types.BaseNamedTuple) or result.instance_class is not env.state:
        raise authoring_error(function, f"the state that it returns is {result}; it must be a {state}, on every path")
    allowed = {float: (types.Float, "0.0, not 0"), int: (types.Integer, "np.int32(x)"), bool: (types.Boolean, "a comparison")}
    for (name, hint), kind in zip(get_type_hints(env.state, include_extras=True).items(), result, strict=True):
        array = types.Array, f"its elements, and return s.{name}"
        declared = f"declared as {hint.__name__}" if hint in allowed else "an array"
        expected, remedy = allowed.get(hint, array)
        if not isinstance(kind, expected):
            raise authoring_error(function, f"field {name!r} of {state} is {declared} and gets {kind}: write {remedy}")


RESULT_TYPES = {  # {name: (Numba type of a result, the rule for the author)}
    "float": (types.Float, "a float on every path: write 1.0, not 1"),
    "number": (types.Number, "a number on every path"),
    "integer": (types.Integer, "an int, the index of an agent, or -1"),
    "bool": (types.Boolean, "a bool, as a comparison is"),
    "nothing": (types.NoneType, "nothing: write new values to the state, s.x[i] = ..."),
}


def check_multi_agent_types(env: MultiAgentEnv, schema: EnvSchema) -> str:
    """Compiles the author's functions as kernels do, and checks the type of every value in them.

    Only `reset` and phases may write to the state, except to `role` and `agents_by_role`. Only `other_features` and
    `self_features` may read the neighbors that a search finds.

    Args:
        env: the environment.
        schema: its schema.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a function cannot be compiled, computes a value that is not allowed in a kernel, returns a wrong type,
            or writes what it may not write.
    """
    assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
    for name, table in (env.tables(env.params) if env.tables is not None else {}).items():
        if table.dtype not in (np.float32, np.int32, np.bool_):
            raise AuthoringError(
                f"table {name!r} of tables(p) is {table.dtype}; it must be float32, int32 or bool: np.array(..., np.float32)."
            )
    i, p = types.int32, typeof(kernel_params(env))
    t = types.NamedTuple([types.int32] * 2, Time)
    mutable = _state_type(env, schema, writes=True)
    s, observed = _state_type(env, schema), _state_type(env, schema, has_neighbors=True)
    before = (schema.neighbors,) if isinstance(schema.neighbors, Reduction) else ()
    phase_types = _PhaseTypes(schema, s, mutable, p)
    for phase in reset_phases(env):
        phase_types.check(phase, in_reset=True)
    for phase in (*env.phases, *before):
        phase_types.check(phase)
    for name, function in _functions("reward", env.reward):
        _check_result(name, function, "i, s, t, p", (i, s, t, p), "float")
    for name, function in (*_functions("terminated", env.terminated), *_functions("active", env.active)):
        _check_result(name, function, "i, s, p", (i, s, p), "bool")
    roles = env.allowed.roles if isinstance(env.allowed, ByRole) else ("",)
    for role, (name, function) in zip(roles, _functions("allowed", env.allowed), strict=env.allowed is not None):
        choice = allowed_action_type(schema.role_schemas.get(role, schema).action_space)
        _check_result(name, function, "i, action, s, p", (i, choice, s, p), "bool")
    if env.to_move is not None:
        _check_result("to_move", env.to_move, "s, p", (s, p), "integer")
    if env.metrics is not None:
        check_metrics(env.metrics, (s, p))
    if schema.search is not None:
        _check_result("distance", schema.search.distance, "i, j, s, p", (i, i, s, p), "float")
        if schema.search.mask is not None:
            _check_result("mask", schema.search.mask, "i, s, p", (i, s, p), "bool")
    for part in schema.parts:
        _check_observation(part, (i, observed, t, p))
    critic = make_critic_schema(env, schema)
    if critic is not None:
        _check_observation(critic, (i, s, t, p))
    return "every value is a float32, an integer or a bool; only reset and phases write"


def _functions(name: str, functions: Any) -> list[tuple[str, Callable[..., Any]]]:
    """(name for messages, function) of a field that is None, one function, or a `ByRole`."""
    if isinstance(functions, ByRole):
        return [(f"{name}[{role!r}]", f) for role, f in zip(functions.roles, functions.functions, strict=True)]
    return [] if functions is None else [(name, functions)]


def _check_observation(schema: MultiAgentSchema, arguments: tuple[types.Type, ...]) -> None:
    """Raises AuthoringError for a wrong function of the observation of agents with equal spaces."""
    observation, (i, observed, t, p) = schema.observation, arguments
    if schema.obs.is_image:
        channels = schema.obs.shape[0]
        width = _num_features("pixel", observation.pixel, "i, cell, s, t, p", (i, index_type(2), observed, t, p))
        if width != channels:
            problem = f"it returns {width} values, but the observation space has {channels} channels"
            raise authoring_error(observation.pixel, problem)
        return
    other = _num_features("other_features", observation.other_features, "i, slot, s, t, p", (i, i, observed, t, p))
    in_blocks = 0
    for block in observation.blocks:
        axes = len(schema.sets.get(block.over, ()))
        name = f"the function of Features({block.over!r}, ...)"
        width = _num_features(name, block.function, "i, index, s, t, p", (i, index_type(axes), observed, t, p))
        in_blocks += width * math.prod(schema.sets.get(block.over, ()))
    own = _num_features("self_features", observation.self_features, "i, s, t, p", (i, observed, t, p))
    if (observation.other_features is None) != (observation.max_neighbors == 0):
        problem = "other_features is missing" if observation.other_features is None else "other_features is set"
        raise AuthoringError(
            f"observation(p) has max_neighbors={observation.max_neighbors}, and {problem}; set both, or neither."
        )
    total = other * observation.max_neighbors + in_blocks + own
    if total != schema.num_features:
        neighbors = f"{observation.max_neighbors} neighbors of {other} values"
        neighbors += f", {in_blocks} in blocks" if observation.blocks else ""
        problem = f"{neighbors} and {own} of the agent itself are {total} values, but the observation space"
        raise authoring_error(observation.self_features, f"{problem} has shape ({schema.num_features},)")


class _PhaseTypes:
    """Checks the functions of phases with these types of their arguments."""

    def __init__(self, schema: MultiAgentSchema, s: types.Type, mutable: types.Type, p: types.Type) -> None:
        self._schema, self._state, self._mutable, self._params = schema, s, mutable, p
        # {set: the type of the action that its functions receive}
        self._actions = {part.role: action_type(part.action) for part in schema.role_schemas.values()}
        if not schema.role_schemas:
            self._actions = dict.fromkeys((AGENTS, PAIRS), action_type(schema.action, is_multi_agent=True))

    def check(self, phase: Any, in_reset: bool = False) -> None:
        """Raises AuthoringError for a wrong parameter, result, field or set of a phase, which may be one of a reset."""
        if isinstance(phase, Reduction):
            self._check_reduction(phase)
        elif isinstance(phase, Assign):
            self._check_assignment(phase)
        else:
            index_set, function = index_set_of(phase), phase_function(phase)
            place = "reset" if in_reset and not isinstance(phase, Each) else f"phase `{function.__name__}`"
            index, index_types = self._index(index_set, place)
            has_action = not in_reset and index_set in self._actions
            parameters = ", ".join([*index, "s", *(["action"] if has_action else []), "key", "p"])
            action = (self._actions[index_set],) if has_action else ()
            arguments = (*index_types, self._mutable, *action, KEY, self._params)
            _check_result(place, function, parameters, arguments, "nothing")

    def _index(self, index_set: str, place: str) -> tuple[list[str], tuple[types.Type, ...]]:
        """The name and the type of the index argument of a set; none for the world."""
        if index_set not in self._schema.sets:
            known = ", ".join(map(repr, self._schema.sets))
            raise AuthoringError(f"{place} runs over {index_set!r}, which is no index set: there are {known}.")
        num_axes = len(self._schema.sets[index_set])
        if num_axes == 0:
            return [], ()
        name = "i" if index_set in self._schema.role_schemas else {AGENTS: "i", PAIRS: "pair"}.get(index_set, "index")
        return [name], (index_type(num_axes),)

    def _check_reduction(self, phase: Reduction) -> None:
        name = reduction_name(phase)
        index, index_types = self._index(phase.over, name)
        parameters, arguments = ", ".join([*index, "s", "p"]), (*index_types, self._state, self._params)
        kind = "bool" if phase.kind in ("count", "any", "all") else "number"
        _check_result(f"the function of {name}", phase.function, parameters, arguments, kind)
        if phase.at is not None:
            check_parameters(f"at of {name}", phase.at, parameters)
            result = result_type(phase.at, arguments)
            shape = self._schema.sets[self._schema.field_sets[phase.field]]
            parts = (result,) if len(shape) == 1 else tuple(result) if isinstance(result, types.BaseTuple) else ()
            if len(parts) != len(shape) or not all(isinstance(part, types.Integer) for part in parts):
                rule = "an int" if len(shape) == 1 else f"a tuple of {len(shape)} ints"
                target = f"the index in {self._schema.field_sets[phase.field]!r}, {rule}"
                raise authoring_error(phase.at, f"at of {name} returns {types.unliteral(result)}; it must return {target}")

    def _check_assignment(self, phase: Assign) -> None:
        name = f"assign({phase.fields!r}, ...)"
        if unknown := [field for field in phase.fields if field not in self._schema.scalar_fields]:
            scalars = ", ".join(self._schema.scalar_fields) or "none"
            raise AuthoringError(
                f"{name} writes {unknown[0]!r}; it writes float, int and bool fields of the state: {scalars}. A field with "
                "several elements is written by each(...)."
            )
        check_parameters(name, phase.function, "s, key, p")
        result = result_type(phase.function, (self._state, KEY, self._params))
        count = len(phase.fields)
        width = 1 if isinstance(result, types.Number | types.Boolean) else tuple_width(phase.function, result, "numbers")
        if width != count or isinstance(result, types.BaseTuple) != (count > 1):
            rule = "a number" if count == 1 else f"a tuple of {count} numbers"
            raise authoring_error(phase.function, f"the function of {name} returns {result}; it must return {rule}")


def _check_result(
    name: str, function: Callable[..., Any], parameters: str, arguments: tuple[types.Type, ...], expected: str
) -> None:
    """Raises AuthoringError unless a function has the parameters and returns the type `RESULT_TYPES[expected]`."""
    check_parameters(name, function, parameters)
    allowed, rule = RESULT_TYPES[expected]
    require_type(function, f"{name} returns {{}}; it must return {rule}", result_type(function, arguments), allowed)


def _num_features(name: str, function: Callable[..., Any] | None, parameters: str, arguments: tuple[types.Type, ...]) -> int:
    """The number of values that a function of the observation returns; 0 without a function."""
    if function is None:
        return 0
    check_parameters(name, function, parameters)
    return tuple_width(function, result_type(function, arguments), "a tuple of numbers")


def _state_type(env: MultiAgentEnv, schema: MultiAgentSchema, writes: bool = False, has_neighbors: bool = False) -> types.Type:
    """The Numba type of the state for functions that may write to it, or may read the neighbors that a search finds."""
    arrays = {
        k: types.Array(from_dtype(np.dtype(b.dtype)), len(b.shape), "C", readonly=not writes or k in ENGINE_FIELDS)
        for k, b in schema.array_fields.items()
    }
    arrays |= {} if has_neighbors else dict.fromkeys(schema.search_fields, types.none)
    scalars = {k: from_dtype(np.dtype(dtype)) for k, dtype in schema.scalar_fields.items()}
    return types.NamedTuple([(arrays | scalars)[k] for k in env.state._fields], env.state)
