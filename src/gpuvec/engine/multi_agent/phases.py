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
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, DType, EnvParams, EnvState, SharedArray, Work
from gpuvec.engine.layout.declared_schema import REDUCTION_SOURCES, count_lanes, identity_of, result_of_none
from gpuvec.engine.layout.schema import PACKED_BUFFERS, set_number
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import COUNTERS, StateAccess, WorkArrays
from gpuvec.phases import AGENTS as AGENT_SET
from gpuvec.phases import PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.random import Key, key_of_set


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


def make_set_key(ctx: MultiAgentContext, index_set: str) -> DeviceFunction:
    """Compiles `set_key(key)`, the key of the draws of a set, so that equal draw numbers of two sets are different draws.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    number, of_set = set_number(ctx.schema.sets, index_set), device_function(key_of_set)

    @inline_function
    def set_key(key: Key) -> Key:
        return of_set(key, number)

    @inline_function
    def agents_key(key: Key) -> Key:
        return key

    return set_key if number else agents_key


def make_element_action(ctx: MultiAgentContext) -> DeviceFunction:
    """Compiles `action_of(b, w, e, k, i)`, the action of agent i as an argument of the author's functions.

    Args:
        ctx: the context.
    """
    A, stages_actions = ctx.num_agents, ctx.stages_actions
    load_action, read_staged_action = ctx.actions.load_action, ctx.actions.read_staged_action

    @inline_function
    def action_of(b: Batch, w: Work, e: int, k: int, i: int) -> Action:
        return read_staged_action(w, k * A + i) if stages_actions else load_action(b, e * A + i)

    return action_of


def make_phase_element(ctx: MultiAgentContext, access: StateAccess, phase: Any, has_action: bool) -> tuple[str, DeviceFunction]:
    """Compiles `run(b, w, e, k, c, key, p)`, which runs a phase that is no reduction for element c of its set.

    Args:
        ctx: the context.
        access: access to the state.
        phase: an author's function of agents, or the result of `each` or `assign`.
        has_action: whether the phase is one of a step, in which functions of agents and pairs receive an action.

    Returns:
        The name of the set, and the function.
    """
    if isinstance(phase, Assign):
        return WORLD, make_assignment(ctx, access, phase)
    each = phase if isinstance(phase, Each) else Each(AGENT_SET, phase)
    return each.index_set, make_each_element(ctx, access, each, has_action)


def make_step_segment(
    ctx: MultiAgentContext, unit: int, element: DeviceFunction, condition: DeviceFunction, key_of: DeviceFunction
) -> Segment:
    """Compiles the segment of a step that calls `element(b, w, e, k, c, key, p)` for each unit.

    Args:
        ctx: the context.
        unit: ENVS or AGENTS; the caller sets `num_elements`.
        element: the function.
        condition: `condition(w, k)` -> whether it is called in env k of the block.
        key_of: `key_of(w, k)` -> the key of its draws.
    """
    params = ctx.params

    @inline_function
    def run(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        if condition(w, k):
            element(b, w, e, k, c, key_of(w, k), params(b, e))

    @inline_function
    def run_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        run(b, w, e, k, 0, clock)

    return Segment(unit, run_env if unit == ENVS else run)


def make_each_element(ctx: MultiAgentContext, access: StateAccess, phase: Each, has_action: bool) -> DeviceFunction:
    """Compiles `run(b, w, e, k, c, key, p)`, which calls the function of a phase for element c of its set.

    Args:
        ctx: the context.
        access: access to the state.
        phase: the phase.
        has_action: whether its function receives the action of an agent, as those of agents and pairs do in a step.
    """
    state, function = access.state, device_function(phase.function)
    index, set_key = make_index(ctx, phase.index_set), make_set_key(ctx, phase.index_set)
    acting = acting_context(ctx, phase.index_set) if has_action else None

    @inline_function
    def run_world(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        function(state(b, w, e, k), set_key(key), p)

    @inline_function
    def run(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        function(index(c), state(b, w, e, k), set_key(key), p)

    if acting is not None:
        return _make_acting_element(acting, access, phase, index, set_key)
    return run_world if phase.index_set == WORLD else run


def acting_context(ctx: MultiAgentContext, index_set: str) -> MultiAgentContext | None:
    """Returns the context of the agents whose actions functions of a set receive in a step; None if they receive none.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    if not ctx.role_contexts:
        return ctx if index_set in (AGENT_SET, PAIRS) else None
    return next((role for role in ctx.role_contexts if role.schema.role == index_set), None)


