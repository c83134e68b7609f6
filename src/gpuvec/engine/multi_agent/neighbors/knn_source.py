"""Source of searches that keep the K nearest agents in registers: d0, d1, ... are their distances, j0, j1, ... the agents.

The lines are generated, because Numba has no loop over variables. Element k of the result is (dk, jk).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from gpuvec.engine.compiler.functions import inline_function

f32, i32 = np.float32, np.int32
T = TypeVar("T", float, int)


def initial_lines(num_nearest: int, margin: str) -> str:
    """Returns lines that initialise all elements to no agent.

    Args:
        num_nearest: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}d{k}, j{k} = infinity, no_agent\n" for k in range(num_nearest))


def insert_lines(num_nearest: int, margin: str, in_order: bool) -> str:
    """Returns lines that insert agent j at distance d if it is among the K nearest.

    Farther agents move by selects, without a branch on the position of the new agent.

    Args:
        num_nearest: K.
        margin: spaces before each line.
        in_order: whether agents are inserted in ascending order, so that of equally near ones the new agent comes last.
    """
    last, inner = num_nearest - 1, margin + "    "
    lines = f"{margin}if d < d{last}:\n" if in_order else f"{margin}if d < infinity and d <= d{last}:\n"
    lines += f"{inner}n = i32(j)\n"
    lines += "".join(
        f"{inner}c{k} = " + (f"d < d{k}\n" if in_order else f"is_nearer(d, n, d{k}, j{k})\n") for k in range(num_nearest)
    )
    for k in reversed(range(1, num_nearest)):
        lines += f"{inner}d{k} = select_element(c{k}, c{k - 1}, d{k}, d{k - 1}, d)\n"
        lines += f"{inner}j{k} = select_element(c{k}, c{k - 1}, j{k}, j{k - 1}, n)\n"
    return lines + f"{inner}d0, j0 = d if c0 else d0, n if c0 else j0\n"


def store_lines(field: str, num_nearest: int, margin: str) -> str:
    """Returns lines that write agent i's row of a field.

    Args:
        field: the name of the field.
        num_nearest: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}s.{field}[i, {k}] = j{k}\n" for k in range(num_nearest))


@inline_function
def is_nearer(d: float, j: int, other_d: float, other_j: int) -> bool:
    """Returns whether agent `j` at distance `d` comes before `other_j` at `other_d`; of equally near ones the lower does."""
    return bool(d < other_d or (d == other_d and j < other_j))


@inline_function
def select_element(is_before: bool, is_before_previous: bool, current: T, previous: T, new: T) -> T:
    """Returns the value of an element after an insertion.

    It is a function of its own, because many branches in one function take long to compile.

    Args:
        is_before: whether the new agent is nearer than the agent of this element.
        is_before_previous: whether the new agent is nearer than the agent of the element before.
        current: the value of this element.
        previous: the value of the element before.
        new: the value of the new agent.
    """
    return (previous if is_before_previous else new) if is_before else current


# The names that the lines use.
SOURCE_NAMES: dict[str, Any] = {
    "f32": f32,
    "i32": i32,
    "infinity": f32(np.inf),
    "no_agent": i32(-1),
    "select_element": select_element,
    "is_nearer": is_nearer,
}
