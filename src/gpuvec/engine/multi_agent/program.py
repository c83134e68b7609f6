"""Assembles the functions of an environment of many agents into segments, with barriers between them.

For any shape of the launch, every element is computed by the same operations in the same order. `w`, the work, has the arrays
that the threads of a block share; on a CPU one thread runs one env.

Letters: e an env, k its index in the block, i an agent of the env, A agents per env.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import bind
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, Work
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.layout.declared_schema import CRITIC_OUTPUT, make_critic_schema
from gpuvec.engine.multi_agent.context import MultiAgentContext, SharedCounters, every_env, make_context
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors import (
    CellList,
    KnnFunctions,
    NeighborSearch,
    make_cell_list,
    make_knn,
    make_neighbor_search,
    search_segments,
)
from gpuvec.engine.multi_agent.observation_stores import (
    ItemStore,
    ObservationFeatures,
    RowItems,
    RowKernel,
    clear_list,
    direct_segments,
    drain_segment,
    ended_list_arrays,
    feature_values,
    fill_segments,
    final_item_segments,
    final_neighbors_of_block,
    final_self_of_agent,
    item_segment,
    lists_ended,
    make_block_stores,
    make_image_store,
    make_item_of_row,
    make_observation_features,
    make_row_kernel,
    neighbors_of_block,
    self_of_agent,
    self_rows_segment,
    staged_final_segments,
    store_element,
    tile_elements,
)
from gpuvec.engine.multi_agent.phase_functions import reduction_segments, tree_work_arrays
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment, without_barriers_between_envs
from gpuvec.engine.multi_agent.state_access import (
    COUNTERS,
    StateAccess,
    WorkArrays,
    make_state_access,
    save_final_segments,
    set_copy_segments,
    state_work_arrays,
)
from gpuvec.engine.multi_agent.step_segments import (
    check_end,
    end_env,
    is_new_episode,
    is_running,
    is_waiting,
    load_agent,
    load_env,
    load_state,
    mark_acting,
    mask_segments,
    metric_segments,
    phase_segment,
    reset_env,
    run_in_reset,
    save_final_agent,
    score_agent,
    stage_action_segments,
    start_agent,
    start_episode,
    start_segments,
    step_values,
    store_agent,
    store_env,
    store_turn,
)
from gpuvec.phases import Reduction


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
    access: StateAccess
    values: dict[str, Any]  # of `step_values`, for `bind`
    is_ended: DeviceFunction  # `is_new_episode` of `step`, compiled
    features: ObservationFeatures  # if spaces are by role, those of the first one, of which only `episode_time` is used
    blocks: list[ItemStore]
    # The items of rows that are stored item by item in the first kernel: images, or the rows of each role.
    row_items: list[RowItems]
    critic: RowItems | None  # the observations of a critic
    knn: KnnFunctions | None
    cell_list: CellList | None
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
    ctx = make_context(spec, ops, array_ops, counters, launch)
    access = make_state_access(ctx)
    features = make_observation_features(ctx.parts[0])
    knn = make_knn(ctx, ctx.schema.search) if ctx.schema.search is not None else None
    blocks = [] if ctx.role_contexts else make_block_stores(ctx, features)
    row_items = _row_items(ctx)
    values = step_values(ctx, access)
    is_ended = bind(is_new_episode, **values)
    set_loads = set_copy_segments(ctx, access.layout, is_load=True)
    critic, cell_list = _critic_items(ctx), make_cell_list(ctx)
    parts = _Parts(ctx, access, values, is_ended, features, blocks, row_items, critic, knn, cell_list, set_loads)
    arrays, ends = _work_arrays(parts), _episode_end_segments(parts) if ctx.same_step else []
    if blocks and not row_items:  # The kernel that only writes observations stores rows with blocks item by item.
        row_items = [RowItems(ctx, features, make_item_of_row(ctx, features, blocks))]
    return Program(
        work=named_tuple("Work", tuple(arrays)),
        arrays=arrays,
        aligned_arrays=access.layout.arrays_with_words | {"tile"},
        reset=tuple(_reset_segments(parts)),
        step=without_barriers_between_envs(_step_segments(parts), ctx.num_agents, is_synchronised=False, next_unit=ENVS),
        check_end=Segment(ENVS, bind(check_end, **values)),
        episode_end=without_barriers_between_envs(ends, ctx.num_agents, is_synchronised=True, next_unit=AGENTS),
        finish=tuple(_finish_segments(parts)),
        row_kernel=make_row_kernel(ctx, access, features, row_items),
        search=make_neighbor_search(ctx, access, knn, cell_list) if knn is not None and launch.split else None,
    )


def _row_items(ctx: MultiAgentContext) -> list[RowItems]:
    """The items of rows of each role, or of images; empty for the features of agents with equal spaces."""
    items = []
    for part in ctx.parts:
        if not ctx.role_contexts and not part.schema.obs.is_image:
            return []
        features = make_observation_features(part)
        is_image = part.schema.obs.is_image
        store = make_image_store(part) if is_image else make_item_of_row(part, features, make_block_stores(part, features))
        items.append(RowItems(part, features, store))
    return items


def _critic_items(ctx: MultiAgentContext) -> RowItems | None:
    """The items of rows of the critic's observations; None if the environment does not declare them."""
    schema = make_critic_schema(ctx.env, ctx.schema)
    if schema is None:
        return None
    part = dataclasses.replace(ctx, schema=schema)
    features = make_observation_features(part)
    return RowItems(part, features, make_item_of_row(part, features, make_block_stores(part, features)))


