"""Checks the rule of phases: an element of a set writes only its own numbers, and reads others only in fields that none writes.

The rule is checked in two ways. Every access is logged, so that a line that breaks the rule is found when it first runs,
whatever the values. In addition, each element runs alone on a copy of the state, then all run in order and in reverse order,
and the results must be bit-identical. This also finds accesses that are not logged, such as `s.x.sum()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.compiler.types import EnvState
from gpuvec.engine.layout.role_functions import role_of_agent
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.phases import AGENTS, PAIRS, WORLD, Reduction, first_function
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.draw_check import AgentDraws, describe
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import Access, AccessLog, checked_state
from gpuvec.testing.reference.checked_draws import record_draws
from gpuvec.testing.reference.python_reference import PhaseCalls, PythonReference

SPLIT = "split it into two phases, or read a copy of {} that an earlier phase made"
AuthorFunction = Callable[..., Any]
Element = tuple[int, ...]  # the index of an element of a set; () for the world


class OwnershipCheck:
    """Runs functions of a `PythonReference` for all elements of a set, alone and in several orders, and checks every access.

    Args:
        env: the environment.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self.log: AccessLog = []
        self.num_accesses = 0  # in logs that were cleared
        self.reference = PythonReference(env, lambda s: self._view(s, self.log))
        schema = self.reference.schema
        self._num_set_axes = {k: len(schema.sets[name]) for k, name in schema.field_sets.items()}
        # {(function, field): a write}, and {(function, field): (element, its read of what belongs to another one)}.
        self._writes: dict[tuple[AuthorFunction, str], Access] = {}
        self._reads_of_others: dict[tuple[AuthorFunction, str], tuple[Element, Access]] = {}
        self._draws: dict[str, AgentDraws] = {}  # {set: the numbers that its elements draw}
        self._in_reset, self._fields_written = False, set(ENGINE_FIELDS)

    def _view(self, s: EnvState, log: AccessLog | None = None) -> EnvState:
        return checked_state(s, log, self._num_set_axes)

    def begin_step(self, s: EnvState, is_reset: bool = False) -> None:
        """Begins a step or a reset, which has another key.

        Args:
            s: the state before.
            is_reset: whether it is a reset, which has to write a field before it reads it.
        """
        for draws in self._draws.values():
            draws.begin_step(s.role.tobytes() if self.reference.schema.has_role_field else b"")
        self._in_reset, self._fields_written = is_reset, set(ENGINE_FIELDS)

    def run(self, calls: PhaseCalls, s: EnvState) -> EnvState:
        """Runs the function of a phase for all elements of its set.

        Args:
            calls: the calls of the function.
            s: the state before, which is not changed.

        Returns:
            The state after the phase.

        Raises:
            AuthoringError: elements depend on each other, or one of them uses a draw number twice.
        """
        reference, after = self.reference, self.reference.copy(s)
        schema, function, fields_before = reference.schema, calls.function, set(self._fields_written)
        agent_draws = self._draws.setdefault(calls.index_set, AgentDraws(first_function(reference.env.reset), calls.index_set))
        with record_draws() as draws:
            for number, index in enumerate(calls.indices):
                alone, element = reference.copy(s), _element(index)
                self.clear_log()
                draws.clear()
                call_checked(function, *index, self._view(alone, self.log), *calls.arguments(number))
                self._check_accesses(calls, element, fields_before)
                agent_draws.add(function, number, draws)
                for name in schema.array_fields:
                    for other in self.differing_elements(name, s, alone):
                        if not self._owns(calls.index_set, element, name, other):
                            raise authoring_error(function, self._write_to_other(calls, element, name, other))
                        getattr(after, name)[other] = getattr(alone, name)[other]
            agent_draws.check(function)
            self._check_orders(calls, s, after)
        self.clear_log()
        return after

    def _owns(self, index_set: str, element: Element, field: str, other: Element) -> bool:
        """Whether an element of a set may write element `other` of the set of a field.

        Agent i also owns the pairs (i, j), and agent i of a role its elements of fields of the agents and of pairs.
        """
        schema = self.reference.schema
        field_set = schema.field_sets[field]
        if index_set in schema.role_schemas and field_set != index_set:
            index_set, element = AGENTS, (schema.role_schemas[index_set].first_agent + element[0],)
        if index_set == AGENTS and field_set == PAIRS:
            return other[0] == element[0]
        return field_set == index_set and other == element

    def belongs_to_agent(self, i: int, access: Access) -> bool:
        """Returns whether an access is to an element of agent i, in a field of the agents or of its role.

        Args:
            i: the index among all agents.
            access: the access.
        """
        schema = self.reference.schema
        field_set = schema.field_sets[access.field]
        if field_set in schema.role_schemas:
            return (field_set, access.element) == (role_of_agent(schema.roles, i)[0], (role_of_agent(schema.roles, i)[1],))
        return access.element == (i,)

    def differing_elements(self, name: str, a: EnvState, b: EnvState) -> list[Element]:
        """Returns the elements of a field's set whose numbers are not bit-identical in two states.

        Args:
            name: the name of the field.
            a: a state.
            b: another state.
        """
        x, y = getattr(a, name), getattr(b, name)
        if x.tobytes() == y.tobytes():
            return []
        shape = x.shape[: self._num_set_axes[name]]
        bytes_of = [np.ascontiguousarray(v).view(np.uint8).reshape(*shape, -1) for v in (x, y)]
        return [tuple(element) for element in np.argwhere((bytes_of[0] != bytes_of[1]).any(-1)).tolist()]

    def _check_orders(self, calls: PhaseCalls, s: EnvState, after: EnvState) -> None:
        """Raises AuthoringError unless all elements, in order and in reverse order, change `s` to the state `after`."""
        reference, function = self.reference, calls.function
        numbers = range(len(calls.indices))
        for order in (numbers, reversed(numbers)):
            together = reference.copy(s)
            view = self._view(together)
            for number in order:
                call_checked(function, *calls.indices[number], view, *calls.arguments(number))
            for name in reference.schema.array_fields:
                for element in self.differing_elements(name, after, together):
                    a, b = getattr(after, name)[element], getattr(together, name)[element]
                    place = name_element(name, element)
                    problem = f"{describe(function)} gives {place} the value {a} or {b}, depending on the order of agents"
                    raise authoring_error(function, f"{problem}: it reads what it also writes; {SPLIT.format('that')}")

    def check_scatter(self, phase: Reduction) -> None:
        """Checks the logged accesses of a reduction with `at`, whose functions must not read the field that it writes.

        Args:
            phase: the reduction.

        Raises:
            AuthoringError: one of them reads it.
        """
        for access in self.log:
            if access.field == phase.field:
                problem = f"{phase.kind}_of({phase.field!r}, ..., at=...) reads {name_element(access.field, access.element)}"
                remedy = f"which it writes at the same time: read a copy of {phase.field} that an earlier phase made"
                raise authoring_error_at(access.file, access.line, f"{problem}, {remedy}")
        self._fields_written.add(phase.field)

    def clear_log(self) -> None:
        """Clears the log."""
        self.num_accesses += len(self.log)
        self.log.clear()

    def _check_accesses(self, calls: PhaseCalls, element: Element, fields_before: set[str]) -> None:
        """Checks the logged accesses of an element; a reset has to write a field before it reads it."""
        function, fields_written = calls.function, set(fields_before)
        for access in self.log:
            field, other = access.field, access.element
            is_own = self._owns(calls.index_set, element, field, other)
            if access.writes and not is_own:
                raise authoring_error_at(access.file, access.line, self._write_to_other(calls, element, field, other))
            if self._in_reset and not access.writes and field not in fields_written:
                problem = (
                    f"reset reads {name_element(field, other)} for {self._name(calls, element)} before it writes {field}, so "
                    "the value is of the last episode"
                )
                raise authoring_error_at(access.file, access.line, f"{problem}; compute it from the parameters and draws alone")
            if access.writes:
                fields_written.add(field)
                self._writes.setdefault((function, field), access)
            elif not is_own:
                self._reads_of_others.setdefault((function, field), (element, access))
        self._fields_written |= fields_written
        for function_and_field in self._reads_of_others.keys() & self._writes.keys():
            (reader, read), field = self._reads_of_others[function_and_field], function_and_field[1]
            place = name_element(field, read.element)
            problem = f"{describe(function)} reads {place} for {self._name(calls, reader)}, and writes {field} too"
            line = self._writes[function_and_field].line
            raise authoring_error_at(read.file, read.line, f"{problem}, in line {line}; {SPLIT.format(field)}")

    @staticmethod
    def _name(calls: PhaseCalls, element: Element) -> str:
        """The name of an element for messages, such as "agent 3" or "(1, 2) of cells"."""
        if calls.index_set == AGENTS:
            return f"agent {element[0]}"
        return "the world" if calls.index_set == WORLD else f"{name_element('', element)[1:-1]} of {calls.index_set!r}"

    def _write_to_other(self, calls: PhaseCalls, element: Element, field: str, other: Element) -> str:
        field_set = self.reference.schema.field_sets[field]
        place, subject = name_element(field, other), self._name(calls, element)
        if field_set == AGENTS and calls.index_set in self.reference.schema.role_schemas:
            first = self.reference.schema.role_schemas[calls.index_set].first_agent
            return (
                f"{subject} writes {place} in {describe(calls.function)}, and may write its own element only, which is "
                f"{field}[{first} + i] for agent i of this role"
            )
        if field_set != calls.index_set:
            return (
                f"{subject} writes {place} in {describe(calls.function)}; {field} belongs to {field_set!r}, so only a phase "
                f"each({field_set!r}, ...) may write it: record here what it needs for that, and read it there"
            )
        if calls.index_set == AGENTS:
            (i,), (j,) = element, other
            return (
                f"agent {i} writes {field}[{j}] in {describe(calls.function)}, and may write its own elements only: let agent "
                f"{j} write it in a later phase; record what it needs for that in a field of agent {i} here, and read it there"
            )
        return (
            f"{subject} writes {place} in {describe(calls.function)}, and may write its own element only: {SPLIT.format(field)}"
        )


def name_element(field: str, element: Element) -> str:
    """Returns the place of an element in a field, such as "grass[1, 2]".

    Args:
        field: the name of the field.
        element: the index in its set.
    """
    return f"{field}[{', '.join(map(str, element))}]" if element else field


def _element(index: tuple[Any, ...]) -> Element:
    """The index of an element as plain integers, from the index arguments of a call."""
    if not index:
        return ()
    return tuple(map(int, index[0])) if isinstance(index[0], tuple) else (int(index[0]),)
