"""The rule of draw numbers among agents: all agents of an environment draw with one key, so each needs numbers of its own.

One number may be drawn by all agents in one place, as what they share, if there they also draw numbers of their own: where
the others were put, for example. Without any of its own an agent would be a copy of the others.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.testing.reference.checked_draws import Draw

ALL = -1  # in the place of an agent: all agents share the number
OWN = "agent i may use k * i to k * i + k - 1, with one k in all phases"


class DrawNumbers:
    """The numbers that were drawn, by whom and where."""

    def __init__(self, reset: Any) -> None:
        self._reset = reset
        self._in_step: dict[int, tuple[int, Any]] = {}  # {number: (the agent, the function)}
        # The same of all resets, and of all steps, with equal roles: agents may have numbers by their role.
        self._ever: dict[tuple[bool, bytes, int], tuple[int, Any]] = {}
        self._roles = b""
        self._now: dict[int, list[Draw]] = {}  # {agent: draws} of the function that runs

    def begin_step(self, roles: bytes) -> None:
        """The key is another one, with which all numbers may be drawn again; agents have these roles."""
        self._in_step.clear()
        self._roles = roles

    def add(self, function: Any, i: int, draws: list[Draw]) -> None:
        """Notes what agent i drew in `function`.

        Raises:
            AuthoringError: a number twice.
        """
        numbers = [draw.number for draw in draws]
        for number in numbers:
            if numbers.count(number) > 1:
                raise self._again(function, i, number, "twice")
        self._now[i] = list(draws)

    def check(self, function: Any) -> None:
        """Looks at what all agents drew in `function`.

        Raises:
            AuthoringError: a number of two agents, or of two functions.
        """
        drawn, self._now = {i: draws for i, draws in self._now.items() if draws}, {}
        shared = _shared(drawn)
        numbers = {draw.number for draws in drawn.values() for draw in draws}
        if len(drawn) > 1 and numbers == shared:
            draw = next(iter(drawn.values()))[0]
            what = (
                f"all agents use draw number {draw.number} in {called(function)} and none of their own, so they draw the same"
            )
            raise authoring_error_at(
                draw.file, draw.line, f"{what}; {OWN}. What they share let one agent draw, in an earlier phase"
            )
        for i, draws in drawn.items():
            for draw in draws:
                self._note(function, ALL if draw.number in shared else i, i, draw)

    def _note(self, function: Any, owner: int, i: int, draw: Draw) -> None:
        number = draw.number
        agent, before = self._in_step.setdefault(number, (owner, function))
        if agent in (owner, ALL) and before is not function:
            raise self._again(function, i, number, f"after {called(before)}, which gets the same key,")
        agent, before = self._ever.setdefault((function is self._reset, self._roles, number), (owner, function))
        if agent != owner:
            whose = "all agents" if agent == ALL else f"agent {agent}"
            what = f"agent {i} uses draw number {number} in {called(function)}, and {whose} in {called(before)}"
            raise authoring_error_at(draw.file, draw.line, f"{what}: they draw the same; {OWN}")

    def _again(self, function: Any, i: int, number: int, where: str) -> Exception:
        what = f"agent {i} uses draw number {number} {where} and draws the same again"
        return authoring_error(function, f"{what}; give each draw of an agent a number of its own in a step, normal() two")


def _shared(drawn: dict[int, list[Draw]]) -> set[int]:
    """The numbers that all agents who draw in a place draw there, and nobody elsewhere."""
    places: dict[int, set[tuple[str, int, int]]] = {}
    agents: dict[tuple[str, int, int], set[int]] = {}
    users: dict[int, set[int]] = {}
    for i, draws in drawn.items():
        for draw in draws:
            places.setdefault(draw.number, set()).add(draw[1:])
            agents.setdefault(draw[1:], set()).add(i)
            users.setdefault(draw.number, set()).add(i)
    alone = {number: next(iter(where)) for number, where in places.items() if len(where) == 1}
    return {number for number, place in alone.items() if len(users[number]) > 1 and users[number] == agents[place]}


def called(function: Any) -> str:
    """What `reset`, or a phase, is called in messages."""
    return f"phase `{function.__name__}`" if function.__code__.co_argcount == 5 else f"`{function.__name__}`"
