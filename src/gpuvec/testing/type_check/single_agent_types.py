"""The functions of a `SingleAgentEnv`: parameters, types of what they return, and the random numbers that they draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_type_hints

from numba import typeof, types

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.functions import params_as_scalars
from gpuvec.engine.layout.buffers import SCALARS
from gpuvec.engine.layout.schema import make_schema
from gpuvec.spec import SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import action_of, random_actions
from gpuvec.testing.reference.checked_arrays import checked_value, watched
from gpuvec.testing.reference.checked_draws import CheckedKey, Draw, recorded_draws
from gpuvec.testing.reference.checked_functions import CheckedFunctions
from gpuvec.testing.reference.python_reference import checked_parameters, plainly
from gpuvec.testing.type_check.typed_functions import KEY, action_type, check_parameters, typed, width


def check_types(env: SingleAgentEnv) -> str:
    """Compiles the author's functions as kernels do, and looks at the type of every value in them.

    Raises:
        AuthoringError: a function that cannot be compiled, a value that no kernel should hold, or a wrong result.
    """
    s = make_schema(env)
    for name, expected in {"reset": "key, p", "step": "s, action, key, p", "observe": "s, p"}.items():
        check_parameters(name, getattr(env, name), expected)
    action, p = action_type(s.action), typeof(params_as_scalars(env.params))
    state = typeof(env.state(*(SCALARS[hint](0) for hint in get_type_hints(env.state).values())))

    _check_state(env, env.reset, typed(env.reset, (KEY, p)))
    result = typed(env.step, (state, action, KEY, p))
    if not isinstance(result, types.BaseTuple) or len(result) != 3:
        raise authoring_error(env.step, f"it returns {result}; it must return (State, reward, terminated), on every path")
    after, reward, terminated = result
    _check_state(env, env.step, after)
    if not isinstance(reward, types.Float):
        raise authoring_error(
            env.step, f"the reward is {types.unliteral(reward)}; it must be a float on every path: write 1.0, not 1"
        )
    if not isinstance(terminated, types.Boolean):
        raise authoring_error(env.step, f"terminated is {types.unliteral(terminated)}; it must be a bool, as a comparison is")
    seen = width(env.observe, typed(env.observe, (state, p)), f"a tuple of {s.num_features} floats")
    if seen != s.num_features:
        raise authoring_error(env.observe, f"it returns {seen} values, but the observation space has shape ({s.num_features},)")
    return "every value is a float32, an integer or a bool"


def _check_state(env: SingleAgentEnv, function: Any, given: Any) -> None:
    state = env.state.__name__
    if not isinstance(given, types.BaseNamedTuple) or given.instance_class is not env.state:
        raise authoring_error(function, f"the state that it returns is {given}; it must be a {state}, on every path")
    allowed = {float: (types.Float, "0.0, not 0"), int: (types.Integer, "np.int32(x)"), bool: (types.Boolean, "a comparison")}
    for (name, hint), kind in zip(get_type_hints(env.state).items(), given, strict=True):
        if not isinstance(kind, allowed[hint][0]):
            what = f"field {name!r} of {state} is a {hint.__name__} and is given {kind}: write {allowed[hint][1]}"
            raise authoring_error(function, what)


def check_draws(env: SingleAgentEnv) -> str:
    """Runs `reset` and `step` as plain Python, and looks at the random numbers that they draw.

    Raises:
        AuthoringError: a draw that is not allowed, a number that is used twice, or rows that all begin alike.
    """
    checked, p = CheckedFunctions().environment(env), checked_parameters(env.params)
    action = checked_value(action_of(random_actions(env, 1, 1, 0)[0, 0]))
    with recorded_draws() as draws:
        starts = [plainly(checked.reset, CheckedKey(0, 0, row, 0, 0), p) for row in range(8)]
    count = len(draws) // len(starts)
    check_distinct(env.reset, draws[:count])
    if draws and all(start == starts[0] for start in starts):
        raise authoring_error(env.reset, "all rows begin alike although it draws numbers; draw with the key that it is given")
    with recorded_draws() as draws:
        plainly(checked.step, watched(starts[0]), action, CheckedKey(0, 0, 0, 0, 1), p)
    check_distinct(env.step, draws)
    return f"reset draws {count} numbers, step draws {len(draws)} numbers"


def check_distinct(function: Any, draws: Sequence[Draw]) -> None:
    """Raises if a call of `function` used a draw number twice.

    Raises:
        AuthoringError: the number.
    """
    twice = [number for number, times in Counter(draw.number for draw in draws).items() if times > 1]
    if twice:
        what = f"draw number {twice[0]} is used twice and gives the same twice; give each draw its own, normal() two"
        raise authoring_error(function, what)
