"""The phases of a step and of a reset: the author's functions of each element of an index set, and reductions over a set.

The result of a reduction does not depend on the order in which threads visit elements. For counts, the threads of a block add
to a shared integer, which starts at 0. The argmin is the element with the largest rank, an integer that decreases with the
value.

Letters: e an env, k its index in the block, c the number of an element of the set or a lane, A agents, i an agent or an element
that contributes to a reduction, x the place of an element in C order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.dtypes import f32, i32, i64
from gpuvec.engine.compiler.functions import bind, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, DType, EnvParams, EnvState, SharedArray, Work
from gpuvec.engine.layout.declared_schema import REDUCTION_SOURCES, count_lanes, identity_of, result_of_none
from gpuvec.engine.layout.schema import PACKED_BUFFERS, set_number
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import COUNTERS, WorkArrays
from gpuvec.phases import AGENTS as AGENT_SET
from gpuvec.phases import PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.random import Key, key_of_set

# What the functions below read: the context, `condition(w, k)`, the author's function, the index of an element and the number
# of its set; and for single phases the actions, for reductions the counter, the operations and the sizes.
ctx: Any = None
condition: Any = None
function: Any = None
index: Any = None
set_index, counter, num_elements, num_lanes, half = 0, 0, 0, 0, 0
action_at: Any = None
atomic_update: Any = None
lanes: Any = None
identity: Any = None
dtype: Any = None
is_world, is_pair, is_long, stages_actions = False, False, False, False
is_uncounted, is_count, is_float, flag = False, False, False, False


def unit_of_set(ctx: MultiAgentContext, index_set: str) -> tuple[int, int]:
    """Returns (unit, count) of the segments that run once for each element of a set.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    if index_set == WORLD:
        return ENVS, 0
    return AGENTS, 0 if index_set == AGENT_SET else int(np.prod(ctx.schema.sets[index_set]))


def make_index(ctx: MultiAgentContext, index_set: str) -> DeviceFunction:
    """Compiles `index(c)`, which returns the index of element c of a set: an int, or a tuple if the set has several axes.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    shape = ctx.schema.sets[index_set]
    lines: list[str] = []
    names: list[str] = []
    rest = "c"
    for axis in range(len(shape) - 1, 0, -1):
        lines.append(f"    q{axis}, i{axis} = divmod_u32({rest}, {shape[axis]})\n")
        names.insert(0, f"i{axis}")
        rest = f"q{axis}"
    value = f"({', '.join([rest, *names])})" if names else "c"
    source = f"def index(c):\n{''.join(lines)}    return {value}\n"
    return inline_function(generate_function("index", source, divmod_u32=ctx.array_ops.divmod_u32))


def set_key(key: Key) -> Key:
    """Returns the key of the draws of a set, so that equal draw numbers of two sets are different draws."""
    if set_index == 0:  # the agents
        return key
    return _key_of_set(key, set_index)


_key_of_set = device_function(key_of_set)


def action_of(b: Batch, w: Work, e: int, k: int, i: int) -> Action:
    """Returns the action of agent i as an argument of the author's functions."""
    if stages_actions:
        return ctx.actions.read_staged_action(w, k * ctx.num_agents + i)
    return ctx.actions.load_action(b, e * ctx.num_agents + i)


