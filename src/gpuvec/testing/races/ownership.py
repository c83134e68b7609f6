"""The rule of phases: agents write their own elements alone, and read nobody else's of a field that the phase writes.

It is looked at in two ways. Every access is logged, so a line that breaks the rule is found when it first runs, whatever
the values. And each agent runs alone against a snapshot, then all in order and in reverse, which must give the same bits:
that also finds what no log sees, `s.x.sum()` for example. Of two agents one comes first in one order, the other in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.draw_check import DrawNumbers, called
from gpuvec.testing.reference.checked_arrays import Access, watched
from gpuvec.testing.reference.checked_draws import recorded_draws
from gpuvec.testing.reference.python_reference import PythonReference, plainly

SPLIT = "split it into two phases, or read a copy of {} that an earlier phase made"


class Ownership:
    """A world whose phases are run in every way that must not matter."""

    def __init__(self, env: MultiAgentEnv) -> None:
        self.log: list[Access] = []
        self.accesses = 0  # so far
        self.world = PythonReference(env, lambda s: watched(s, self.log))
        self._writes: dict[tuple[Any, str], Access] = {}  # by function and field: a write, and a read of another agent's
        self._reads: dict[tuple[Any, str], tuple[int, Access]] = {}
        self._draws = DrawNumbers(self.world.env.reset)

    def begin_step(self, s: Any) -> None:
        """A step or a reset from state `s`: draws may have any numbers again."""
        self._draws.begin_step(s.role.tobytes() if self.world.schema.roles else b"")

    def run(self, function: Any, s: Any, arguments: Callable[[int], tuple[Any, ...]]) -> Any:
        """The state after `function(i, s, *arguments(i))` of all agents; `s` stays as it is.

        Raises:
            AuthoringError: agents that depend on each other, or a draw number that one of them uses twice.
        """
        world, after = self.world, self.world.copy(s)
        names = world.schema.array_fields
        with recorded_draws() as draws:
            for i in world.agents:
                alone = world.copy(s)
                self.forget()
                draws.clear()
                plainly(function, i, watched(alone, self.log), *arguments(i))
                self._check_accesses(function, i)
                self._draws.add(function, i, draws)
                for name in names:
                    changed = [j for j in differing(getattr(s, name), getattr(alone, name)) if j != i]
                    if changed:
                        raise authoring_error(function, _foreign_write(function, i, name, changed[0]))
                    getattr(after, name)[i] = getattr(alone, name)[i]
            self._draws.check(function)
            for order in (world.agents, reversed(world.agents)):
                together = world.copy(s)
                shown = watched(together)
                for i in order:
                    plainly(function, i, shown, *arguments(i))
                for name in names:
                    for j in differing(getattr(after, name), getattr(together, name)):
                        a, b = getattr(after, name)[j], getattr(together, name)[j]
                        what = f"{called(function)} gives {name}[{j}] the value {a} or {b}, by the order in which agents go"
                        raise authoring_error(function, f"{what}: it reads what it also writes; {SPLIT.format('that')}")
        self.forget()
        return after

    def forget(self) -> None:
        """Begins another log."""
        self.accesses += len(self.log)
        self.log.clear()

    def _check_accesses(self, function: Any, i: int) -> None:
        """Whether what is logged of agent i is allowed; `reset` has to write what it reads."""
        before = set(ENGINE_FIELDS)
        for access in self.log:
            field, j = access.field, access.agent
            if access.writes and j != i:
                raise authoring_error_at(access.file, access.line, _foreign_write(function, i, field, j))
            if function is self.world.env.reset and not access.writes and field not in before:
                what = f"reset reads {field}[{j}] for agent {i} before it writes {field}, so it is the last episode's"
                raise authoring_error_at(access.file, access.line, f"{what}; begin from the parameters and draws alone")
            if access.writes:
                before.add(field)
                self._writes.setdefault((function, field), access)
            elif j != i:
                self._reads.setdefault((function, field), (i, access))
        for place in self._reads.keys() & self._writes.keys():
            (reader, read), field = self._reads[place], place[1]
            what = f"{called(function)} reads {field}[{read.agent}] for agent {reader}, and writes {field} too"
            raise authoring_error_at(read.file, read.line, f"{what}, in line {self._writes[place].line}; {SPLIT.format(field)}")


def differing(a: Any, b: Any) -> list[int]:
    """The agents whose elements are not the same bits."""
    if a.tobytes() == b.tobytes():
        return []
    unequal = a.view(np.uint8).reshape(len(a), -1) != b.view(np.uint8).reshape(len(b), -1)
    found: list[int] = np.flatnonzero(unequal.any(1)).tolist()
    return found


def _foreign_write(function: Any, i: int, field: str, j: int) -> str:
    return (
        f"agent {i} writes {field}[{j}] in {called(function)}: let agent {j} write it itself, in a later phase; record here, "
        f"in a field of agent {i}'s own, what it needs for that, and gather it there"
    )
