"""Checks of the functions of a declaration before anything is compiled: their parameters, and the sets and fields of phases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.index_sets import IndexSets
from gpuvec.errors import AuthoringError
from gpuvec.observations import Observation
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, ByRole, Each, Reduction
from gpuvec.spec import MultiAgentEnv, SingleAgentEnv

HAS_LINE = re.compile(r"^.+, line \d+, `")


@contextmanager
def with_line_of(function: Any) -> Iterator[None]:
    """Adds the file and the line of a function to an AuthoringError of the block that names none.

    Args:
        function: the author's function that returned what the block checks; None to add nothing.
    """
    try:
        yield
    except AuthoringError as error:
        function = inspect.unwrap(author_function(function)) if callable(function) else function
        if not isinstance(function, FunctionType) or HAS_LINE.match(str(error)):
            raise
        raise authoring_error(function, str(error).removesuffix(".")) from None


def check_parameters(function: Any, declared: str, parameters: str) -> None:
    """Checks the number of parameters of a function.

    Args:
        function: the function, or a `ByRole`; None and what is no plain function are not checked.
        declared: the declaration, for messages, such as "each('cells', ...)".
        parameters: the parameters that it must have, such as "index, s, key, p".

    Raises:
        AuthoringError: it has others.
    """
    if isinstance(function, ByRole):
        for part in function.functions:
            check_parameters(part, declared, parameters)
        return
    function = author_function(function)
    if not isinstance(function, FunctionType) or function.__code__.co_flags & inspect.CO_VARARGS:
        return
    required, count = parameters.count(",") + 1, function.__code__.co_argcount
    if not count - len(function.__defaults__ or ()) <= required <= count:
        problem = f"the function of {declared} has {count} parameters; it must be {function.__name__}({parameters})"
        raise authoring_error(function, problem)


def check_single_agent_functions(env: SingleAgentEnv, is_image: bool) -> None:
    """Checks the parameters of the functions of an environment with one agent that index sets and masks brought.

    Args:
        env: the environment.
        is_image: whether observations are images.

    Raises:
        AuthoringError: a function has other parameters.
    """
    check_parameters(env.allowed, "allowed", "action, s, p")
    check_parameters(env.metrics, "metrics", "s, p")
    if is_image:
        check_parameters(env.observe, "an observation space of images", "cell, s, p")


def check_multi_agent_functions(
    env: MultiAgentEnv, sets: IndexSets, scalars: Mapping[str, DType], acting_sets: tuple[str, ...]
) -> None:
    """Checks phases, masks, turns and metrics of an environment with many agents.

    Args:
        env: the environment.
        sets: {name: shape} of its index sets.
        scalars: {field: dtype} of the fields with one value for the world.
        acting_sets: the sets whose functions receive an action in a step.

    Raises:
        AuthoringError: a function has other parameters, or a phase names a set or a field that does not exist.
    """
    check_parameters(env.allowed, "allowed", "i, action, s, p")
    check_parameters(env.to_move, "to_move", "s, p")
    check_parameters(env.metrics, "metrics", "s, p")
    for phase in env.reset if isinstance(env.reset, tuple) else ():
        _check_phase(phase, sets, scalars, ())
    for phase in env.phases:
        _check_phase(phase, sets, scalars, acting_sets)


def _check_phase(phase: Any, sets: IndexSets, scalars: Mapping[str, DType], acting_sets: tuple[str, ...]) -> None:
    if isinstance(phase, Each):
        declared = f"each({phase.index_set!r}, ...)"
        if phase.index_set not in sets:
            problem = f"{declared} runs over a set that does not exist; there are {', '.join(map(repr, sets))}"
            raise _phase_error(phase.function, f"{problem}: name one of them, or declare it in sets(p)")
        is_agent = phase.index_set == AGENTS or phase.index_set in acting_sets
        index = {WORLD: "", PAIRS: "pair, "}.get(phase.index_set, "i, " if is_agent else "index, ")
        action = "action, " if phase.index_set in acting_sets else ""
        check_parameters(phase.function, declared, f"{index}s, {action}key, p")
    if isinstance(phase, Assign):
        for name in phase.fields:
            if name not in scalars:
                problem = f"assign sets {name!r}, which is no float, int or bool of the state; there are {', '.join(scalars)}"
                raise _phase_error(phase.function, f"{problem}: declare it, or write arrays in a phase each(...)")
        check_parameters(
            phase.function, f"assign({phase.fields}, ...)", "s, action, key, p" if phase.has_action else "s, key, p"
        )
    if isinstance(phase, Reduction):
        declared = f"{phase.kind}_of({phase.field!r}, ...)"
        check_parameters(phase.function, declared, "index, s, p")
        check_parameters(phase.at, f"{declared} with at", "index, s, p")


def _phase_error(function: Callable[..., Any], problem: str) -> AuthoringError:
    return authoring_error(author_function(function), problem)


def check_observation_functions(observation: Observation, sets: IndexSets) -> None:
    """Checks the functions of pixels and of features of sets.

    Args:
        observation: the observation.
        sets: {name: shape} of the index sets.

    Raises:
        AuthoringError: a function has other parameters, or features are of a set that does not exist.
    """
    check_parameters(observation.pixel, "Observation(pixel=...)", "i, cell, s, t, p")
    for block in observation.blocks:
        if block.over not in sets or block.over == WORLD:
            names = ", ".join(repr(name) for name in sets if name != WORLD)
            problem = f"Features({block.over!r}, ...) names no set of elements; there are {names}"
            raise _phase_error(block.function, f"{problem}: name one of them, or declare it in sets(p)")
        check_parameters(block.function, f"Features({block.over!r}, ...)", "i, index, s, t, p")


def acting_sets_of(roles: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the sets whose functions receive an action in a step.

    Args:
        roles: the roles that have spaces of their own; empty if spaces are equal for all agents.
    """
    return tuple(roles) or (AGENTS, PAIRS)
