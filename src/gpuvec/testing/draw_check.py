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
    actions, start = random_actions(env, 1, 1, 0)[0], reference.make_state(start._asdict())
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

    Args:
        reset: the environment's function `reset`. Steps may use its numbers again, because they have other keys.
        index_set: the name of the set whose elements draw.
    """

    def __init__(self, reset: AuthorFunction, index_set: str = AGENTS) -> None:
        self._reset = reset
        # An element, one of them, all of them, and which numbers they may use.
        self._name, self._owner, self._elements, self._rule = "agent {}", "an agent", "agents", RULE
        if index_set != AGENTS:
            self._name, self._owner = f"element {{}} of {index_set!r}", "an element"
            self._elements, self._rule = f"elements of {index_set!r}", RULE.replace("agent i", "element number i")
        self._in_step: dict[int, tuple[int, AuthorFunction]] = {}  # {number: (agent, function)}
        # {(whether in a reset, roles, number): (agent, function)} over all steps. Numbers may depend on the role of an agent.
        self._in_run: dict[tuple[bool, bytes, int], tuple[int, AuthorFunction]] = {}
        self._roles = b""
        self._in_function: dict[int, list[Draw]] = {}  # {agent: draws} of the current function

    def begin_step(self, roles: bytes) -> None:
        """Begins a reset or a step, which has another key.

        Args:
            roles: the bytes of the agents' roles.
        """
        self._in_step.clear()
        self._roles = roles

    def add(self, function: AuthorFunction, i: int, draws: list[Draw]) -> None:
        """Adds the draws of one agent.

        Args:
            function: the function that drew them.
            i: the index of the agent.
            draws: all draws of the call.

        Raises:
            AuthoringError: a number is used twice in the call.
        """
        pair = _equal_draws(draws)
        if pair is not None:
            raise self._repeated(pair[1], i, f"twice, first in line {pair[0].line},")
        self._in_function[i] = list(draws)

    def check(self, function: AuthorFunction) -> None:
        """Checks the draws of all agents in a function, after `add` was called for each.

        Args:
            function: the function that drew them.

        Raises:
            AuthoringError: two agents, or two functions, use the same number.
        """
        draws_by_agent, self._in_function = {i: draws for i, draws in self._in_function.items() if draws}, {}
        shared = _shared_numbers(draws_by_agent)
        numbers = {draw.number for draws in draws_by_agent.values() for draw in draws}
        if len(draws_by_agent) > 1 and numbers == shared:
            draw = next(iter(draws_by_agent.values()))[0]
            problem = f"all {self._elements} use draw number {draw.number} in {describe(function)} and no other number"
            remedy = f"{self._rule}. Let one of them draw a value that all share, in an earlier phase"
            raise authoring_error_at(draw.file, draw.line, f"{problem}, so they draw the same; {remedy}")
        for i, draws in draws_by_agent.items():
            for draw in draws:
                self._check_draw(function, ALL_AGENTS if draw.number in shared else i, i, draw)

    def _check_draw(self, function: AuthorFunction, owner: int, i: int, draw: Draw) -> None:
        number = draw.number
        agent, first_function = self._in_step.setdefault(number, (owner, function))
        if agent in (owner, ALL_AGENTS) and first_function is not function:
            raise self._repeated(draw, i, f"after {describe(first_function)}, which gets the same key,")
        agent, first_function = self._in_run.setdefault((function is self._reset, self._roles, number), (owner, function))
        if agent != owner:
            others = f"all {self._elements} do" if agent == ALL_AGENTS else f"{self._name.format(agent)} does"
            use = f"{self._name.format(i)} uses draw number {number} in {describe(function)}"
            problem = f"{use}, and {others} in {describe(first_function)}: they draw the same; {self._rule}"
            raise authoring_error_at(draw.file, draw.line, problem)

    def _repeated(self, draw: Draw, i: int, occasion: str) -> AuthoringError:
        problem = f"{self._name.format(i)} uses draw number {draw.number} {occasion} and draws the same value again"
        remedy = f"give each draw of {self._owner} in a step its own number, and normal() two"
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


class RecordedDraws:
    """Records which element of which set draws a number, and checks each phase after its last element.

    The functions of `reset` and of all phases of the reference are replaced by functions that record their draws.

    Args:
        reference: the reference, whose environment changes.
        draws: the list to which `record_draws` adds draws.
    """

    def __init__(self, reference: PythonReference, draws: list[Draw]) -> None:
        self._schema, self._all_draws, env = reference.schema, draws, reference.env
        self._reset = first_function(env.reset)
        self._by_set: dict[str, AgentDraws] = {}
        phases = {"reset": reset_phases(env), "phases": env.phases}
        reference.env = dataclasses.replace(env, **{k: tuple(map(self._recorded_phase, v)) for k, v in phases.items()})

    def begin_step(self, s: EnvState) -> None:
        """Begins a reset or a step, which has another key.

        Args:
            s: the state before.
        """
        for draws in self._by_set.values():
            draws.begin_step(s.role.tobytes() if self._schema.has_role_field else b"")

    def _recorded_phase(self, phase: Any) -> Any:
        if isinstance(phase, Assign | Reduction):
            return phase
        recorded = self._recorded(phase_function(phase), index_set_of(phase))
        return phase._replace(function=recorded) if isinstance(phase, Each) else recorded

    def _recorded(self, function: Callable[..., None], index_set: str) -> Callable[..., None]:
        """A function that calls `function` for an element, and checks the draws of the set after its last element."""
        draws = self._by_set.setdefault(index_set, AgentDraws(self._reset, index_set))
        size, number = math.prod(self._schema.sets[index_set]), 0

        @functools.wraps(function)
        def record(*arguments: Any) -> None:
            nonlocal number
            self._all_draws.clear()
            function(*arguments)
            draws.add(function, number, self._all_draws)
            number = (number + 1) % size
            if number == 0:
                draws.check(function)

        return record
