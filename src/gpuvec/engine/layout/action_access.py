"""Actions in kernel code: their conversion to arguments of the author's functions, and the report of invalid ones.

A discrete action outside of its space is replaced by the largest action of the space, so that no action is an index beyond the
end of an author's table. That costs one instruction for a space that begins at 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.dtypes import f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, DType
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import ActionLayout


def make_staged_action_reader(
    space: gym.Space[Any], layout: ActionLayout, options: KernelOptions, ops: MemoryOps
) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles the functions that read actions through shared memory.

    Args:
        space: the action space of one agent.
        layout: the number of components of an action, and whether they are discrete.
        options: the dtype of the actions in global memory, and whether they are validated.
        ops: the operations on buffers.

    Returns:
        `stage_action(b, w, v, u)`, which copies row v of the actions to row u of `w.actions`, and `read_staged_action(w, u)`,
        which returns the action in row u.
    """
    count = max(1, layout.components)
    scope = _action_scope(space, options, ops) | {"dtype": layout.dtype}
    stage_action = "def stage_action(b, w, v, u):\n"
    stage_action += "".join(
        f"    w.actions[{count} * u + {k}] = dtype(in_range_{k}(load(b.action, {count} * v + {k}, raw)))\n"
        for k in range(count)
    )
    values = [f"w.actions[{count} * u + {k}]" for k in range(count)]
    read_staged_action = f"def read_staged_action(w, u):\n    return {action_expression(values, layout.components)}\n"
    return inline_function(generate_function("stage_action", stage_action, **scope)), inline_function(
        generate_function("read_staged_action", read_staged_action)
    )


def make_long_action_stage(space: gym.Space[Any], layout: ActionLayout) -> DeviceFunction:
    """Compiles the function that stores a component of a long action in shared memory.

    Args:
        space: the action space of one agent.
        layout: the number of components of an action, K, and whether they are discrete.

    Returns:
        `store_component(w, u, k, value)`, which stores component k of an action as element u of the actions of a block. Its
        value in global memory is `value`.
    """
    source = "def store_component(w, u, k, value):\n"
    if not layout.discrete:
        store = generate_function("store_component", f"{source}    w.actions[u] = dtype(value)\n", dtype=layout.dtype)
        return inline_function(store)
    first, last = (np.array(bounds, np.int64) for bounds in action_bounds(space))
    has_equal_bounds = bool(np.all(first == first[0]) and np.all(last == last[0]))
    low, high = (str(first[0]), str(last[0])) if has_equal_bounds else ("first[k]", "last[k]")
    # As in `make_range_functions`, an integer out of range becomes the largest of the range.
    source += f"    offset = min(u64(i64(value) - {low}), u64({high} - {low}))\n    w.actions[u] = i32(i64(offset) + {low})\n"
    scope = {"first": first, "last": last, "u64": u64, "i64": i64, "i32": i32}
    return inline_function(generate_function("store_component", source, **scope))


def _action_scope(space: gym.Space[Any], options: KernelOptions, ops: MemoryOps) -> dict[str, Any]:
    """Returns the global names of the generated code that reads actions."""
    # Validation reads each action a second time, so a load must not mark it for early eviction from the cache.
    scope = {f"in_range_{k}": function for k, function in enumerate(make_range_functions(space, options.action_dtype))}
    return scope | {"load": ops.load if options.validate else ops.load_streaming, "raw": options.action_dtype}


def action_expression(values: list[str], components: int) -> str:
    """Returns the source of an action: a tuple of `values`, or the only value if the number of `components` is 0."""
    return f"({', '.join(values)},)" if components else values[0]


def make_range_functions(space: gym.Space[Any], dtype: DType) -> list[DeviceFunction]:
    """Compiles `in_range(x)` for each component of an action; it returns the argument of the author's function for `x`.

    A number of a Box does not change. An integer out of range becomes the largest of the range. After subtraction of the
    smallest one, as an unsigned number of the same width, every integer out of range is larger than those in range.

    Args:
        space: the action space of one agent.
        dtype: the type of `x`.
    """
    if isinstance(space, gym.spaces.Box):
        return [inline_function(generate_function("in_range", "def in_range(x):\n    return x\n"))] * space.shape[0]
    unsigned, modulus = (u64, 2**64) if dtype is i64 else (u32, 2**32)
    functions = []
    for low, high in zip(*action_bounds(space), strict=True):
        source = f"def in_range(x):\n    return i32(min(unsigned(x), unsigned({high})))\n"
        if low != 0:
            offset = f"min(unsigned(unsigned(x) - unsigned({low % modulus})), unsigned({high - low}))"
            source = f"def in_range(x):\n    offset = {offset}\n    return i32(unsigned(offset + unsigned({low % modulus})))\n"
        functions.append(inline_function(generate_function("in_range", source, unsigned=unsigned, i32=i32)))
    return functions


def action_bounds(space: gym.Space[Any]) -> tuple[list[Any], list[Any]]:
    """Returns (lowest, highest) value of each component of an action of `space`, both included."""
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.start)], [int(space.start + space.n) - 1]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return list(map(int, space.start)), list(map(int, space.start + space.nvec - 1))
    assert isinstance(space, gym.spaces.Box), "make_action_layout refuses all other spaces"
    return list(map(float, space.low)), list(map(float, space.high))


def make_action_reader(
    space: gym.Space[Any],
    layout: ActionLayout,
    options: KernelOptions,
    ops: MemoryOps,
    suffix: str = "",
    reported_row: str = "u",
) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles the functions that read and check actions. Row u counts envs, or agents of all envs.

    Args:
        space: the action space of one agent.
        layout: the number of components of an action, and whether they are discrete.
        options: the dtype of the actions in global memory, and whether they are validated.
        ops: the operations on buffers.
        suffix: the end of the name of the buffer of actions, which is that of one role.
        reported_row: the source of the row that is reported for row u.

    Returns:
        `load_action(b, u)`, which returns the action in row u, a scalar or a tuple, and `report_invalid_action(b, u)`, which
        reports an action that the space does not allow, as u << 32 | the action, or the component that is not finite.
    """
    indices = [f"{layout.components} * u + {k}" for k in range(layout.components)] or ["u"]
    values = [f"dtype(in_range_{k}(load(b.action{suffix}, {index}, raw)))" for k, index in enumerate(indices)]
    source = f"def load_action(b, u):\n    return {action_expression(values, layout.components)}\n"
    scope = _action_scope(space, options, ops) | {"dtype": layout.dtype}
    load_action = inline_function(generate_function("load_action", source, **scope))
    components = [f"load(b.action{suffix}, {index}, raw)" for index in indices]
    lows, highs = action_bounds(space)
    source = "def report_invalid_action(b, u):\n"
    for k, component in enumerate(components):
        source += f"    a = {component}\n"
        if layout.discrete:
            source += f"    if i64(a) < {lows[k]} or i64(a) > {highs[k]}:\n"
            source += f"        report = u64(u32(min(max(i64(a), i64({-(2**31)})), i64({2**31 - 1}))))\n"
        else:
            # Authors clip numbers outside the bounds in their own `step`; one that is not finite would stay in the state.
            source += f"    if not abs(dtype(a)) < inf:\n        report = u64({k})\n"
        source += f"        atomic_min(b.faults, 0, u64({reported_row}) << u64(32) | report)\n"
    scope = {"load": ops.load, "atomic_min": ops.atomic_min, "raw": options.action_dtype, "dtype": layout.dtype}
    scope |= {"i64": i64, "u32": u32, "u64": u64, "inf": f32(np.inf)}
    return load_action, inline_function(generate_function("report_invalid_action", source, **scope))
