"""Assembles the functions of an environment of many agents into segments, with barriers between them.

For any shape of the launch, every element is computed by the same operations in the same order. `w`, the work, has the arrays
that the threads of a block share; on a CPU one thread runs one env.

Letters: e an env, k its index in the block, i an agent of the env, A agents per env.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, Work
from gpuvec.engine.layout.buffers import KernelOptions, named_tuple
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
from gpuvec.engine.multi_agent.observations import (
    DirectStores,
    ItemStore,
    ObservationFeatures,
    RowItems,
    RowKernel,
    clear_list_segments,
    direct_segments,
    drain_segment,
    element_segment,
    ended_list_arrays,
    fill_segments,
    final_item_segments,
    final_segments,
    item_segment,
    make_block_stores,
    make_direct_stores,
    make_image_store,
    make_item_of_row,
    make_observation_features,
    make_row_kernel,
    self_rows_segment,
    staged_final_segments,
    tile_elements,
)
from gpuvec.engine.multi_agent.phases import reduction_segments, tree_work_arrays
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment, without_barriers_between_envs
from gpuvec.engine.multi_agent.state_access import (
    COUNTERS,
    StateAccess,
    WorkArrays,
    make_state_access,
    save_final_segments,
    set_copy_segments,
    state_work_arrays,
)
from gpuvec.engine.multi_agent.step import (
    EpisodeStatus,
    acting_segments,
    in_reset,
    in_step,
    make_check_end,
    make_end_env,
    make_episode_status,
    make_load_agent,
    make_load_env,
    make_load_state,
    make_reset_agent,
    make_reset_env,
    make_save_final_agent,
    make_score_agent,
    make_start_episode,
    make_store_agent,
    make_store_env,
    mask_segments,
    metric_segments,
    next_turn_segments,
    phase_segment,
    stage_action_segments,
    start_segments,
)
from gpuvec.phases import Reduction
from gpuvec.spec import Environment

f32, i32, i64, b1 = np.float32, np.int32, np.int64, np.bool_


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
    status: EpisodeStatus
    features: ObservationFeatures  # if spaces are by role, those of the first one, of which only `episode_time` is used
    stores: DirectStores | None  # None if spaces are by role
    blocks: list[ItemStore]
    # The items of rows that are stored item by item in the first kernel: images, or the rows of each role.
    row_items: list[RowItems]
    critic: RowItems | None  # the observations of a critic
    knn: KnnFunctions | None
    cell_list: CellList | None
    set_loads: list[Segment]  # of a reset and of a step: copy the fields of sets to shared memory


def make_program(
    env: Environment,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    counters: SharedCounters,
    launch: MultiAgentLaunch,
) -> Program:
    """Compiles the program of an environment.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        ops: the device's operations on buffers.
        array_ops: the device's operations on arrays.
        counters: the device's operations on counters that the threads of a block share.
        launch: the shape of the launches, or `CPU_LAUNCH`.
    """
    ctx = make_context(env, options, ops, array_ops, counters, launch)
    access = make_state_access(ctx)
    features = make_observation_features(ctx.parts[0], access)
    stores = None if ctx.role_contexts else make_direct_stores(ctx, access, features)
    knn = make_knn(ctx, ctx.search) if ctx.search is not None else None
    blocks = [] if ctx.role_contexts else make_block_stores(ctx, features)
    row_items = _row_items(ctx, access)
    status = make_episode_status(ctx, access)
    set_loads = set_copy_segments(ctx, access.layout, is_load=True)
    critic, cell_list = _critic_items(ctx, access), make_cell_list(ctx)
    parts = _Parts(ctx, access, status, features, stores, blocks, row_items, critic, knn, cell_list, set_loads)
    arrays, ends = _work_arrays(parts), _episode_end_segments(parts) if ctx.same_step else []
    return Program(
        work=named_tuple("Work", tuple(arrays)),
        arrays=arrays,
        aligned_arrays=access.layout.arrays_with_words | {"tile"},
        reset=tuple(_reset_segments(parts)),
        step=without_barriers_between_envs(_step_segments(parts), ctx.num_agents, is_synchronised=False, next_unit=ENVS),
        check_end=Segment(ENVS, make_check_end(ctx, access, parts.status)),
        episode_end=without_barriers_between_envs(ends, ctx.num_agents, is_synchronised=True, next_unit=AGENTS),
        finish=tuple(_finish_segments(parts)),
        row_kernel=make_row_kernel(ctx, access, parts.features, row_items or _items_with_blocks(parts)),
        search=make_neighbor_search(ctx, access, knn, parts.cell_list) if knn is not None and launch.split else None,
    )


def _row_items(ctx: MultiAgentContext, access: StateAccess) -> list[RowItems]:
    """The items of rows of each role, or of images; empty for the features of agents with equal spaces."""
    items = []
    for part in ctx.parts:
        if not ctx.role_contexts and not part.schema.obs.is_image:
            return []
        features = make_observation_features(part, access)
        is_image = part.schema.obs.is_image
        store = make_image_store(part) if is_image else make_item_of_row(part, features, make_block_stores(part, features))
        items.append(RowItems(part, features, store))
    return items


def _critic_items(ctx: MultiAgentContext, access: StateAccess) -> RowItems | None:
    """The items of rows of the critic's observations; None if the environment does not declare them."""
    schema = make_critic_schema(ctx.env, ctx.schema)
    if schema is None:
        return None
    part = dataclasses.replace(ctx, schema=schema)
    features = make_observation_features(part, access)
    return RowItems(part, features, make_item_of_row(part, features, make_block_stores(part, features)))


