"""The parts of a step: functions that run for each element of an index set, assignments of scalars, and reductions.

An index set has a shape, and its elements are numbered in C order. Three sets always exist: "world" with one element, "agents"
(A,), and "pairs" (A, A), whose element (i, j) belongs to agent i. If `spaces(p)` is by role, each role is a set, too. An
environment declares others with `sets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

WORLD, AGENTS, PAIRS = "world", "agents", "pairs"
"""The names of the sets that every environment with many agents has."""


class Each(NamedTuple):
    """A phase in which a function runs for each element of an index set; `each` creates it."""

    index_set: str
    """The name of the set."""
    function: Callable[..., Any]
    """`function(index, s, key, p)` writes the elements at `index`: an int, or a tuple of ints if the set has several axes. For
    the world it is `function(s, key, p)`, for agents, pairs and roles `function(index, s, action, key, p)`. If spaces are by
    role, functions of agents and pairs have no `action`.
    """


def each(index_set: str, function: Callable[..., Any]) -> Each:
    """Creates a phase that runs a function for each element of an index set.

    The function writes only the elements at its index, in fields of that set, and reads no other element of a field that it
    writes. For the pair (i, j) it receives the action of agent i. For a role, `index` counts its agents, and agent `index`
    also owns its elements of fields of the agents.

    Args:
        index_set: the name of a set of `sets`, "world", "agents" or "pairs", or a role if `spaces(p)` is by role.
        function: `function(index, s, key, p)`; `function(s, key, p)` for the world; `function(index, s, action, key, p)` for
            agents, pairs and roles. If spaces are by role, only functions of roles have an `action`.
    """
    return Each(index_set, function)


class Assign(NamedTuple):
    """A phase that computes scalars of the world; `assign` creates it."""

    fields: tuple[str, ...]
    """The names of the scalar fields that it writes."""
    function: Callable[..., Any]
    """`function(s, key, p)` returns a tuple of one number for each field, or the number of a single field."""
    has_action: bool = False
    """Whether it is `function(s, action, key, p)`, with the action of the only agent; the engine sets this."""


def assign(fields: str | tuple[str, ...], function: Callable[..., Any]) -> Assign:
    """Creates a phase that computes scalars of the world.

    Args:
        fields: the name of a float, int or bool field of the state, or a tuple of names.
        function: `function(s, key, p)` returns the new value, or a tuple of one value for each of several fields.
    """
    return Assign((fields,) if isinstance(fields, str) else tuple(fields), function)


class ByRole(NamedTuple):
    """A function of agents for each of several roles; `MultiAgentEnv` makes it of a dict {role: function}."""

    roles: tuple[str, ...]
    """The names of the roles."""
    functions: tuple[Callable[..., Any], ...]
    """The function of each of these roles, whose argument `i` is the number of an agent within its role."""

    def of(self, role: str) -> Callable[..., Any] | None:
        """Returns the function of a role, or None if there is none.

        Args:
            role: the name of the role.
        """
        return dict(zip(self.roles, self.functions, strict=True)).get(role)


class Reduction(NamedTuple):
    """A phase that combines a value of each element of an index set into one value for the world, or with `at` for each element
    of another set.

    `count_of`, `any_of`, `all_of`, `argmin_of`, `sum_of`, `min_of` and `max_of` create it. Inactive agents count as well. The
    result does not depend on the order in which elements are visited: floats are added in an order that depends only on the
    size of the set.

    With `at` the phase is a scatter. It writes every element of its field, also those to which no element contributes: 0 for a
    count or a sum, False for `any_of`, True for `all_of`, -1 for `argmin_of`, and for `min_of` and `max_of` the largest and the
    smallest number of the type, which is infinite for floats. Floats cannot be added with `at`.
    """

    field: str
    """The name of the state field that the phase writes: an int (`count_of`, `argmin_of`), a bool (`any_of`, `all_of`), or an
    int or a float (`sum_of`, `min_of`, `max_of`). With `at` it is `Ints`, `Bools` or `Floats`, one number for each element of
    the set that it belongs to.
    """
    function: Callable[..., Any]
    """`function(index, s, p)` returns the value of an element: a bool, a float for `argmin_of`, or a number."""
    kind: str
    """How values are combined: "count", "any", "all", "argmin", "sum", "min" or "max"."""
    over: str = AGENTS
    """The name of the set whose elements are combined."""
    at: Callable[..., Any] | None = None
    """`at(index, s, p)` returns the index of the element of the field's set to which an element contributes, an int, or a tuple
    of ints if the set has several axes; negative for none. None for one value for the world.
    """


def phase_function(phase: Any) -> Callable[..., Any]:
    """Returns the author's function of a phase.

    Args:
        phase: a function, or the result of `each`, `assign` or a reduction.
    """
    function: Callable[..., Any] = phase.function if isinstance(phase, Each | Assign | Reduction) else phase
    return function


def first_function(reset: Any) -> Callable[..., Any]:
    """Returns the function `reset` of an environment, or the first one if it is a tuple of phases.

    Args:
        reset: the field of an environment.
    """
    return phase_function(reset[0]) if isinstance(reset, tuple) else reset


def count_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that counts elements.

    Args:
        field: the name of the int field that it writes.
        function: `function(index, s, p) -> bool`, whether the element is counted.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "count", over, at)


def any_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that computes whether a condition is true for any element.

    Args:
        field: the name of the bool field that it writes.
        function: `function(index, s, p) -> bool`, the condition.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "any", over, at)


def all_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that computes whether a condition is true for all elements.

    Args:
        field: the name of the bool field that it writes.
        function: `function(index, s, p) -> bool`, the condition.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "all", over, at)


def argmin_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that finds the element with the smallest value, or -1 if all values are infinite.

    Among elements with equal values the lowest number is the result. In a set with several axes, elements are numbered in C
    order.

    Args:
        field: the name of the int field that it writes.
        function: `function(index, s, p) -> float`, the value of an element.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "argmin", over, at)


def sum_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that adds numbers.

    Args:
        field: the name of the float or int field that it writes; with `at` an `Ints` field.
        function: `function(index, s, p)`, a number of the type of the field.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "sum", over, at)


def min_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that finds the smallest number.

    Args:
        field: the name of the float or int field that it writes.
        function: `function(index, s, p)`, a number of the type of the field.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "min", over, at)


def max_of(field: str, function: Callable[..., Any], over: str = AGENTS, at: Callable[..., Any] | None = None) -> Reduction:
    """Creates a phase that finds the largest number.

    Args:
        field: the name of the float or int field that it writes.
        function: `function(index, s, p)`, a number of the type of the field.
        over: the name of the set.
        at: `at(index, s, p)`, where in the set of the field an element contributes, for one value for each element of that
            set; negative for none. None for one value for the world.
    """
    return Reduction(field, function, "max", over, at)
