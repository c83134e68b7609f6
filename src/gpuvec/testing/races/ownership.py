"""Checks the rule of phases: an agent writes only its own elements, and reads others only in fields that no agent writes.

The rule is checked in two ways. Every access is logged, so that a line that breaks the rule is found when it first runs,
whatever the values. In addition, each agent runs alone on a copy of the state, then all agents run in order and in reverse
order, and the results must be bit-identical. This also finds accesses that are not logged, such as `s.x.sum()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.compiler.types import EnvState
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.draw_check import AgentDraws, describe
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import Access, AccessLog, checked_state
from gpuvec.testing.reference.checked_draws import record_draws
from gpuvec.testing.reference.python_reference import PythonReference

SPLIT = "split it into two phases, or read a copy of {} that an earlier phase made"
AuthorFunction = Callable[..., Any]


class OwnershipCheck:
    """Runs functions of a `PythonReference` for all agents, alone and in several orders, and checks every access.

    Args:
        env: the environment.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self.log: AccessLog = []
        self.num_accesses = 0  # in logs that were cleared
        self.reference = PythonReference(env, lambda s: checked_state(s, self.log))
        # {(function, field): a write}, and {(function, field): (agent, its read of an element of another agent)}.
        self._writes: dict[tuple[AuthorFunction, str], Access] = {}
        self._reads_of_others: dict[tuple[AuthorFunction, str], tuple[int, Access]] = {}
        self._draws = AgentDraws(self.reference.env.reset)

    def begin_step(self, s: EnvState) -> None:
        """Begins a step or a reset, which has another key.

        Args:
            s: the state before.
        """
        self._draws.begin_step(s.role.tobytes() if self.reference.schema.roles else b"")

    def run(self, function: AuthorFunction, s: EnvState, arguments: Callable[[int], tuple[Any, ...]]) -> EnvState:
        """Runs `function(i, s, *arguments(i))` for all agents.

        Args:
            function: `reset` or a phase.
            s: the state before, which is not changed.
            arguments: returns the further arguments for agent i.

        Returns:
            The state after the function.

        Raises:
            AuthoringError: agents depend on each other, or one of them uses a draw number twice.
        """
        reference, after = self.reference, self.reference.copy(s)
        with record_draws() as draws:
            for i in reference.agents:
                alone = reference.copy(s)
                self.clear_log()
                draws.clear()
                call_checked(function, i, checked_state(alone, self.log), *arguments(i))
                self._check_accesses(function, i)
                self._draws.add(function, i, draws)
                for name in reference.schema.array_fields:
                    changed = [j for j in differing_agents(getattr(s, name), getattr(alone, name)) if j != i]
                    if changed:
                        raise authoring_error(function, _write_to_other(function, i, name, changed[0]))
                    getattr(after, name)[i] = getattr(alone, name)[i]
            self._draws.check(function)
            self._check_orders(function, s, after, arguments)
        self.clear_log()
        return after

    def _check_orders(
        self, function: AuthorFunction, s: EnvState, after: EnvState, arguments: Callable[[int], tuple[Any, ...]]
    ) -> None:
        """Raises AuthoringError unless all agents, in order and in reverse order, change `s` to the state `after`."""
        reference = self.reference
        for order in (reference.agents, reversed(reference.agents)):
            together = reference.copy(s)
            view = checked_state(together)
            for i in order:
                call_checked(function, i, view, *arguments(i))
            for name in reference.schema.array_fields:
                for j in differing_agents(getattr(after, name), getattr(together, name)):
                    a, b = getattr(after, name)[j], getattr(together, name)[j]
                    problem = f"{describe(function)} gives {name}[{j}] the value {a} or {b}, depending on the order of agents"
                    raise authoring_error(function, f"{problem}: it reads what it also writes; {SPLIT.format('that')}")

    def clear_log(self) -> None:
        """Clears the log."""
        self.num_accesses += len(self.log)
        self.log.clear()

    def _check_accesses(self, function: AuthorFunction, i: int) -> None:
        """Checks the logged accesses of agent i; `reset` has to write a field before it reads it."""
        readable = set(ENGINE_FIELDS)
        for access in self.log:
            field, j = access.field, access.agent
            if access.writes and j != i:
                raise authoring_error_at(access.file, access.line, _write_to_other(function, i, field, j))
            if function is self.reference.env.reset and not access.writes and field not in readable:
                problem = (
                    f"reset reads {field}[{j}] for agent {i} before it writes {field}, so the value is of the last episode"
                )
                raise authoring_error_at(access.file, access.line, f"{problem}; compute it from the parameters and draws alone")
            if access.writes:
                readable.add(field)
                self._writes.setdefault((function, field), access)
            elif j != i:
                self._reads_of_others.setdefault((function, field), (i, access))
        for function_and_field in self._reads_of_others.keys() & self._writes.keys():
            (reader, read), field = self._reads_of_others[function_and_field], function_and_field[1]
            problem = f"{describe(function)} reads {field}[{read.agent}] for agent {reader}, and writes {field} too"
            line = self._writes[function_and_field].line
            raise authoring_error_at(read.file, read.line, f"{problem}, in line {line}; {SPLIT.format(field)}")


def differing_agents(a: NDArray[Any], b: NDArray[Any]) -> list[int]:
    """Returns the agents whose elements are not bit-identical.

    Args:
        a: (A, ...) array.
        b: (A, ...) array of the same dtype.
    """
    if a.tobytes() == b.tobytes():
        return []
    unequal = a.view(np.uint8).reshape(len(a), -1) != b.view(np.uint8).reshape(len(b), -1)
    agents: list[int] = np.flatnonzero(unequal.any(1)).tolist()
    return agents


def _write_to_other(function: AuthorFunction, i: int, field: str, j: int) -> str:
    return (
        f"agent {i} writes {field}[{j}] in {describe(function)}, and may write its own elements only: let agent {j} "
        f"write it in a later phase; record what it needs for that in a field of agent {i} here, and read it there"
    )