def _items_with_blocks(parts: _Parts) -> list[RowItems]:
    """The items of rows with blocks, for the kernel that only writes observations."""
    if not parts.blocks:
        return []
    return [RowItems(parts.ctx, parts.features, make_item_of_row(parts.ctx, parts.features, parts.blocks))]


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
    ctx, access, status, stages = parts.ctx, parts.access, parts.status, parts.ctx.launch.stage_state
    return [
        Segment(ENVS, make_reset_env(ctx, access, status), barrier=not stages, takes_request=True),
        *parts.set_loads,
        *([Segment(AGENTS, make_load_state(access))] if stages else []),
        *_requested_start_segments(parts),
    ]


def _requested_start_segments(parts: _Parts) -> list[Segment]:
    """The segments that write first states in a reset."""
    ctx, access, status = parts.ctx, parts.access, parts.status
    if ctx.reset_phases:
        return start_segments(ctx, access, status.is_new_episode, in_reset(ctx, status))
    return [Segment(AGENTS, make_reset_agent(ctx, status), takes_request=True)]


def _start_segments(parts: _Parts, condition: DeviceFunction) -> list[Segment]:
    """The segments that save last states and write first states in a step, in envs for which `condition(w, k)` is true."""
    ctx, access, status = parts.ctx, parts.access, parts.status
    if not ctx.reset_phases:
        return [Segment(AGENTS, make_start_episode(ctx, access, status, condition))]
    saves_final = ctx.launch.split and ctx.same_step
    save_final = [*save_final_segments(ctx, access, condition), Segment(AGENTS, make_save_final_agent(access, condition))]
    return (save_final if saves_final else []) + start_segments(ctx, access, condition, in_step(ctx, status, condition))


def _step_segments(parts: _Parts) -> list[Segment]:
    """The segments of a step, up to `check_end`."""
    ctx, access, status, set_loads = parts.ctx, parts.access, parts.status, parts.set_loads
    if set_loads and ctx.env.active is not None and not ctx.schema.roles.keys().isdisjoint(ctx.schema.field_sets.values()):
        # `active` may read an agent's element of a field of its role, which another thread loads.
        set_loads = [*set_loads[:-1], set_loads[-1]._replace(barrier=True)]
    segments = [
        Segment(ENVS, make_load_env(ctx, access, status), barrier=False),
        *(clear_list_segments(ctx) if _final_items(parts) else []),
        *set_loads,
        *stage_action_segments(ctx),
        Segment(AGENTS, make_load_agent(ctx, access)),
    ]
    segments += acting_segments(ctx, access, status)
    if ctx.next_step:
        segments += _start_segments(parts, status.awaits_reset)
    for number, phase in enumerate(ctx.env.phases):
        if isinstance(phase, Reduction):
            segments += reduction_segments(ctx, access, phase, ctx.phase_counter(number), status.is_running)
        else:
            segments.append(phase_segment(ctx, access, status, phase))
    segments += metric_segments(ctx, access, status)
    return [*segments, Segment(AGENTS, make_score_agent(ctx, access, status, parts.features.episode_time))]


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
    ctx, access, status = parts.ctx, parts.access, parts.status
    stages_final = ctx.num_final_copies > 0
    segments = _before_observations(parts, status.is_new_episode, 0)
    segments += final_item_segments(ctx, access, status, _final_items(parts))
    if not ctx.launch.split and not parts.row_items and not stages_final:
        segments += final_segments(ctx, parts.features, parts.stores)
    starts = _start_segments(parts, status.is_new_episode)
    segments.append(Segment(ENVS, make_end_env(ctx, access, status), barrier=bool(ctx.reset_phases)))
    segments += [*starts[:-1], starts[-1]._replace(barrier=not stages_final)]
    return segments + (staged_final_segments(ctx, parts.features, parts.stores) if stages_final else [])


def _finish_segments(parts: _Parts) -> list[Segment]:
    """The segments that write observations, and the state to its buffers."""
    ctx, access = parts.ctx, parts.access
    segments = _before_observations(parts, every_env, 1)
    if not ctx.launch.split:
        segments += _observation_segments(parts)
    if parts.critic is not None:
        segments.append(item_segment(parts.critic.ctx, access, *parts.critic[1:], output_name=CRITIC_OUTPUT))
    segments += [segment for part in ctx.parts for segment in mask_segments(part, access)] + next_turn_segments(ctx, access)
    segments.append(Segment(ENVS, make_store_env(access), barrier=False))
    if ctx.launch.stage_state:
        segments.append(Segment(AGENTS, make_store_agent(access), barrier=False))
        segments += set_copy_segments(ctx, access.layout, is_load=False)
    return segments + ([drain_segment(ctx)] if ctx.tile_holds_block else [])


def _observation_segments(parts: _Parts) -> list[Segment]:
    """The segments that write observations: by a tile with all rows of the block, by a tile in several rounds, or directly."""
    ctx, access, features = parts.ctx, parts.access, parts.features
    if parts.row_items:
        return [item_segment(part.ctx, access, *part[1:]) for part in parts.row_items]
    if ctx.tile_holds_block:
        return fill_segments(ctx, access, features)
    if ctx.launch.tile_rows and ctx.schema.has_only_self_features:
        return [self_rows_segment(ctx, features.compute_self_features)]
    return [element_segment(ctx, access, features, block) for block in parts.blocks] + direct_segments(
        ctx, features, parts.stores
    )