def _work_arrays(parts: _Parts) -> WorkArrays:
    """The arrays that the threads of a block share in the first kernel."""
    ctx, launch = parts.ctx, parts.ctx.launch
    rows, counters = launch.envs_per_block + ctx.num_final_copies, ctx.num_counters
    arrays: WorkArrays = {"status": (i32, (rows, COUNTERS + counters))}
    arrays |= state_work_arrays(ctx, parts.access.layout)
    agents = launch.envs_per_block * ctx.num_agents
    if ctx.stages_actions:
        arrays["actions"] = (ctx.schema.action.dtype, (agents * max(1, ctx.schema.action.components),))
    if ctx.stages_active:
        arrays["was_active"] = (b1, (agents,))
    arrays |= tree_work_arrays(ctx)
    arrays |= ended_list_arrays(ctx) if _final_items(parts) else {}
    if parts.cell_list is not None and not launch.split:
        arrays |= parts.cell_list.arrays
    if launch.tile_rows and not launch.split:
        arrays["tile"] = (f32, (tile_elements(launch.tile_rows, ctx.schema.num_features),))
    arrays["best_rank"] = (i64, (launch.envs_per_block, max(1, counters)))
    return arrays


def _reset_segments(parts: _Parts) -> list[Segment]:
    """The segments of a reset, up to `finish`."""
    ctx, values, stages = parts.ctx, parts.values, parts.ctx.launch.stage_state
    segments = [Segment(ENVS, bind(reset_env, **values), barrier=not stages, takes_request=True), *parts.set_loads]
    if stages:
        segments.append(Segment(AGENTS, bind(load_state, **values)))
    if ctx.reset_phases:
        return segments + start_segments(ctx, parts.access, values, parts.is_ended, in_reset=True)
    return [*segments, Segment(AGENTS, bind(run_in_reset, **values, element=start_agent), takes_request=True)]


def _start_segments(parts: _Parts, condition: Callable[..., Any]) -> list[Segment]:
    """The segments that save last states and write first states in a step, in envs for which `condition(w, k)` is true."""
    ctx, values = parts.ctx, parts.values | {"condition": condition}
    if not ctx.reset_phases:
        return [Segment(AGENTS, bind(start_episode, **values))]
    starts = bind(condition, **values)
    segments = []
    if ctx.launch.split and ctx.same_step:
        segments += [*save_final_segments(ctx, parts.access, starts), Segment(AGENTS, bind(save_final_agent, **values))]
    return segments + start_segments(ctx, parts.access, values, starts, in_reset=False)


def _step_segments(parts: _Parts) -> list[Segment]:
    """The segments of a step, up to `check_end`."""
    ctx, access, values, set_loads = parts.ctx, parts.access, parts.values, parts.set_loads
    if set_loads and ctx.env.active is not None and not ctx.schema.roles.keys().isdisjoint(ctx.schema.field_sets.values()):
        # `active` may read an agent's element of a field of its role, which another thread loads.
        set_loads = [*set_loads[:-1], set_loads[-1]._replace(barrier=True)]
    segments = [
        Segment(ENVS, bind(load_env, **values), barrier=False),
        *([Segment(BLOCK, bind(clear_list), barrier=False)] if lists_ended(ctx) and _final_items(parts) else []),
        *set_loads,
        *stage_action_segments(ctx, values),
        Segment(AGENTS, bind(load_agent, **values)),
    ]
    if ctx.env.to_move is not None:
        segments.append(Segment(AGENTS, bind(mark_acting, **values)))
    if ctx.next_step:
        segments += _start_segments(parts, is_waiting)
    for number, phase in enumerate(ctx.env.phases):
        if isinstance(phase, Reduction):
            segments += reduction_segments(ctx, access, phase, ctx.counter_of_phase(number), bind(is_running, **values))
        else:
            segments.append(phase_segment(ctx, access, values, phase))
    segments += metric_segments(ctx, access, values)
    return [*segments, Segment(AGENTS, bind(score_agent, **values))]