def make_phase_element(ctx: MultiAgentContext, phase: Any, has_action: bool) -> tuple[int, int, DeviceFunction]:
    """Compiles `run(b, w, e, k, c, key, p)`, which runs a phase that is no reduction for element c of its set.

    Args:
        ctx: the context.
        phase: an author's function of agents, or the result of `each` or `assign`.
        has_action: whether the phase is one of a step, in which functions of agents and pairs receive an action.

    Returns:
        The unit and the number of elements of a segment that runs it, and the function.
    """
    if isinstance(phase, Assign):
        return *unit_of_set(ctx, WORLD), make_assignment(ctx, phase)
    each = phase if isinstance(phase, Each) else Each(AGENT_SET, phase)
    name = each.index_set
    values: dict[str, Any] = {"function": device_function(each.function), "index": make_index(ctx, name)}
    values |= {"ctx": ctx, "set_index": set_number(ctx.schema.sets, name)}
    # The agents whose actions functions of the set receive; None if they receive none.
    if ctx.role_contexts:
        acting = next((role for role in ctx.role_contexts if role.schema.role == name), None)
    else:
        acting = ctx if name in (AGENT_SET, PAIRS) else None
    if not has_action or acting is None:
        return *unit_of_set(ctx, name), bind(run_element, **values, is_world=name == WORLD)
    values |= {"ctx": acting, "stages_actions": acting.stages_actions, "is_pair": name == PAIRS}
    action_at = ctx.array_ops.subarray((acting.schema.action.components,))
    run = bind(run_with_action, **values, action_at=action_at, is_long=acting.schema.action.is_long)
    return *unit_of_set(ctx, name), run


