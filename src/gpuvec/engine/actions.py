"""Actions in composed code: read as authors get them, and looked at for faults."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.batch import Actions, Variant
from gpuvec.engine.jit import generated, inline
from gpuvec.engine.memory import Access


def early(a: Actions, variant: Variant, access: Access) -> tuple[Any, Any]:
    """`fetch(b, w, v, u)`: action v of all into place u of `w.actions`, before it is needed; `fetched(w, u)` as `action`."""
    scope = {"load": _fetch(variant, access), "raw": variant.action_dtype, "dtype": a.dtype}
    count = max(1, a.components)
    fetch = "def fetch(b, w, v, u):\n"
    fetch += "".join(
        f"    w.actions[{count} * u + {k}] = dtype(load(b.action, {count} * v + {k}, raw))\n" for k in range(count)
    )
    values = [f"w.actions[{count} * u + {k}]" for k in range(count)]
    fetched = f"def fetched(w, u):\n    return {f'({chr(44).join(values)},)' if a.components else values[0]}\n"
    return inline(generated("fetch", fetch, **scope)), inline(generated("fetched", fetched))


def _fetch(variant: Variant, access: Access) -> Any:
    """How an action is read: where it is looked at besides, an ordinary load is the same one for both."""
    return access.load if variant.validate else access.fetch


def bounds(space: gym.Space[Any]) -> tuple[list[Any], list[Any]]:
    """(least, greatest) of each component of an action, both included."""
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.start)], [int(space.start + space.n) - 1]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return list(map(int, space.start)), list(map(int, space.start + space.nvec - 1))
    assert isinstance(space, gym.spaces.Box), "there are no others"
    return list(map(float, space.low)), list(map(float, space.high))


def actions(space: gym.Space[Any], a: Actions, variant: Variant, access: Access) -> tuple[Any, Any]:
    """`action(b, u)`: a scalar or a tuple, and `fault(b, u)`, which reports one that the space does not allow.

    `u` counts the rows of actions: envs, or agents of all envs. A report is u << 32 | what was given.
    """
    scope = {
        "load": access.load, "fetch": _fetch(variant, access), "lowest": access.lowest,
        "raw": variant.action_dtype, "dtype": a.dtype,
        "i64": np.int64, "u32": np.uint32, "u64": np.uint64, "inf": np.float32(np.inf),
    }  # fmt: skip
    if a.components == 0:
        source, at = "def action(b, u):\n    return dtype(fetch(b.action, u, raw))\n", ["u"]
    else:
        at = [f"{a.components} * u + {k}" for k in range(a.components)]
        source = f"def action(b, u):\n    return ({''.join(f'dtype(fetch(b.action, {k}, raw)), ' for k in at)})\n"
    lows, highs = bounds(space)
    check = "def fault(b, u):\n"
    for k, index in enumerate(at):
        check += f"    a = load(b.action, {index}, raw)\n"
        if a.discrete:
            check += f"    if i64(a) < {lows[k]} or i64(a) > {highs[k]}:\n"
            check += f"        given = u64(u32(min(max(i64(a), i64({-(2**31)})), i64({2**31 - 1}))))\n"
        else:  # outside the bounds is clipped by the rules, but what is no number spoils the state for good
            check += f"    if not abs(a) < inf:\n        given = u64({k})\n"
        check += "        lowest(b.faults, 0, u64(u) << u64(32) | given)\n"
    return inline(generated("action", source, **scope)), inline(generated("fault", check, **scope))
