"""Source of searches that keep the K nearest agents in registers: d0, d1, ... are their distances, j0, j1, ... the agents.

The lines are generated, because Numba has no loop over variables.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from gpuvec.engine.compiler.functions import inline_function

f32, i32 = np.float32, np.int32
T = TypeVar("T", float, int)


def initial_lines(places: int, margin: str) -> str:
    """Lines that begin with no agent.

    Args:
        places: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}d{k}, j{k} = infinity, no_agent\n" for k in range(places))


def insert_lines(places: int, margin: str, in_order: bool) -> str:
    """Lines that insert agent j at distance d if it is among the nearest.

    Farther ones move back by selects, without a branch on the place of the new one.

    Args:
        places: K.
        margin: spaces before each line.
        in_order: whether agents come in order of their number, so that an equally near one is farther.
    """
    last, inner = places - 1, margin + "    "
    lines = f"{margin}if d < d{last}:\n" if in_order else f"{margin}if d < infinity and d <= d{last}:\n"
    lines += f"{inner}n = i32(j)\n"
    lines += "".join(
        f"{inner}c{k} = " + (f"d < d{k}\n" if in_order else f"is_nearer(d, n, d{k}, j{k})\n") for k in range(places)
    )
    for k in reversed(range(1, places)):
        lines += f"{inner}d{k} = select_place(c{k}, c{k - 1}, d{k}, d{k - 1}, d)\n"
        lines += f"{inner}j{k} = select_place(c{k}, c{k - 1}, j{k}, j{k - 1}, n)\n"
    return lines + f"{inner}d0, j0 = d if c0 else d0, n if c0 else j0\n"


def store_lines(field: str, places: int, margin: str) -> str:
    """Lines that write agent i's row of a field.

    Args:
        field: its name.
        places: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}s.{field}[i, {k}] = j{k}\n" for k in range(places))


@inline_function
def is_nearer(d: float, j: int, other_d: float, other_j: int) -> bool:
    """Whether agent `j` at distance `d` comes before agent `other_j` at `other_d`: of equally near ones the lower first."""
    return bool(d < other_d or (d == other_d and j < other_j))


@inline_function
def select_place(is_before: bool, is_before_previous: bool, current: T, previous: T, new: T) -> T:
    """What a place holds after an insertion. It is a function, because many branches in one function take long to compile.

    Args:
        is_before: whether the new one is nearer than the one in this place.
        is_before_previous: whether it is nearer than the one in the place before.
        current: what this place holds.
        previous: what the place before holds.
        new: the new one.
    """
    return (previous if is_before_previous else new) if is_before else current


NAMES: dict[str, Any] = {  # that the lines use
    "f32": f32,
    "i32": i32,
    "infinity": f32(np.inf),
    "no_agent": i32(-1),
    "select_place": select_place,
    "is_nearer": is_nearer,
}
