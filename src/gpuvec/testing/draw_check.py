"""Checks draw numbers: a number that is used twice with the same key returns the same value twice.

All agents of an environment draw with the same key, so each agent needs its own numbers. In one place of the code all agents
may use the same number, for a value that they share, if they also use their own numbers there. An agent without its own
numbers would be a copy of the others.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.compiler.types import EnvState
from gpuvec.errors import AuthoringError
from gpuvec.observations import Time
from gpuvec.phases import AGENTS, Assign, Each, Reduction, first_function, phase_function
from gpuvec.random import Key
from gpuvec.spec import SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import allowed_actions, author_actions, random_actions
from gpuvec.testing.reference.checked_functions import CheckedKey, Draw, record_draws, stale_array
from gpuvec.testing.reference.python_reference import PythonReference, index_set_of, reset_phases

ALL_AGENTS = -1  # stands for the index of an agent where all agents share a number
RULE = "agent i may use k * i to k * i + k - 1, with one k in all phases"
ELEMENT_RULE = RULE.replace("agent i", "element number i")
EQUAL_STARTS = "all environments begin in the same state although it draws numbers; draw with the key that is its argument"
NUM_STARTS = 8  # the number of initial states that are compared
Place = tuple[str, int, int]  # the file, line and instruction of a draw
AuthorFunction = Callable[..., Any]


def check_draws(env: SingleAgentEnv) -> str:
    """Checks the random numbers that `reset` and `step` draw, in plain Python.

    Args:
        env: the environment.

    Returns:
        How many numbers they draw, as text.

    Raises:
        AuthoringError: a draw is not allowed, a number is used twice, or all initial states are equal.
    """
    reference = PythonReference(env)
    start, count = check_first_states(reference)
    # `reset` has to write all elements of the arrays, whatever they were before.
    stale = {name: stale_array(buffer) for name, buffer in reference.array_fields.items()}
    other = reference.reset(Key(0, 0, 0, 0, 0), start._replace(**stale))
    for name, first, value in zip(start._fields, start, other, strict=True) if stale else ():
        if not np.array_equal(first, value):
            element = np.argwhere(np.atleast_1d(first != value))[0].tolist()
            place = f"{name}{element}" if name in stale else name
            problem = f"reset leaves {place} as the last episode left it; write every element of every array"
            raise authoring_error(env.reset, problem)
    actions, start = random_actions(env, reference.schema, 1, 1, 0)[0], reference.make_state(start._asdict())
    if reference.has_masks:
        actions = allowed_actions(actions, reference.action_masks(start)[None], reference.schema)
    with record_draws() as draws:
        reference.step(start, author_actions(reference.schema, actions[0]), CheckedKey(0, 0, 0, 0, 1), Time(1, 1))
    check_distinct_draws(draws)
    return f"reset draws {count} numbers, step draws {len(draws)} numbers"


def check_first_states(reference: PythonReference) -> tuple[EnvState, int]:
    """Checks that initial states differ if `reset` draws numbers, and for one agent that it draws no number twice.

    Args:
        reference: the environment.

    Returns:
        The first initial state, and how many numbers `reset` draws.

    Raises:
        AuthoringError: all initial states are equal, or a draw is not allowed.
    """
    with record_draws() as draws:
        starts = [reference.reset(CheckedKey(0, 0, row, 0, 0), reference.make_state()) for row in range(NUM_STARTS)]
    count = len(draws) // len(starts)
    if reference.is_single_agent:
        check_distinct_draws(draws[:count])
    names = starts[0]._fields if reference.is_single_agent else reference.array_fields
    states = {tuple(np.asarray(getattr(start, name)).tobytes() for name in names) for start in starts}
    if draws and len(states) == 1:
        raise authoring_error(first_function(reference.env.reset), EQUAL_STARTS)
    return starts[0], count


def check_distinct_draws(draws: Sequence[Draw]) -> None:
    """Checks that a call used no draw number twice.

    Args:
        draws: all draws of one call of an author's function.

    Raises:
        AuthoringError: a number is used twice; the message names it, and both lines.
    """
    pair = _equal_draws(draws)
    if pair is not None:
        first, second = pair
        problem = f"draw number {second.number} is used twice, first in line {first.line}, and gives the same value twice"
        remedy = "give each draw its own number, and normal() two"
        raise authoring_error_at(second.file, second.line, f"{problem}; {remedy}")


def _equal_draws(draws: Sequence[Draw]) -> tuple[Draw, Draw] | None:
    """The first two draws of the same number, or None."""
    first: dict[int, Draw] = {}
    for draw in draws:
        if first.setdefault(draw.number, draw) is not draw:
            return first[draw.number], draw
    return None


class AgentDraws:
    """Records the numbers that agents draw, and checks that no two agents and no two functions use the same.

    So it does for the elements of other index sets, which have random numbers of their own.

    Args:
        reference: the environment. Steps may use the numbers of its `reset` again, because they have other keys.
    """

    def __init__(self, reference: PythonReference) -> None:
        self._reset, self._schema = first_function(reference.env.reset), reference.schema
        self._in_step: dict[tuple[str, int], tuple[int, AuthorFunction]] = {}  # {(set, number): (agent, function)}
        # {(set, whether in a reset, roles, number): (agent, function)} over all steps. Numbers may depend on the role of an
        # agent.
        self._in_run: dict[tuple[str, bool, bytes, int], tuple[int, AuthorFunction]] = {}
        self._roles = b""
        self._in_function: dict[int, list[Draw]] = {}  # {agent: draws} of the current function

    def begin_step(self, s: EnvState) -> None:
        """Begins a reset or a step, which has another key.

        Args:
            s: the state before.
        """
        self._in_step.clear()
        self._roles = s.role.tobytes() if self._schema.has_role_field else b""

    def add(self, index_set: str, function: AuthorFunction, i: int, draws: list[Draw]) -> None:
        """Adds the draws of one agent.

        Args:
            index_set: the name of the set.
            function: the function that drew them.
            i: the index of the agent, or the number of the element.
            draws: all draws of the call.

        Raises:
            AuthoringError: a number is used twice in the call.
        """
        pair = _equal_draws(draws)
        if pair is not None:
            raise _repeated(pair[1], index_set, i, f"twice, first in line {pair[0].line},")
        self._in_function[i] = list(draws)

    def check(self, index_set: str, function: AuthorFunction) -> None:
        """Checks the draws of all agents in a function, after `add` was called for each.

        Args:
            index_set: the name of the set.
            function: the function that drew them.

        Raises:
            AuthoringError: two agents, or two functions, use the same number.
        """
        elements, rule = ("agents", RULE) if index_set == AGENTS else (f"elements of {index_set!r}", ELEMENT_RULE)
        draws_by_agent, self._in_function = {i: draws for i, draws in self._in_function.items() if draws}, {}
        shared = _shared_numbers(draws_by_agent)
        numbers = {draw.number for draws in draws_by_agent.values() for draw in draws}
        if len(draws_by_agent) > 1 and numbers == shared:
            draw = next(iter(draws_by_agent.values()))[0]
            problem = f"all {elements} use draw number {draw.number} in {describe(function)} and no other number"
            remedy = f"{rule}. Let one of them draw a value that all share, in an earlier phase"
            raise authoring_error_at(draw.file, draw.line, f"{problem}, so they draw the same; {remedy}")
        for i, draw in ((i, draw) for i, draws in draws_by_agent.items() for draw in draws):
            number, owner = draw.number, ALL_AGENTS if draw.number in shared else i
            agent, other = self._in_step.setdefault((index_set, number), (owner, function))
            if agent in (owner, ALL_AGENTS) and other is not function:
                raise _repeated(draw, index_set, i, f"after {describe(other)}, which gets the same key,")
            key = index_set, function is self._reset, self._roles, number
            agent, other = self._in_run.setdefault(key, (owner, function))
            if agent != owner:
                others = f"all {elements} do" if agent == ALL_AGENTS else f"{_name(index_set, agent)} does"
                use = f"{_name(index_set, i)} uses draw number {number} in {describe(function)}"
                problem = f"{use}, and {others} in {describe(other)}: they draw the same; {rule}"
                raise authoring_error_at(draw.file, draw.line, problem)


def _name(index_set: str, i: int) -> str:
    return f"agent {i}" if index_set == AGENTS else f"element {i} of {index_set!r}"


def _repeated(draw: Draw, index_set: str, i: int, occasion: str) -> AuthoringError:
    problem = f"{_name(index_set, i)} uses draw number {draw.number} {occasion} and draws the same value again"
    owner = "an agent" if index_set == AGENTS else "an element"
    remedy = f"give each draw of {owner} in a step its own number, and normal() two"
    return authoring_error_at(draw.file, draw.line, f"{problem}; {remedy}")


def _shared_numbers(draws_by_agent: dict[int, list[Draw]]) -> set[int]:
    """The numbers that are used in one place alone, by all agents that draw in that place."""
    places: dict[int, set[Place]] = {}
    agents: dict[Place, set[int]] = {}
    users: dict[int, set[int]] = {}
    for i, draws in draws_by_agent.items():
        for draw in draws:
            places.setdefault(draw.number, set()).add(draw[1:])
            agents.setdefault(draw[1:], set()).add(i)
            users.setdefault(draw.number, set()).add(i)
    in_one_place = {number: next(iter(used)) for number, used in places.items() if len(used) == 1}
    return {n for n, place in in_one_place.items() if len(users[n]) > 1 and users[n] == agents[place]}


def describe(function: AuthorFunction) -> str:
    """The name of an author's function for messages.

    Args:
        function: `reset` or a phase.
    """
    return f"phase `{function.__name__}`" if function.__code__.co_argcount == 5 else f"`{function.__name__}`"


def record_agent_draws(reference: PythonReference, draws: list[Draw]) -> AgentDraws:
    """Replaces the functions of `reset` and of all phases by functions that record and check their draws.

    Args:
        reference: the reference, whose environment changes.
        draws: the list to which `record_draws` adds draws.

    Returns:
        The draws, of which a reset and a step have to `begin_step`.
    """
    agent_draws, env = AgentDraws(reference), reference.env

    def recorded(phase: Any) -> Any:
        if isinstance(phase, Assign | Reduction):
            return phase
        function, index_set, number = phase_function(phase), index_set_of(phase), 0
        size = math.prod(reference.schema.sets[index_set])

        @functools.wraps(function)
        def record(*arguments: Any) -> None:
            nonlocal number
            draws.clear()
            function(*arguments)
            agent_draws.add(index_set, function, number, draws)
            number = (number + 1) % size
            if number == 0:
                agent_draws.check(index_set, function)

        return phase._replace(function=record) if isinstance(phase, Each) else record

    phases = {"reset": reset_phases(env), "phases": env.phases}
    reference.env = dataclasses.replace(env, **{k: tuple(map(recorded, v)) for k, v in phases.items()})
    return agent_draws
