"""The search for nearest agents, in registers: each seeker walks all others once and keeps the best in order (design/0020)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.spec import NearestNeighbors

f32, i32 = np.float32, np.int32
MOST = 1024  # agents, beyond which what a label has left of a distance hardly tells two apart
TOGETHER = 8  # agents whose distances are put in order at once
INFINITE = 0x7F800000  # the bits of an infinite float32, which others of that sign do not reach


class Look(NamedTuple):
    """The functions of composed code that search for one agent; a row of the field holds the places of what it finds."""

    seeks: Any  # seeks(i, s, p) -> whether agent i searches
    nobody: Any  # nobody(i, s): its row says that there is nobody
    among_all: Any  # among_all(i, s, p): its row, by a walk over all agents
    at_once: Any  # at_once(i, s, p): the same by labels, without a branch for each agent (of no more than `MOST`)


def search(look: NearestNeighbors, agents: int, places: int, array_ops: ArrayOps) -> Look:
    """Their versions for `look` with so many `places`."""
    kept, field = range(places), f"s.{look.field}"
    scope = {
        "distance": device_function(look.distance),
        "assume_nonnegative": array_ops.assume_nonnegative,
        "after": array_ops.after,
    } | WALK

    empty = "".join(f"    {field}[i, {k}] = i32(-1)\n" for k in kept)
    nobody = inline_function(generate_function("nobody", f"def nobody(i, s):\n{empty}", i32=i32))

    walk = "def among_all(i, s, p):\n" + nobody_yet(places, "    ") + f"    for j in range({agents}):\n"
    walk += "        d = f32(distance(i, j, s, p))\n" + keep(places, "        ", in_order=True)
    walk += written(look.field, places, "    ")
    among_all = inline_function(generate_function("among_all", walk, **scope))
    if agents > MOST:
        return Look(_seeks(look), nobody, among_all, among_all)

    low = (1 << max(1, (agents - 1).bit_length())) - 1  # the bits of a label that tell the agent
    rest = agents % TOGETHER
    # A place more than asked for tells whether the last one is certain.
    names = [f"k{k}" for k in range(places + 1)]

    # A label is a distance's bits but for the last few, which tell the agent: all differ, and their order is that of the
    # distances unless two next to each other have the same bits left. Then a walk finds the row.
    def block(margin: str, count: int) -> str:
        """Sifts `count` agents from j on."""
        lines = [f"n{n} = after(j, {n})" for n in range(count)]
        lines += [f"l{n} = pack_key(distance(i, n{n}, s, p), {low}, n{n})" for n in range(count)]
        labels = [f"l{n}" for n in range(count)] + ["last"] * (TOGETHER - count)
        lines.append(f"best = merge_k_smallest(best, ({', '.join(labels)}))")
        return "".join(f"{margin}{line}\n" for line in lines)

    source = f"def at_once(i, s, p):\n    best, j = ({'last, ' * len(names)}), zero\n"
    source += block("    ", rest) + f"    j = i32({rest})\n" if rest else ""
    source += f"    while j < {agents}:\n{block('        ', TOGETHER)}        j = i32(j + i32({TOGETHER}))\n"
    source += f"    {', '.join(names)} = best\n"
    clear = [f"(({a} ^ {b}) > low) | ({a} >= infinite)" for a, b in pairwise(names)]
    source += "    certain = (k0 >= zero)" + "".join(f" & ({c})" for c in clear) + "\n"
    source += "".join(f"    {field}[i, {k}] = k{k} & low if k{k} < infinite else i32(-1)\n" for k in kept)
    source += "    if not certain:\n        among_all(i, s, p)\n"
    constants = {"last": i32(2**31 - 1), "low": i32(low), "infinite": i32(INFINITE), "zero": i32(0)}
    scope |= {"pack_key": array_ops.pack_key, "merge_k_smallest": array_ops.merge_k_smallest, "among_all": among_all}
    return Look(_seeks(look), nobody, among_all, inline_function(generate_function("at_once", source, **scope, **constants)))


# What a walk over agents keeps: d0, d1, ... are the distances of the nearest so far, j0, j1, ... their numbers. Generated code,
# as there is no loop over variables.


def nobody_yet(places: int, margin: str) -> str:
    """Lines that begin with nobody."""
    return "".join(f"{margin}d{k}, j{k} = far, none\n" for k in range(places))


def keep(places: int, margin: str, in_order: bool) -> str:
    """Lines that take agent j at distance d in if it is among the nearest: worse ones move back by selects, without a branch
    on where it belongs. If agents come in order, an equally near one is no better.
    """
    last, inner = places - 1, margin + "    "
    lines = f"{margin}if d < d{last}:\n" if in_order else f"{margin}if d < far and d <= d{last}:\n"
    lines += f"{inner}n = i32(j)\n"
    lines += "".join(f"{inner}c{k} = " + (f"d < d{k}\n" if in_order else f"nearer(d, n, d{k}, j{k})\n") for k in range(places))
    for k in reversed(range(1, places)):
        lines += f"{inner}d{k} = placed(c{k}, c{k - 1}, d{k}, d{k - 1}, d)\n"
        lines += f"{inner}j{k} = placed(c{k}, c{k - 1}, j{k}, j{k - 1}, n)\n"
    return lines + f"{inner}d0, j0 = d if c0 else d0, n if c0 else j0\n"


def written(field: str, places: int, margin: str) -> str:
    """Lines that write agent i's row."""
    return "".join(f"{margin}s.{field}[i, {k}] = j{k}\n" for k in range(places))


@inline_function
def nearer(d: Any, j: int, other: Any, k: int) -> bool:
    """Whether agent j at distance d comes before agent k at the other."""
    return bool(d < other or (d == other and j < k))


@inline_function
def placed(nearer: bool, before: bool, mine: Any, theirs: Any, new: Any) -> Any:
    """What is in a place now: what was there, the new one if it is `nearer`, or what was in the place before if it is nearer
    than that too. (A function, as the compiler takes long over many branches in one.)
    """
    return (theirs if before else new) if nearer else mine


WALK = {"f32": f32, "i32": i32, "far": f32(np.inf), "none": i32(-1), "placed": placed, "nearer": nearer}  # what they call


def _seeks(look: NearestNeighbors) -> Any:
    if look.mask is not None:
        return device_function(look.mask)

    @inline_function
    def all_seek(i: int, s: Any, p: Any) -> bool:
        return True

    return all_seek
