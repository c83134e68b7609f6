"""The search for nearest agents, in registers: each seeker walks all others once and keeps the best in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.jit import device, generated, inline
from gpuvec.spec import Nearest


def search(look: Nearest, agents: int, places: int) -> Any:
    """`search(i, s, p)`: fills row i of the field.

    The `places` best are kept in as many variables; a better one moves the worse ones back by selects, without a branch
    on where it belongs. A later agent passes an earlier one only if it is nearer, so of equally near ones
    the lower comes first.
    """
    kept = range(places)
    source = "def search(i, s, p):\n    if seeks(i, s, p):\n"
    source += "".join(f"        d{k}, j{k} = far, none\n" for k in kept)
    source += f"        for j in range({agents}):\n            d, w = f32(distance(i, j, s, p)), i32(j)\n"
    source += f"            if d < d{places - 1}:\n"
    source += "".join(f"                c{k} = d < d{k}\n" for k in kept)
    for k in reversed(kept[1:]):
        source += f"                d{k} = placed(c{k}, c{k - 1}, d{k}, d{k - 1}, d)\n"
        source += f"                j{k} = placed(c{k}, c{k - 1}, j{k}, j{k - 1}, w)\n"
    source += "                d0, j0 = d if c0 else d0, w if c0 else j0\n"
    source += "".join(f"        s.{look.field}[i, {k}] = j{k}\n" for k in kept)
    source += "    else:\n" + "".join(f"        s.{look.field}[i, {k}] = none\n" for k in kept)
    scope = {"distance": device(look.distance), "far": np.float32(np.inf), "none": np.int32(-1), "placed": placed}
    return inline(generated("search", source, seeks=_seeks(look), f32=np.float32, i32=np.int32, **scope))


@inline
def placed(nearer: bool, before: bool, mine: Any, theirs: Any, new: Any) -> Any:
    """What is in a place now: what was there, the new one if it is `nearer`, or what was in the place before if it is nearer
    than that too. (A function, as the compiler takes long over many branches in one.)
    """
    return (theirs if before else new) if nearer else mine


def _seeks(look: Nearest) -> Any:
    if look.seekers is not None:
        return device(look.seekers)

    @inline
    def all_seek(i: int, s: Any, p: Any) -> bool:
        return True

    return all_seek