def _make_acting_element(
    ctx: MultiAgentContext, access: StateAccess, phase: Each, index: DeviceFunction, set_key: DeviceFunction
) -> DeviceFunction:
    """`run` as in `make_each_element`, for a function that receives the action of an agent of the context."""
    state, function, action_of, A = access.state, device_function(phase.function), make_element_action(ctx), ctx.num_agents
    is_pair = phase.index_set == PAIRS
    K = ctx.schema.action.components
    action_at = ctx.array_ops.subarray((K,))

    @inline_function
    def run_with_action(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        action = action_of(b, w, e, k, c // A if is_pair else c)
        function(index(c), state(b, w, e, k), action, set_key(key), p)

    @inline_function
    def run_with_long_action(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        # A function that a kernel calls cannot return an array.
        action = action_at(w.actions, (k * A + (c // A if is_pair else c)) * K)
        function(index(c), state(b, w, e, k), action, set_key(key), p)

    return run_with_long_action if ctx.schema.action.is_long else run_with_action


def make_assignment(ctx: MultiAgentContext, access: StateAccess, phase: Assign) -> DeviceFunction:
    """Compiles `run(b, w, e, k, c, key, p)`, which writes the scalars of a phase; `c` is not used.

    Args:
        ctx: the context.
        access: access to the state.
        phase: the phase.
    """
    columns = [access.layout.scalar_columns[field].format("k") for field in phase.fields]
    values = [f"values[{n}]" for n in range(len(columns))] if len(columns) > 1 else ["values"]
    action, scope = "", dict[str, Any]()
    if phase.has_action:
        K = ctx.schema.action.components
        action = f"action_at(w.actions, k * {K}), " if ctx.schema.action.is_long else "action_of(b, w, e, k, 0), "
        scope = {"action_of": make_element_action(ctx), "action_at": ctx.array_ops.subarray((K,))}
    # An environment with one agent has one set of random numbers.
    arguments = f"state(b, w, e, k), {action}{'key' if ctx.schema.is_single_agent else 'set_key(key)'}"
    source = f"def run(b, w, e, k, c, key, p):\n    values = function({arguments}, p)\n"
    source += "".join(f"    {column} = {value}\n" for column, value in zip(columns, values, strict=True))
    scope |= {"function": device_function(phase.function), "state": access.state, "set_key": make_set_key(ctx, WORLD)}
    return inline_function(generate_function("run", source, **scope))


# Reductions with `at`: each element of a set contributes to one element of the set of the field.
#
# A first segment sets all elements of the field to the result of no contribution. In a second one threads update elements by
# atomic operations on integers, whose result does not depend on the order. For argmin, a thread replaces the index in the field
# until no better one is there; it calls the author's function again for the index that it finds.
#
# Letters: e an env, k its index in the block, c an element of the set of the field, i an element that contributes, x the place
# of an element in C order.


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


# Sums and extrema over an index set, in an order that depends only on the size of the set.
#
# Lane l of L combines elements l, l + L, l + 2 L, ... in this order. The lanes are then combined in a tree: lane l with lane
# l + L / 2, and so on. Floats are thus rounded in the same way on every device and for every number of threads.
#
# Letters: e an env, k its index in the block, c the number of an element or a lane.


SEQUENTIAL_LANES = 8  # So many lanes are combined by one thread, without barriers.


def tree_work_arrays(ctx: MultiAgentContext) -> WorkArrays:
    """Returns the arrays of the work in which lanes are combined, one for each dtype.

    Args:
        ctx: the context.
    """
    lanes: dict[DType, int] = {}
    for reduction in ctx.all_reductions:
        if reduction.kind in REDUCTION_SOURCES and reduction.at is None:
            dtype = ctx.schema.scalar_fields[reduction.field]
            lanes[dtype] = max(lanes.get(dtype, 0), count_lanes(math.prod(ctx.schema.sets[reduction.over])))
    return {_lane_array(dtype): (dtype, (ctx.launch.envs_per_block, count)) for dtype, count in lanes.items()}


def _lane_array(dtype: DType) -> str:
    """The name of the array for the lanes of a reduction of that dtype."""
    return f"lane_{PACKED_BUFFERS[dtype]}"


class _Lanes(NamedTuple):
    """The compiled functions on the lanes of a reduction."""

    combine: DeviceFunction  # combine(x, y) -> the combination of two numbers
    load: DeviceFunction  # load(w, k, c) -> lane c of env k
    store: DeviceFunction  # store(w, k, c, value)


def tree_segments(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the segments of a reduction: each lane, then the levels of the tree, and the result.

    Args:
        ctx: the context.
        access: access to the state.
        reduction: the reduction.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    num_lanes = count_lanes(math.prod(ctx.schema.sets[reduction.over]))
    lanes = _make_lanes(reduction, ctx.schema.scalar_fields[reduction.field])
    segments = [Segment(AGENTS, _make_lane(ctx, access, reduction, lanes, condition), num_elements=num_lanes)]
    while num_lanes > SEQUENTIAL_LANES:
        num_lanes //= 2
        segments.append(Segment(AGENTS, _make_level(lanes, num_lanes), num_elements=num_lanes))
    return [*segments, Segment(ENVS, _make_result(access, reduction, lanes, condition, num_lanes))]


def _make_lanes(reduction: Reduction, dtype: DType) -> _Lanes:
    array = f"w.{_lane_array(dtype)}[k, c]"
    sources = {
        "combine": f"def combine(x, y):\n    return {REDUCTION_SOURCES[reduction.kind]}\n",
        "load": f"def load(w, k, c):\n    return {array}\n",
        "store": f"def store(w, k, c, value):\n    {array} = value\n",
    }
    return _Lanes(*(inline_function(generate_function(name, source, t=dtype)) for name, source in sources.items()))


def _make_lane(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, lanes: _Lanes, condition: DeviceFunction
) -> DeviceFunction:
    """`lane(b, w, e, k, c, clock)`, which combines the elements of lane c."""
    value_of, state, params = device_function(reduction.function), access.state, ctx.params
    dtype, index = ctx.schema.scalar_fields[reduction.field], make_index(ctx, reduction.over)
    num_elements = math.prod(ctx.schema.sets[reduction.over])
    num_lanes, identity = count_lanes(num_elements), dtype(identity_of(reduction.kind, dtype))
    assume_nonnegative, (combine, _, store) = ctx.array_ops.assume_nonnegative, lanes

    @inline_function
    def lane(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        if condition(w, k):
            result, n = identity, assume_nonnegative(c)
            while n < num_elements:
                result = combine(result, dtype(value_of(index(n), state(b, w, e, k), params(b, e))))
                n = assume_nonnegative(n + num_lanes)
            store(w, k, c, result)

    return lane


def _make_level(lanes: _Lanes, half: int) -> DeviceFunction:
    """`level(b, w, e, k, c, clock)`, which combines lanes c and c + `half`."""
    combine, load, store = lanes

    @inline_function
    def level(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        store(w, k, c, combine(load(w, k, c), load(w, k, c + half)))

    return level


def _make_result(
    access: StateAccess, reduction: Reduction, lanes: _Lanes, condition: DeviceFunction, num_lanes: int
) -> DeviceFunction:
    """`write_result(b, w, e, k, clock)`, which combines the last lanes, and writes the field."""
    combine, load, store = lanes

    @inline_function
    def last_levels(w: Work, k: int) -> float:
        half = num_lanes // 2
        while half > 0:
            for c in range(half):
                store(w, k, c, combine(load(w, k, c), load(w, k, c + half)))
            half //= 2
        return load(w, k, 0)

    field = access.layout.scalar_columns[reduction.field].format("k")
    source = f"def write_result(b, w, e, k, clock):\n    if condition(w, k):\n        {field} = last_levels(w, k)\n"
    return inline_function(generate_function("write_result", source, condition=condition, last_levels=last_levels))


MAX_RANK = np.int64(np.iinfo(np.int64).max)
INDEX_MASK = np.int64(2**31 - 1)  # the low bits of a rank, which hold the element


def reduction_segments(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the segments of a reduction, which update its counter or its lanes, and write its field.

    Args:
        ctx: the context.
        access: access to the state.
        reduction: the reduction.
        number: the index of its counter.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    if reduction.at is not None:
        return scatter_segments(ctx, access, reduction, condition)
    if reduction.kind in REDUCTION_SOURCES:
        return tree_segments(ctx, access, reduction, condition)
    update = _rank_segment if reduction.kind == "argmin" else _count_segment
    return [update(ctx, access, reduction, number, condition), _result_segment(access, reduction, number, condition)]


def _count_segment(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> Segment:
    """The segment that counts elements for which the function is true; for `all_of`, those for which it is false."""
    value_of, state, params, increment = device_function(reduction.function), access.state, ctx.params, ctx.counters.increment
    uncounted, index = reduction.kind == "all", make_index(ctx, reduction.over)

    @inline_function
    def count(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k) and value_of(index(i), state(b, w, e, k), params(b, e)) != uncounted:
            increment(w.status, k, COUNTERS + number)

    return Segment(AGENTS, count, num_elements=unit_of_set(ctx, reduction.over)[1])


def _rank_segment(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> Segment:
    """The segment that finds the largest rank of an element."""
    value_of, state, params = device_function(reduction.function), access.state, ctx.params
    ordered_bits = ctx.array_ops.ordered_bits
    update_max, update_max_by_block = ctx.counters.update_max, ctx.counters.update_max_by_block
    threads, assume_nonnegative, index = (
        ctx.launch.threads_per_block,
        ctx.array_ops.assume_nonnegative,
        make_index(ctx, reduction.over),
    )
    count = unit_of_set(ctx, reduction.over)[1]
    elements = count or ctx.num_agents

    @inline_function
    def element_value(b: Batch, w: Work, e: int, k: int, i: int) -> float:
        return f32(value_of(index(i), state(b, w, e, k), params(b, e))) + f32(0.0)  # The sum turns -0.0 into 0.0.

    @inline_function
    def rank(value: float, i: int) -> int:
        # The rank is larger for a smaller value, and for a lower index of equal values. It is 0 for infinity.
        return MAX_RANK - (i64(ordered_bits(value)) << i64(31) | i64(i)) if value < f32(np.inf) else i64(0)

    @inline_function
    def rank_element(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            update_max(w.best_rank, k, number, rank(element_value(b, w, e, k, i), i))

    @inline_function
    def rank_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        # A block with one env has several elements per thread: each thread first finds the least value of its elements.
        least, i, u = f32(np.inf), 0, thread
        while u < elements and condition(w, 0):
            value = element_value(b, w, e0, 0, u)
            least, i = (value, u) if value < least else (least, i)
            u = assume_nonnegative(u + threads)
        update_max_by_block(w.best_rank, 0, number, rank(least, i))

    return Segment(BLOCK, rank_block) if ctx.launch.envs_per_block == 1 else Segment(AGENTS, rank_element, num_elements=count)


def _result_segment(access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction) -> Segment:
    """The segment that writes the field of the result."""
    counter = f"w.best_rank[k, {number}]" if reduction.kind == "argmin" else f"w.status[k, {COUNTERS + number}]"
    result = {
        "count": "counter",
        "any": "counter != i32(0)",
        "all": "counter == i32(0)",
        "argmin": "i32((max_rank - counter) & index_mask) if counter else i32(-1)",
    }[reduction.kind]
    field = access.layout.scalar_columns[reduction.field].format("k")
    source = "def write_result(b, w, e, k, clock):\n    if condition(w, k):\n"
    source += f"        counter = {counter}\n        {field} = {result}\n"
    scope = {"condition": condition, "i32": i32, "max_rank": MAX_RANK, "index_mask": INDEX_MASK}
    return Segment(ENVS, inline_function(generate_function("write_result", source, **scope)))
