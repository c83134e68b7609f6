"""Assembles the functions of an environment of many agents into segments, with barriers between them.

For any shape of the launch, every element is computed by the same operations in the same order. `w`, the work, has the arrays
that the threads of a block share; on a CPU one thread runs one env.

Letters: e an env, k its index in the block, i an agent of the env, A agents per env.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import bind, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, Work
from gpuvec.engine.layout.action_access import make_action_reader, make_long_action_stage, make_staged_action_reader
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.layout.declared_schema import CRITIC_OUTPUT, function_of_agents, make_critic_schema
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import make_rng_streams
from gpuvec.engine.layout.schema import PACKED_BUFFERS, MultiAgentSchema, as_multi_agent
from gpuvec.engine.multi_agent.context import ActionReaders, MultiAgentContext, SharedCounters, every_env
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors import KnnFunctions, NeighborSearch, make_knn, make_neighbor_search, search_segments
from gpuvec.engine.multi_agent.observation_stores import (
    ItemStore,
    RowItems,
    RowKernel,
    clear_list,
    direct_segments,
    drain_block,
    feature_values,
    fill_segments,
    final_item_segments,
    final_neighbors_of_block,
    final_self_of_agent,
    item_segment,
    lists_ended,
    make_block_stores,
    make_observation_features,
    make_row_items,
    make_row_kernel,
    neighbors_of_block,
    self_of_agent,
    self_rows_segment,
    staged_final_neighbors,
    staged_final_self,
    store_element,
    tile_elements,
)
from gpuvec.engine.multi_agent.phase_functions import make_phase_element, reduction_segments, tree_work_arrays
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment, without_barriers_between_envs
from gpuvec.engine.multi_agent.state_access import (
    COUNTERS,
    WorkArrays,
    make_state_access,
    save_final_segments,
    set_copy_segments,
)
from gpuvec.engine.multi_agent.step_segments import (
    check_end,
    end_env,
    first_key,
    is_new_episode,
    is_running,
    is_waiting,
    load_agent,
    load_env,
    mark_acting,
    mask_segments,
    metric_segments,
    reset_env,
    run_in_reset,
    run_phase,
    score_agent,
    stage_action_segments,
    start_agent,
    start_segments,
    step_key,
    step_values,
    store_turn,
)
from gpuvec.phases import ByRole, Reduction
from gpuvec.spec import SingleAgentEnv


class Program(NamedTuple):
    """The segments of a reset and of a step, and the functions of the other kernels."""

    work: type[Work]  # the NamedTuple class of `w`
    arrays: WorkArrays  # the fields of `w`
    aligned_arrays: frozenset[str]  # the fields of `w` that threads access in words of 16 bytes
    reset: tuple[Segment, ...]  # a reset, up to `finish`
    step: tuple[Segment, ...]  # a step, up to `check_end`
    check_end: Segment  # returns whether the episode of an env ended
    episode_end: tuple[Segment, ...]  # after `check_end`, if an episode ended in the block
    finish: tuple[Segment, ...]  # the end of a reset and of a step: writes observations, and the state to its buffers
    row_kernel: RowKernel  # the kernel that writes observations, if the launch is split
    search: NeighborSearch | None  # the kernel that searches for neighbors, if the launch is split


class _Parts(NamedTuple):
    """The functions that the segments of one context are composed of."""

    ctx: MultiAgentContext
    values: dict[str, Any]  # of `step_values`, for `bind`
    is_ended: DeviceFunction  # `is_new_episode` of `step`, compiled
    blocks: list[ItemStore]
    # The items of rows that are stored item by item in the first kernel: images, or the rows of each role.
    row_items: list[RowItems]
    critic: RowItems | None  # the observations of a critic
    knn: KnnFunctions | None
    set_loads: list[Segment]  # of a reset and of a step: copy the fields of sets to shared memory


def make_program(
    spec: KernelSpec,
    ops: MemoryOps,
    array_ops: ArrayOps,
    counters: SharedCounters,
    launch: MultiAgentLaunch,
) -> Program:
    """Compiles the program of an environment.

    Args:
        spec: what the kernels are compiled from.
        ops: the device's operations on buffers.
        array_ops: the device's operations on arrays.
        counters: the device's operations on counters that the threads of a block share.
        launch: the shape of the launches, or `CPU_LAUNCH`.
    """
    ctx = _make_context(spec, ops, array_ops, counters, launch)
    knn = make_knn(ctx)
    by_item = bool(ctx.role_contexts) or ctx.schema.obs.is_image
    critic_schema, values = make_critic_schema(ctx.env, ctx.schema), step_values(ctx)
    parts = _Parts(
        ctx,
        values,
        is_ended=bind(is_new_episode, **values),
        blocks=[] if by_item else make_block_stores(ctx),
        row_items=[make_row_items(part) for part in ctx.parts] if by_item else [],
        critic=None if critic_schema is None else make_row_items(_with_features(ctx, critic_schema)),
        knn=knn,
        set_loads=set_copy_segments(ctx, is_load=True),
    )
    arrays, ends = _work_arrays(parts), _episode_end_segments(parts) if ctx.options.same_step else []
    return Program(
        work=named_tuple("Work", tuple(arrays)),
        arrays=arrays,
        aligned_arrays=ctx.access.layout.arrays_with_words | {"tile"},
        reset=tuple(_reset_segments(parts)),
        step=without_barriers_between_envs(_step_segments(parts), ctx.num_agents, is_synchronised=False, next_unit=ENVS),
        check_end=Segment(ENVS, bind(check_end, **values)),
        episode_end=without_barriers_between_envs(ends, ctx.num_agents, is_synchronised=True, next_unit=AGENTS),
        finish=tuple(_finish_segments(parts)),
        row_kernel=make_row_kernel(ctx),
        search=make_neighbor_search(ctx, knn) if knn is not None and launch.split else None,
    )


def _with_features(ctx: MultiAgentContext, schema: MultiAgentSchema) -> MultiAgentContext:
    """The context with another schema, and the features of its observation."""
    ctx = replace(ctx, schema=schema)
    return replace(ctx, features=make_observation_features(ctx))


def _make_context(
    spec: KernelSpec, ops: MemoryOps, array_ops: ArrayOps, counters: SharedCounters, launch: MultiAgentLaunch
) -> MultiAgentContext:
    """The context of an environment; arguments as of `make_program`."""
    assert isinstance(spec.schema, MultiAgentSchema), "the schema of an environment whose envs are shared by threads"
    env = as_multi_agent(spec.env) if isinstance(spec.env, SingleAgentEnv) else spec.env
    readers = make_param_readers(env, spec.options, ops, array_ops)
    ctx = MultiAgentContext(env, spec.schema, spec.options, launch, ops, array_ops, counters, *readers, make_rng_streams(ops))
    ctx = replace(ctx, access=make_state_access(ctx))
    if not spec.schema.role_schemas:
        store_component = (
            make_long_action_stage(spec.schema.action_space, spec.schema.action) if spec.schema.action.is_long else None
        )
        global_readers = make_action_reader(spec.schema.action_space, spec.schema.action, spec.options, ops)
        staged_readers = make_staged_action_reader(spec.schema.action_space, spec.schema.action, spec.options, ops)
        actions = ActionReaders(*global_readers, *staged_readers, store_component)
        return _with_features(replace(ctx, actions=actions), spec.schema)
    names = ("reward", "terminated", "active")
    functions = {name: function_of_agents(getattr(env, name), name, spec.schema.roles, array_ops) for name in names}
    ctx = replace(ctx, env=replace(env, **functions))
    roles = tuple(_make_role_context(ctx, part, number) for number, part in enumerate(spec.schema.parts))
    # The readers of all agents, of which only `report_invalid_action` exists.
    source = f"def report_invalid_action(b, v):\n    e, i = divmod_u32(v, {ctx.num_agents})\n"
    scope = {"divmod_u32": array_ops.divmod_u32}
    for role in roles:
        scope[f"report{role.schema.suffix}"] = role.actions.report_invalid_action
        source += f"    if {role.schema.first_agent} <= i < {role.schema.first_agent + role.num_agents}:\n"
        source += f"        report{role.schema.suffix}(b, e * {role.num_agents} + i - {role.schema.first_agent})\n"
    report = inline_function(generate_function("report_invalid_action", source, **scope))
    return replace(ctx, role_contexts=roles, actions=ActionReaders(None, report))


def _make_role_context(ctx: MultiAgentContext, schema: MultiAgentSchema, number: int) -> MultiAgentContext:
    """The context of the role with that number, whose agents have their own observations, actions and masks."""
    dtypes = ctx.options.action_dtype
    dtype = dtypes[number] if isinstance(dtypes, tuple) else schema.action.dtype  # A reset reads no actions.
    options = ctx.options._replace(action_dtype=dtype)
    row = f"u // {schema.num_agents} * {ctx.num_agents} + {schema.first_agent} + u % {schema.num_agents}"
    readers = make_action_reader(schema.action_space, schema.action, options, ctx.ops, schema.suffix, f"({row})")
    allowed = ctx.env.allowed.of(schema.role) if isinstance(ctx.env.allowed, ByRole) else None
    ctx = replace(ctx, env=replace(ctx.env, allowed=allowed), options=options, actions=ActionReaders(*readers))
    return _with_features(ctx, schema)


def _work_arrays(parts: _Parts) -> WorkArrays:
    """The arrays that the threads of a block share in the first kernel."""
    ctx = parts.ctx
    rows, agents = ctx.launch.envs_per_block + ctx.num_final_copies, ctx.launch.envs_per_block * ctx.num_agents
    arrays: WorkArrays = {"status": (i32, (rows, COUNTERS + ctx.num_counters))}
    dtypes = list(ctx.schema.scalar_fields.values())
    for dtype, name in PACKED_BUFFERS.items():
        if dtype in dtypes:
            arrays[f"scalar_{name}"] = (dtype, (rows, dtypes.count(dtype)))
    arrays |= {PACKED_BUFFERS[dtype]: (dtype, (size,)) for dtype, size in ctx.access.layout.sizes.items()}
    if ctx.stages_actions:
        arrays["actions"] = (ctx.schema.action.dtype, (agents * max(1, ctx.schema.action.components),))
    if ctx.stages_active:
        arrays["was_active"] = (b1, (agents,))
    arrays |= tree_work_arrays(ctx)
    if lists_ended(ctx) and _final_items(parts):  # the number of envs whose episode ended, and then these envs
        arrays["ended"] = (i32, (1 + ctx.launch.envs_per_block,))
    if not ctx.launch.split and parts.knn is not None and parts.knn.cell_list is not None:
        arrays |= parts.knn.cell_list.arrays
    if ctx.launch.tile_rows and not ctx.launch.split:
        arrays["tile"] = (f32, (tile_elements(ctx.launch.tile_rows, ctx.schema.num_features),))
    arrays["best_rank"] = (i64, (ctx.launch.envs_per_block, max(1, ctx.num_counters)))
    return arrays


def _reset_segments(parts: _Parts) -> list[Segment]:
    """The segments of a reset, up to `finish`."""
    ctx = parts.ctx
    resets = Segment(ENVS, bind(reset_env, **parts.values), barrier=not ctx.launch.stage_state, takes_request=True)
    loads = [Segment(AGENTS, ctx.access.load_to_shared)] if ctx.launch.stage_state else []
    segments = [resets, *parts.set_loads, *loads]
    if ctx.reset_phases:
        return segments + start_segments(ctx, parts.values, parts.is_ended, in_reset=True)
    return [*segments, Segment(AGENTS, bind(run_in_reset, **parts.values, element=start_agent), takes_request=True)]


def _start_segments(parts: _Parts, condition: Callable[..., Any]) -> list[Segment]:
    """The segments that save last states and write first states in a step, in envs for which `condition(w, k)` is true."""
    ctx, values = parts.ctx, parts.values | {"condition": condition}
    saves_final = ctx.launch.split and ctx.options.same_step  # for the kernel that writes final observations
    if not ctx.reset_phases:
        start = bind(run_phase, **values, element=start_agent, key_of=first_key, saves_final=saves_final)
        return [Segment(AGENTS, start)]
    starts = bind(condition, **values)
    segments = []
    if saves_final:
        save_agent = bind(run_phase, **values, element=ctx.access.save_final, key_of=first_key)
        segments += [*save_final_segments(ctx, starts), Segment(AGENTS, save_agent)]
    return segments + start_segments(ctx, values, starts, in_reset=False)


def _step_segments(parts: _Parts) -> list[Segment]:
    """The segments of a step, up to `check_end`."""
    ctx = parts.ctx
    set_loads = parts.set_loads
    if set_loads and ctx.env.active is not None and not ctx.schema.roles.keys().isdisjoint(ctx.schema.field_sets.values()):
        # `active` may read an agent's element of a field of its role, which another thread loads.
        set_loads = [*set_loads[:-1], set_loads[-1]._replace(barrier=True)]
    segments = [
        Segment(ENVS, bind(load_env, **parts.values), barrier=False),
        *([Segment(BLOCK, bind(clear_list), barrier=False)] if lists_ended(ctx) and _final_items(parts) else []),
        *set_loads,
        *stage_action_segments(ctx, parts.values),
        Segment(AGENTS, bind(load_agent, **parts.values)),
    ]
    if ctx.env.to_move is not None:
        segments.append(Segment(AGENTS, bind(mark_acting, **parts.values)))
    if ctx.options.next_step:
        segments += _start_segments(parts, is_waiting)
    for number, phase in enumerate(ctx.env.phases):
        if isinstance(phase, Reduction):
            is_running_env = bind(is_running, **parts.values)
            segments += reduction_segments(ctx, phase, ctx.counter_of_phase(number), is_running_env)
        else:
            unit, count, element = make_phase_element(ctx, phase, has_action=True)
            run = bind(run_phase, **parts.values, condition=is_running, key_of=step_key, element=element)
            segments.append(Segment(unit, run, num_elements=count))
    return [*segments, *metric_segments(ctx, parts.values), Segment(AGENTS, bind(score_agent, **parts.values))]


def _before_observations(parts: _Parts, condition: DeviceFunction, number: int) -> list[Segment]:
    """The segments of the reduction or search before observations; `number` is 0 for final observations, 1 for all others."""
    ctx = parts.ctx
    if ctx.observed_reduction is not None:
        return reduction_segments(ctx, ctx.observed_reduction, ctx.observed_counter(number), condition)
    if parts.knn is not None and not ctx.launch.split:
        return search_segments(ctx, parts.knn, condition)
    return []


def _final_items(parts: _Parts) -> list[tuple[RowItems, str]]:
    """The items of final observations that the first kernel stores, and the names of their outputs."""
    items = [] if parts.critic is None else [(parts.critic, CRITIC_OUTPUT)]
    if parts.ctx.launch.split:
        return items
    blocks = (RowItems(parts.ctx, block) for block in parts.blocks)
    return items + [(rows, "obs") for rows in parts.row_items or blocks]


def _episode_end_segments(parts: _Parts) -> list[Segment]:
    """The segments that write final observations and start the next episodes."""
    ctx, stages_final = parts.ctx, parts.ctx.num_final_copies > 0
    segments = _before_observations(parts, parts.is_ended, 0)
    segments += final_item_segments(ctx, parts.is_ended, _final_items(parts))
    if not ctx.launch.split and not parts.row_items and not stages_final:
        segments += direct_segments(feature_values(ctx), final_neighbors_of_block, Segment(AGENTS, final_self_of_agent))
    starts = _start_segments(parts, is_new_episode)
    segments.append(Segment(ENVS, bind(end_env, **parts.values), barrier=bool(ctx.reset_phases)))
    segments += [*starts[:-1], starts[-1]._replace(barrier=not stages_final)]
    if not stages_final:
        return segments
    # Final observations are written from copies of the states, while the first warp starts the next episodes.
    first_thread = 32 if ctx.launch.threads_per_block > 32 else 0
    copies = feature_values(ctx) | {"first_thread": first_thread, "first_copy": ctx.num_final_copies}
    return segments + direct_segments(copies, staged_final_neighbors, Segment(BLOCK, staged_final_self))


def _finish_segments(parts: _Parts) -> list[Segment]:
    """The segments that write observations, and the state to its buffers."""
    ctx = parts.ctx
    segments = _before_observations(parts, every_env, 1)
    # By items, by a tile with all rows of the block, by a tile in several rounds, or directly
    if parts.row_items and not ctx.launch.split:
        segments += [item_segment(part, "obs") for part in parts.row_items]
    elif ctx.tile_holds_block:
        segments += fill_segments(feature_values(ctx))
    elif not ctx.launch.split and ctx.launch.tile_rows and ctx.schema.has_only_self_features:
        segments.append(self_rows_segment(feature_values(ctx)))
    elif not ctx.launch.split:
        values = feature_values(ctx)
        for block in parts.blocks:
            store = bind(store_element, **values, items=block)
            segments.append(Segment(AGENTS, store, barrier=False, num_elements=block.items_per_row))
        segments += direct_segments(values, neighbors_of_block, Segment(AGENTS, self_of_agent, barrier=False))
    if parts.critic is not None:
        segments.append(item_segment(parts.critic, CRITIC_OUTPUT))
    segments += [segment for part in ctx.parts for segment in mask_segments(part, parts.values)]
    if ctx.env.to_move is not None:
        segments.append(Segment(ENVS, bind(store_turn, **parts.values), barrier=False))
    segments.append(Segment(ENVS, ctx.access.store_scalars, barrier=False))
    if ctx.launch.stage_state:
        segments.append(Segment(AGENTS, ctx.access.store_to_global, barrier=False))
        segments += set_copy_segments(ctx, is_load=False)
    if ctx.tile_holds_block:
        drain = bind(drain_block, **feature_values(ctx), tile_threads=ctx.launch.threads_per_block)
        segments.append(Segment(BLOCK, drain, barrier=False))
    return segments