def run_element(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
    """Calls the author's function of the world, or of element c of a set."""
    if is_world:
        function(ctx.access.state(b, w, e, k), set_key(key), p)
    else:
        function(index(c), ctx.access.state(b, w, e, k), set_key(key), p)


def run_with_action(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
    """Calls the author's function of an agent or a pair with the agent's action; a long one is an array in shared memory."""
    i = c // ctx.num_agents if is_pair else c
    if is_long:  # A function that a kernel calls cannot return an array.
        action = action_at(w.actions, (k * ctx.num_agents + i) * ctx.schema.action.components)
    else:
        action = action_of(b, w, e, k, i)
    function(index(c), ctx.access.state(b, w, e, k), action, set_key(key), p)


def make_assignment(ctx: MultiAgentContext, phase: Assign) -> DeviceFunction:
    """Compiles `run(b, w, e, k, c, key, p)`, which writes the scalars of a phase; `c` is not used.

    Args:
        ctx: the context.
        phase: the phase.
    """
    columns = [ctx.access.layout.scalar_columns[field].format("k") for field in phase.fields]
    values = [f"values[{n}]" for n in range(len(columns))] if len(columns) > 1 else ["values"]
    action, scope = "", dict[str, Any]()
    if phase.has_action:
        K = ctx.schema.action.components
        action = f"action_at(w.actions, k * {K}), " if ctx.schema.action.is_long else "action_of(b, w, e, k, 0), "
        scope = {
            "action_of": bind(action_of, ctx=ctx, stages_actions=ctx.stages_actions),
            "action_at": ctx.array_ops.subarray((K,)),
        }
    # An environment with one agent has one set of random numbers.
    arguments = f"state(b, w, e, k), {action}{'key' if ctx.schema.is_single_agent else 'set_key(key)'}"
    source = f"def run(b, w, e, k, c, key, p):\n    values = function({arguments}, p)\n"
    source += "".join(f"    {column} = {value}\n" for column, value in zip(columns, values, strict=True))
    scope |= {
        "function": device_function(phase.function),
        "state": ctx.access.state,
        "set_key": bind(set_key, set_index=set_number(ctx.schema.sets, WORLD)),
    }
    return inline_function(generate_function("run", source, **scope))


# Reductions. Lane l of L combines elements l, l + L, l + 2 L, ... in this order. The lanes are then combined in a tree: lane l
# with lane l + L / 2, and so on. Floats are thus rounded in the same way on every device and for every number of threads.


SEQUENTIAL_LANES = 8  # So many lanes are combined by one thread, without barriers.


def tree_work_arrays(ctx: MultiAgentContext) -> WorkArrays:
    """Returns the arrays of the work in which lanes are combined, one for each dtype.

    Args:
        ctx: the context.
    """
    lanes: dict[DType, int] = {}
    phases = (*ctx.env.phases, *ctx.reset_phases, ctx.observed_reduction)
    for reduction in (phase for phase in phases if isinstance(phase, Reduction)):
        if reduction.kind in REDUCTION_SOURCES and reduction.at is None:
            dtype = ctx.schema.scalar_fields[reduction.field]
            lanes[dtype] = max(lanes.get(dtype, 0), count_lanes(math.prod(ctx.schema.sets[reduction.over])))
    return {_lane_array(dtype): (dtype, (ctx.launch.envs_per_block, count)) for dtype, count in lanes.items()}


def _lane_array(dtype: DType) -> str:
    """The name of the array for the lanes of a reduction of that dtype."""
    return f"lane_{PACKED_BUFFERS[dtype]}"


MAX_RANK = np.int64(np.iinfo(np.int64).max)
INDEX_MASK = np.int64(2**31 - 1)  # the low bits of a rank, which hold the element


class Lanes(NamedTuple):
    """The compiled functions on the lanes of a reduction."""

    combine: DeviceFunction  # combine(x, y) -> the combination of two numbers
    load: DeviceFunction  # load(w, k, c) -> lane c of env k
    store: DeviceFunction  # store(w, k, c, value)


def reduction_segments(ctx: MultiAgentContext, reduction: Reduction, number: int, condition: DeviceFunction) -> list[Segment]:
    """Compiles the segments of a reduction, which update its counter or its lanes, and write its field.

    With `at`, a first segment sets all elements of the field to the result of no contribution, and in a second one threads
    update elements by atomic operations on integers, whose result does not depend on the order.

    Args:
        ctx: the context.
        reduction: the reduction.
        number: the index of its counter.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    _, count = unit_of_set(ctx, reduction.over)
    values = {"ctx": ctx, "condition": condition, "function": device_function(reduction.function)}
    values |= {"index": make_index(ctx, reduction.over), "counter": number, "is_uncounted": reduction.kind == "all"}
    if reduction.at is not None:
        return _scatter_segments(ctx, reduction, values)
    if reduction.kind in REDUCTION_SOURCES:
        return _tree_segments(ctx, reduction, values)
    counter, best_rank = f"w.status[k, {COUNTERS + number}]", f"w.best_rank[k, {number}]"
    source = {
        "count": counter,
        "any": f"{counter} != i32(0)",
        "all": f"{counter} == i32(0)",
        "argmin": f"i32((max_rank - {best_rank}) & index_mask) if {best_rank} else i32(-1)",
    }[reduction.kind]
    scope = {"i32": i32, "max_rank": MAX_RANK, "index_mask": INDEX_MASK}
    result = _result_segment(ctx, reduction, source, condition, **scope)
    if reduction.kind != "argmin":
        return [Segment(AGENTS, bind(count_element, **values), num_elements=count), result]
    if ctx.launch.envs_per_block == 1:
        return [Segment(BLOCK, bind(rank_block, **values, num_elements=count or ctx.num_agents)), result]
    return [Segment(AGENTS, bind(rank_element, **values), num_elements=count), result]


def _tree_segments(ctx: MultiAgentContext, reduction: Reduction, values: dict[str, Any]) -> list[Segment]:
    """The segments of a sum or an extremum: each lane, then the levels of the tree, and the result."""
    dtype, size = ctx.schema.scalar_fields[reduction.field], math.prod(ctx.schema.sets[reduction.over])
    num_lanes, array = count_lanes(size), f"w.{_lane_array(dtype)}[k, c]"
    sources = {
        "combine": f"def combine(x, y):\n    return {REDUCTION_SOURCES[reduction.kind]}\n",
        "load": f"def load(w, k, c):\n    return {array}\n",
        "store": f"def store(w, k, c, value):\n    {array} = value\n",
    }
    lanes = Lanes(*(inline_function(generate_function(name, source, t=dtype)) for name, source in sources.items()))
    values = values | {
        "lanes": lanes,
        "dtype": dtype,
        "num_elements": size,
        "identity": dtype(identity_of(reduction.kind, dtype)),
    }
    segments = [Segment(AGENTS, bind(combine_elements, **values, num_lanes=num_lanes), num_elements=num_lanes)]
    while num_lanes > SEQUENTIAL_LANES:
        num_lanes //= 2
        segments.append(Segment(AGENTS, bind(combine_lanes, lanes=lanes, half=num_lanes), num_elements=num_lanes))
    levels = bind(last_levels, lanes=lanes, num_lanes=num_lanes)
    return [*segments, _result_segment(ctx, reduction, "last_levels(w, k)", values["condition"], last_levels=levels)]


def _result_segment(
    ctx: MultiAgentContext, reduction: Reduction, result: str, condition: DeviceFunction, **scope: Any
) -> Segment:
    """The segment that writes the field of a reduction, whose `result` is source, with the names in `scope`."""
    field = ctx.access.layout.scalar_columns[reduction.field].format("k")
    source = f"def write_result(b, w, e, k, c, clock):\n    if condition(w, k):\n        {field} = {result}\n"
    return Segment(ENVS, inline_function(generate_function("write_result", source, **scope, condition=condition)))


def _scatter_segments(ctx: MultiAgentContext, reduction: Reduction, values: dict[str, Any]) -> list[Segment]:
    """The segments of a reduction with `at`: one sets all elements of the field to the result of no contribution.

    In the other one, element i updates the element to which it contributes, if there is one.
    """
    kind, field, target_set = reduction.kind, reduction.field, ctx.schema.field_sets[reduction.field]
    shape, dtype = ctx.schema.sets[target_set], ctx.schema.array_fields[field].dtype
    source = f"def clear(b, w, e, k, c, clock):\n    if condition(w, k):\n        state(b, w, e, k).{field}[index(c)] = none\n"
    scope = {"condition": values["condition"], "state": ctx.access.state}
    none = dtype(result_of_none(kind, dtype))
    clear = generate_function("clear", source, **scope, index=make_index(ctx, target_set), none=none)
    # The place of an index in the set in C order, or -1 if the set has no such element.
    parts = ["target"] if len(shape) == 1 else [f"target[{axis}]" for axis in range(len(shape))]
    inside = " and ".join(f"0 <= {part} < {size}" for part, size in zip(parts, shape, strict=True))
    place = parts[0]
    for part, size in zip(parts[1:], shape[1:], strict=True):
        place = f"({place}) * {size} + {part}"
    source = f"def place(target):\n    return {place} if {inside} else -1\n"
    scope["place_of"] = inline_function(generate_function("place", source))
    if kind == "argmin":
        update = bind(update_argmin, **values)
    elif kind in ("any", "all"):
        update = bind(update_flag, **values, flag=kind == "any")
    else:
        atomic = ctx.array_ops.atomic_update("add" if kind in ("count", "sum") else kind)
        update = bind(update_number, **values, atomic_update=atomic, is_count=kind == "count", is_float=dtype is f32)
    source = "def contribute(b, w, e, k, i, clock):\n    if condition(w, k):\n"
    source += "        s, p = state(b, w, e, k), params(b, e)\n        x = place_of(at(index(i), s, p))\n"
    # A function that a kernel calls cannot return an array, so the field is named in the source.
    source += f"        if x >= 0:\n            update(s.{field}, x, i, s, p)\n"
    scope |= {"params": ctx.params, "index": values["index"], "at": device_function(reduction.at), "update": update}
    contribute = generate_function("contribute", source, **scope)
    sizes = (unit_of_set(ctx, name)[1] for name in (target_set, reduction.over))
    functions = (inline_function(clear), inline_function(contribute))
    return [Segment(AGENTS, function, num_elements=size) for function, size in zip(functions, sizes, strict=True)]


def combine_elements(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Combines the elements of lane c."""
    if condition(w, k):
        result, n = identity, ctx.array_ops.assume_nonnegative(c)
        while n < num_elements:
            result = lanes.combine(result, dtype(function(index(n), ctx.access.state(b, w, e, k), ctx.params(b, e))))
            n = ctx.array_ops.assume_nonnegative(n + num_lanes)
        lanes.store(w, k, c, result)


def combine_lanes(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Combines lanes c and c + `half`."""
    lanes.store(w, k, c, lanes.combine(lanes.load(w, k, c), lanes.load(w, k, c + half)))


def last_levels(w: Work, k: int) -> float:
    """Combines the last lanes."""
    distance = num_lanes // 2
    while distance > 0:
        for c in range(distance):
            lanes.store(w, k, c, lanes.combine(lanes.load(w, k, c), lanes.load(w, k, c + distance)))
        distance //= 2
    return lanes.load(w, k, 0)


def count_element(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Counts an element for which the function is true; for `all_of`, one for which it is false."""
    if condition(w, k) and function(index(i), ctx.access.state(b, w, e, k), ctx.params(b, e)) != is_uncounted:
        ctx.counters.increment(w.status, k, COUNTERS + counter)


def element_value(b: Batch, w: Work, e: int, k: int, i: int) -> float:
    """Returns the value of element i."""
    return f32(function(index(i), ctx.access.state(b, w, e, k), ctx.params(b, e))) + f32(0.0)  # The sum turns -0.0 into 0.0.


def rank(value: float, i: int) -> int:
    """Returns the rank of an element: larger for a smaller value, and for a lower index of equal values; 0 for infinity."""
    return MAX_RANK - (i64(ctx.array_ops.ordered_bits(value)) << i64(31) | i64(i)) if value < f32(np.inf) else i64(0)


def rank_element(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Updates the largest rank by that of element i."""
    if condition(w, k):
        ctx.counters.update_max(w.best_rank, k, counter, rank(element_value(b, w, e, k, i), i))


def rank_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """As `rank_element`, in a block with one env: each thread first finds the least value of its elements."""
    least, i, u = f32(np.inf), 0, thread
    while u < num_elements and condition(w, 0):
        value = element_value(b, w, e0, 0, u)
        least, i = (value, u) if value < least else (least, i)
        u = ctx.array_ops.assume_nonnegative(u + ctx.launch.threads_per_block)
    ctx.counters.update_max_by_block(w.best_rank, 0, counter, rank(least, i))


def update_number(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
    """Adds a number, or 1 if the function is true, or replaces an extremum, of floats unless the value is nan."""
    value = function(index(i), s, p)
    if is_count:
        if value:
            atomic_update(array, x, i32(1))
    elif is_float:
        number = f32(f32(value) + f32(0.0))  # The sum turns -0.0 into 0.0.
        if number == number:
            atomic_update(array, x, number)
    else:
        atomic_update(array, x, i32(value))


def update_flag(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
    """Sets a bool to `flag` if that is the value of element i."""
    # Several threads may store the same value.
    if bool(function(index(i), s, p)) == flag:
        ctx.array_ops.store_flat(array, x, flag)


def value_at(i: int, s: EnvState, p: EnvParams) -> np.float32:
    """Returns the value of element i."""
    return f32(function(index(i), s, p))


def update_argmin(array: SharedArray, x: int, i: int, s: EnvState, p: EnvParams) -> None:
    """Replaces the index in the field until no better one is there; calls the author's function for the index that it finds."""
    value = value_at(i, s, p)
    if value < f32(np.inf):
        current = ctx.array_ops.compare_exchange(array, x, i32(-1), i32(i))
        while current >= 0:
            other = value_at(current, s, p)
            if other < value or (other == value and current < i):
                break
            previous = ctx.array_ops.compare_exchange(array, x, current, i32(i))
            current = i32(-1) if previous == current else previous