def _before_observations(parts: _Parts, condition: DeviceFunction, number: int) -> list[Segment]:
    """The segments of the reduction or search before observations; `number` is 0 for final observations, 1 for all others."""
    ctx = parts.ctx
    if ctx.observed_reduction is not None:
        return reduction_segments(ctx, parts.access, ctx.observed_reduction, ctx.observed_counter(number), condition)
    if parts.knn is not None and not ctx.launch.split:
        return search_segments(ctx, parts.access, parts.knn, parts.cell_list, condition)
    return []


def _final_items(parts: _Parts) -> list[tuple[RowItems, str]]:
    """The items of final observations that the first kernel stores, and the names of their outputs."""
    items = [] if parts.critic is None else [(parts.critic, CRITIC_OUTPUT)]
    if parts.ctx.launch.split:
        return items
    blocks = (RowItems(parts.ctx, parts.features, block) for block in parts.blocks)
    return items + [(rows, "obs") for rows in parts.row_items or blocks]


def _episode_end_segments(parts: _Parts) -> list[Segment]:
    """The segments that write final observations and start the next episodes."""
    ctx, stages_final = parts.ctx, parts.ctx.num_final_copies > 0
    segments = _before_observations(parts, parts.is_ended, 0)
    segments += final_item_segments(ctx, parts.access, parts.is_ended, _final_items(parts))
    if not ctx.launch.split and not parts.row_items and not stages_final:
        values = feature_values(ctx, parts.access, parts.features)
        segments += direct_segments(values, final_neighbors_of_block, Segment(AGENTS, final_self_of_agent))
    starts = _start_segments(parts, is_new_episode)
    segments.append(Segment(ENVS, bind(end_env, **parts.values), barrier=bool(ctx.reset_phases)))
    segments += [*starts[:-1], starts[-1]._replace(barrier=not stages_final)]
    return segments + (staged_final_segments(feature_values(ctx, parts.access, parts.features)) if stages_final else [])


def _finish_segments(parts: _Parts) -> list[Segment]:
    """The segments that write observations, and the state to its buffers."""
    ctx, access = parts.ctx, parts.access
    segments = _before_observations(parts, every_env, 1)
    if not ctx.launch.split:
        segments += _observation_segments(parts)
    if parts.critic is not None:
        segments.append(item_segment(access, parts.critic, CRITIC_OUTPUT))
    segments += [segment for part in ctx.parts for segment in mask_segments(part, parts.values)]
    if ctx.env.to_move is not None:
        segments.append(Segment(ENVS, bind(store_turn, **parts.values), barrier=False))
    segments.append(Segment(ENVS, bind(store_env, **parts.values), barrier=False))
    if ctx.launch.stage_state:
        segments.append(Segment(AGENTS, bind(store_agent, **parts.values), barrier=False))
        segments += set_copy_segments(ctx, access.layout, is_load=False)
    return segments + ([drain_segment(feature_values(ctx, access, parts.features))] if ctx.tile_holds_block else [])


def _observation_segments(parts: _Parts) -> list[Segment]:
    """The segments that write observations: by a tile with all rows of the block, by a tile in several rounds, or directly."""
    ctx, access = parts.ctx, parts.access
    if parts.row_items:
        return [item_segment(access, part, "obs") for part in parts.row_items]
    values = feature_values(ctx, access, parts.features)
    if ctx.tile_holds_block:
        return fill_segments(values)
    if ctx.launch.tile_rows and ctx.schema.has_only_self_features:
        return [self_rows_segment(values)]
    segments = [
        Segment(AGENTS, bind(store_element, **values, items=block), barrier=False, num_elements=block.items_per_row)
        for block in parts.blocks
    ]
    return segments + direct_segments(values, neighbors_of_block, Segment(AGENTS, self_of_agent, barrier=False))
