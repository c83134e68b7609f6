"""Reductions with `at`: each element of a set contributes to one element of the set of the field.

A first segment sets all elements of the field to the result of no contribution. In a second one threads update elements by
atomic operations on integers, whose result does not depend on the order. For argmin, a thread replaces the index in the field
until no better one is there; it calls the author's function again for the index that it finds.

Letters: e an env, k its index in the block, c an element of the set of the field, i an element that contributes, x the place of
an element in C order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction, EnvParams, EnvState, SharedArray
from gpuvec.engine.layout.reduction_order import result_of_none
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.phase_functions import make_index, unit_of_set
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.phases import Reduction

f32, i32 = np.float32, np.int32


def scatter_segments(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the two segments of a reduction with `at`.

    Args:
        ctx: the context.
        access: access to the state.
        reduction: the reduction.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    target_set = ctx.schema.field_sets[reduction.field]
    clear = _make_clear(ctx, access, reduction, target_set, condition)
    contribute = _make_contribution(ctx, access, reduction, target_set, condition)
    return [
        Segment(AGENTS, clear, num_elements=unit_of_set(ctx, target_set)[1]),
        Segment(AGENTS, contribute, num_elements=unit_of_set(ctx, reduction.over)[1]),
    ]


def _make_clear(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, target_set: str, condition: DeviceFunction
) -> DeviceFunction:
    """`clear(b, w, e, k, c, clock)`, which sets element c of the field to the result of no contribution."""
    dtype = ctx.schema.array_fields[reduction.field].dtype
    source = "def clear(b, w, e, k, c, clock):\n    if condition(w, k):\n"
    source += f"        state(b, w, e, k).{reduction.field}[index(c)] = none\n"
    scope = {"condition": condition, "state": access.state, "index": make_index(ctx, target_set)}
    none = dtype(result_of_none(reduction.kind, dtype))
    return inline_function(generate_function("clear", source, **scope, none=none))


def _make_contribution(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, target_set: str, condition: DeviceFunction
) -> DeviceFunction:
    """`contribute(b, w, e, k, i, clock)`, which updates the element to which element i contributes, if there is one."""
    assert reduction.at is not None, "a scatter"
    index = make_index(ctx, reduction.over)
    source = "def contribute(b, w, e, k, i, clock):\n    if condition(w, k):\n"
    source += "        s, p = state(b, w, e, k), params(b, e)\n        x = place_of(at(index(i), s, p))\n"
    # A function that a kernel calls cannot return an array, so the field is named in the source.
    source += f"        if x >= 0:\n            update(s.{reduction.field}, x, i, s, p)\n"
    scope = {"condition": condition, "state": access.state, "params": ctx.params, "index": index}
    scope |= {"place_of": _make_place(ctx.schema.sets[target_set]), "at": device_function(reduction.at)}
    scope |= {"update": _make_update(ctx, reduction, index)}
    return inline_function(generate_function("contribute", source, **scope))


def _make_place(shape: tuple[int, ...]) -> DeviceFunction:
    """`place(target)` -> the place of an index in a set of that `shape`, or -1 if the set has no such element."""
    parts = ["target"] if len(shape) == 1 else [f"target[{axis}]" for axis in range(len(shape))]
    inside = " and ".join(f"0 <= {part} < {size}" for part, size in zip(parts, shape, strict=True))
    place = parts[0]
    for part, size in zip(parts[1:], shape[1:], strict=True):
        place = f"({place}) * {size} + {part}"
    return inline_function(generate_function("place", f"def place(target):\n    return {place} if {inside} else -1\n"))


def _make_update(ctx: MultiAgentContext, reduction: Reduction, index: DeviceFunction) -> DeviceFunction:
    """`update(array, x, i, s, p)`, which adds the contribution of element i to element x of the field."""
    value_of: Any = device_function(reduction.function)
    if reduction.kind == "argmin":
        return _make_argmin_update(ctx, value_of, index)
    if reduction.kind in ("any", "all"):
        return _make_flag_update(ctx, value_of, index, result=reduction.kind == "any")
    is_float = ctx.schema.array_fields[reduction.field].dtype is f32
    atomic_update = ctx.array_ops.atomic_update("add" if reduction.kind in ("count", "sum") else reduction.kind)

    @inline_function
    def count(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
        if value_of(index(i), s, p):
            atomic_update(array, x, i32(1))

    @inline_function
    def update_int(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
        atomic_update(array, x, i32(value_of(index(i), s, p)))

    @inline_function
    def update_float(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
        value = f32(f32(value_of(index(i), s, p)) + f32(0.0))  # The sum turns -0.0 into 0.0.
        if value == value:
            atomic_update(array, x, value)

    if reduction.kind == "count":
        return count
    return update_float if is_float else update_int


def _make_flag_update(
    ctx: MultiAgentContext, value_of: DeviceFunction, index: DeviceFunction, *, result: bool
) -> DeviceFunction:
    """`update` as in `_make_update` for a bool that becomes `result` if that is the value of any element."""
    store_flat = ctx.array_ops.store_flat

    @inline_function
    def set_flag(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
        # Several threads may store the same value.
        if bool(value_of(index(i), s, p)) == result:
            store_flat(array, x, result)

    return set_flag


def _make_argmin_update(ctx: MultiAgentContext, value_of: DeviceFunction, index: DeviceFunction) -> DeviceFunction:
    """`update` as in `_make_update` for the element with the smallest value, the first of those with equal values."""
    compare_exchange = ctx.array_ops.compare_exchange

    @inline_function
    def value_at(i: int, s: EnvState, p: EnvParams) -> np.float32:
        return f32(value_of(index(i), s, p))

    @inline_function
    def replace(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
        value = value_at(i, s, p)
        if value < f32(np.inf):
            current = compare_exchange(array, x, i32(-1), i32(i))
            while current >= 0:
                other = value_at(current, s, p)
                if other < value or (other == value and current < i):
                    break
                previous = compare_exchange(array, x, current, i32(i))
                current = i32(-1) if previous == current else previous

    return replace
