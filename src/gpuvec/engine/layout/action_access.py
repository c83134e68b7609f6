"""Actions in composed code: read as authors get them, and looked at for faults.

A discrete action that its space does not hold is taken as the space's last one, so that memory which an author indexes by an
action is not left. That costs one instruction for a space that begins at 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.space_layout import ActionLayout


def make_staged_action_reader(
    space: gym.Space[Any], a: ActionLayout, options: KernelOptions, ops: MemoryOps
) -> tuple[Any, Any]:
    """`load_action(b, w, v, u)` copies action v of all to place u of `w.actions`; `loaded_action(w, u)` reads it there."""
    count = max(1, a.components)
    scope = _reading(space, options, ops) | {"dtype": a.dtype}
    load_action = "def load_action(b, w, v, u):\n"
    load_action += "".join(
        f"    w.actions[{count} * u + {k}] = dtype(allowed_{k}(load(b.action, {count} * v + {k}, raw)))\n" for k in range(count)
    )
    values = [f"w.actions[{count} * u + {k}]" for k in range(count)]
    loaded_action = f"def loaded_action(w, u):\n    return {f'({chr(44).join(values)},)' if a.components else values[0]}\n"
    return inline_function(generate_function("load_action", load_action, **scope)), inline_function(
        generate_function("loaded_action", loaded_action)
    )


def _reading(space: gym.Space[Any], options: KernelOptions, ops: MemoryOps) -> dict[str, Any]:
    """The names with which generated code reads actions.

    Where `fault` reads them as well, an ordinary load is the same one for both.
    """
    scope = {f"allowed_{k}": function for k, function in enumerate(make_action_clamps(space, options.action_dtype))}
    return scope | {"load": ops.load if options.validate else ops.load_streaming, "raw": options.action_dtype}


def make_action_clamps(space: gym.Space[Any], dtype: Any) -> list[Any]:
    """For each component `allowed(x)`: the value that the environment is given for `x`, a number of that `dtype`.

    A number of a Box is left as it is. An integer out of range becomes the largest that is allowed: seen from the smallest one
    as an unsigned number, whatever is out of range is larger than all others. It is still as wide as it was given.
    """
    if isinstance(space, gym.spaces.Box):
        return [inline_function(generate_function("allowed", "def allowed(x):\n    return x\n"))] * space.shape[0]
    unsigned, values = (np.uint64, 2**64) if dtype is np.int64 else (np.uint32, 2**32)
    functions = []
    for low, high in zip(*action_bounds(space), strict=True):
        source = f"def allowed(x):\n    return i32(min(unsigned(x), unsigned({high})))\n"
        if low != 0:
            source = (
                f"def allowed(x):\n    above = min(unsigned(unsigned(x) - unsigned({low % values})), unsigned({high - low}))\n"
            )
            source += f"    return i32(unsigned(above + unsigned({low % values})))\n"
        functions.append(inline_function(generate_function("allowed", source, unsigned=unsigned, i32=np.int32)))
    return functions


def action_bounds(space: gym.Space[Any]) -> tuple[list[Any], list[Any]]:
    """(least, greatest) of each component of an action, both included."""
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.start)], [int(space.start + space.n) - 1]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return list(map(int, space.start)), list(map(int, space.start + space.nvec - 1))
    assert isinstance(space, gym.spaces.Box), "there are no others"
    return list(map(float, space.low)), list(map(float, space.high))


def make_action_reader(space: gym.Space[Any], a: ActionLayout, options: KernelOptions, ops: MemoryOps) -> tuple[Any, Any]:
    """`action(b, u)`: a scalar or a tuple, and `fault(b, u)`, which reports one that the space does not allow.

    `u` counts the rows of actions: envs, or agents of all envs. A report is u << 32 | what was given.
    """
    reading = _reading(space, options, ops) | {"dtype": a.dtype}
    scope = {
        "load": ops.load, "atomic_min": ops.atomic_min, "raw": options.action_dtype, "dtype": a.dtype,
        "i64": np.int64, "u32": np.uint32, "u64": np.uint64, "inf": np.float32(np.inf),
    }  # fmt: skip
    at = [f"{a.components} * u + {k}" for k in range(a.components)] or ["u"]
    values = [f"dtype(allowed_{k}(load(b.action, {index}, raw)))" for k, index in enumerate(at)]
    source = f"def action(b, u):\n    return {f'({chr(44).join(values)},)' if a.components else values[0]}\n"
    lows, highs = action_bounds(space)
    check = "def fault(b, u):\n"
    for k, index in enumerate(at):
        check += f"    a = load(b.action, {index}, raw)\n"
        if a.discrete:
            check += f"    if i64(a) < {lows[k]} or i64(a) > {highs[k]}:\n"
            check += f"        given = u64(u32(min(max(i64(a), i64({-(2**31)})), i64({2**31 - 1}))))\n"
        else:  # outside the bounds is clipped by the rules, but what is no number spoils the state for good
            check += f"    if not abs(dtype(a)) < inf:\n        given = u64({k})\n"
        check += "        atomic_min(b.faults, 0, u64(u) << u64(32) | given)\n"
    return inline_function(generate_function("action", source, **reading)), inline_function(
        generate_function("fault", check, **scope)
    )
