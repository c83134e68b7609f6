"""The rule of draw numbers: a number that is drawn twice with one key gives the same value twice.

All agents of an environment draw with one key, so each needs numbers of its own. All agents may draw one number in one place,
as a value that they share, if there they also draw numbers of their own. Without any of its own an agent would be a copy of
the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.errors import AuthoringError
from gpuvec.spec import SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import author_action, random_actions
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state, checked_value
from gpuvec.testing.reference.checked_draws import CheckedKey, Draw, record_draws
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params

ALL_AGENTS = -1  # in the place of an agent's index: all agents share the number
RULE = "agent i may use k * i to k * i + k - 1, with one k in all phases"
EQUAL_STARTS = "all environments begin in the same state although it draws numbers; draw with the key that is its argument"
NUM_STARTS = 8  # first states that are compared
Place = tuple[str, int, int]  # file, line and instruction of a draw
AuthorFunction = Callable[..., Any]


def check_draws(env: SingleAgentEnv) -> str:
    """Checks the random numbers that `reset` and `step` draw, in plain Python.

    Args:
        env: the environment.

    Returns:
        How many numbers they draw.

    Raises:
        AuthoringError: a draw that is not allowed, a number that is used twice, or equal first states.
    """
    checked, p = CheckedFunctions().environment(env), checked_params(env.params)
    action = checked_value(author_action(random_actions(env, 1, 1, 0)[0, 0]))
    with record_draws() as draws:
        starts = [call_checked(checked.reset, CheckedKey(0, 0, row, 0, 0), p) for row in range(NUM_STARTS)]
    count = len(draws) // len(starts)
    check_distinct_draws(env.reset, draws[:count])
    if draws and all(start == starts[0] for start in starts):
        raise authoring_error(env.reset, EQUAL_STARTS)
    with record_draws() as draws:
        call_checked(checked.step, checked_state(starts[0]), action, CheckedKey(0, 0, 0, 0, 1), p)
    check_distinct_draws(env.step, draws)
    return f"reset draws {count} numbers, step draws {len(draws)} numbers"


def check_distinct_draws(function: AuthorFunction, draws: Sequence[Draw]) -> None:
    """Checks that a call used no draw number twice.

    Args:
        function: an author's function.
        draws: all draws of a call of it.

    Raises:
        AuthoringError: the number.
    """
    repeated = [number for number, times in Counter(draw.number for draw in draws).items() if times > 1]
    if repeated:
        what = f"draw number {repeated[0]} is used twice and gives the same value twice"
        raise authoring_error(function, f"{what}; give each draw its own number, and normal() two")


class AgentDraws:
    """The numbers that agents draw, with the functions and places.

    Args:
        reset: the environment's function; its numbers may be drawn again in steps, which have other keys.
    """

    def __init__(self, reset: AuthorFunction) -> None:
        self._reset = reset
        self._in_step: dict[int, tuple[int, AuthorFunction]] = {}  # {number: (agent, function)}
        # The same over all resets, and over all steps, with equal roles: numbers may depend on the agent's role.
        self._in_run: dict[tuple[bool, bytes, int], tuple[int, AuthorFunction]] = {}
        self._roles = b""
        self._in_function: dict[int, list[Draw]] = {}  # {agent: draws} of the function that runs

    def begin_step(self, roles: bytes) -> None:
        """Begins a reset or a step, with another key.

        Args:
            roles: the bytes of the agents' roles.
        """
        self._in_step.clear()
        self._roles = roles

    def add(self, function: AuthorFunction, i: int, draws: list[Draw]) -> None:
        """Adds the draws of one agent.

        Args:
            function: that drew.
            i: index of the agent.
            draws: all draws of the call.

        Raises:
            AuthoringError: a number occurs twice.
        """
        numbers = [draw.number for draw in draws]
        for number in numbers:
            if numbers.count(number) > 1:
                raise self._repeated(function, i, number, "twice")
        self._in_function[i] = list(draws)

    def check(self, function: AuthorFunction) -> None:
        """Checks the draws of all agents in `function`.

        Raises:
            AuthoringError: two agents, or two functions, drew the same number.
        """
        draws_by_agent, self._in_function = {i: draws for i, draws in self._in_function.items() if draws}, {}
        shared = _shared_numbers(draws_by_agent)
        numbers = {draw.number for draws in draws_by_agent.values() for draw in draws}
        if len(draws_by_agent) > 1 and numbers == shared:
            draw = next(iter(draws_by_agent.values()))[0]
            where = f"all agents use draw number {draw.number} in {describe(function)} and no other number"
            remedy = f"{RULE}. Let one agent draw a value that all share, in an earlier phase"
            raise authoring_error_at(draw.file, draw.line, f"{where}, so they draw the same; {remedy}")
        for i, draws in draws_by_agent.items():
            for draw in draws:
                self._check_draw(function, ALL_AGENTS if draw.number in shared else i, i, draw)

    def _check_draw(self, function: AuthorFunction, owner: int, i: int, draw: Draw) -> None:
        number = draw.number
        agent, before = self._in_step.setdefault(number, (owner, function))
        if agent in (owner, ALL_AGENTS) and before is not function:
            raise self._repeated(function, i, number, f"after {describe(before)}, which gets the same key,")
        agent, before = self._in_run.setdefault((function is self._reset, self._roles, number), (owner, function))
        if agent != owner:
            who = "all agents do" if agent == ALL_AGENTS else f"agent {agent} does"
            what = f"agent {i} uses draw number {number} in {describe(function)}, and {who} in {describe(before)}"
            raise authoring_error_at(draw.file, draw.line, f"{what}: they draw the same; {RULE}")

    def _repeated(self, function: AuthorFunction, i: int, number: int, where: str) -> AuthoringError:
        what = f"agent {i} uses draw number {number} {where} and draws the same value again"
        return authoring_error(function, f"{what}; give each draw of an agent in a step its own number, and normal() two")


def _shared_numbers(draws_by_agent: dict[int, list[Draw]]) -> set[int]:
    """The numbers that all agents drawing in a place draw there, and nowhere else."""
    places: dict[int, set[Place]] = {}
    agents: dict[Place, set[int]] = {}
    users: dict[int, set[int]] = {}
    for i, draws in draws_by_agent.items():
        for draw in draws:
            places.setdefault(draw.number, set()).add(draw[1:])
            agents.setdefault(draw[1:], set()).add(i)
            users.setdefault(draw.number, set()).add(i)
    in_one_place = {number: next(iter(where)) for number, where in places.items() if len(where) == 1}
    return {n for n, place in in_one_place.items() if len(users[n]) > 1 and users[n] == agents[place]}


def describe(function: AuthorFunction) -> str:
    """The name of `function`, which is `reset` or a phase, in messages."""
    return f"phase `{function.__name__}`" if function.__code__.co_argcount == 5 else f"`{function.__name__}`"
