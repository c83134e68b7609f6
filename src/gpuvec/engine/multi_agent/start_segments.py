"""The segments that write the first state of an episode if `reset` is a tuple of phases, in a step and in a reset.

Letters: e an env, k its index in the block, c the number of an element.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, ResetRequest, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.phase_functions import make_phase_element, make_step_segment, unit_of_set
from gpuvec.engine.multi_agent.reductions import reduction_segments
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.set_fields import pool_element, pool_scalars
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.phases import Reduction
from gpuvec.random import Key

i32, u32 = np.int32, np.uint32
# wrap(unit, element) -> Segment, for `element(b, w, e, k, c, key, p)`
WrapElement = Callable[[int, DeviceFunction], Segment]


def start_segments(ctx: MultiAgentContext, access: StateAccess, condition: DeviceFunction, wrap: WrapElement) -> list[Segment]:
    """Compiles the segments of the phases of `reset`, and then those that set fields from the reset pool.

    Args:
        ctx: the context.
        access: access to the state.
        condition: `condition(w, k)` -> whether an episode begins in env k of the block.
        wrap: `in_step` or `in_reset`.
    """
    segments: list[Segment] = []
    for number, phase in enumerate(ctx.reset_phases):
        if isinstance(phase, Reduction):
            segments += reduction_segments(ctx, access, phase, ctx.reset_counter(number), condition)
            continue
        index_set, element = make_phase_element(ctx, access, phase, has_action=False)
        unit, count = unit_of_set(ctx, index_set)
        segments.append(wrap(unit, element)._replace(num_elements=count))
    return segments + _pool_segments(ctx, access, wrap)


def _pool_segments(ctx: MultiAgentContext, access: StateAccess, wrap: WrapElement) -> list[Segment]:
    """The segments that set fields from a random state of the reset pool."""
    if not ctx.options.pool:
        return []
    state, set_from_pool = access.state, access.set_from_pool

    @inline_function
    def agent_from_pool(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
        set_from_pool(b, state(b, w, e, k), i, key)

    segments = [wrap(AGENTS, agent_from_pool)]
    for field, buffer in access.layout.set_fields.items():
        if field in ctx.options.pool:
            element = pool_element(ctx, access, field)
            segments.append(wrap(AGENTS, element)._replace(num_elements=int(np.prod(buffer.shape))))
    if (scalars := pool_scalars(ctx, access)) is not None:
        segments.append(wrap(AGENTS, scalars)._replace(num_elements=1))
    return segments


def in_step(ctx: MultiAgentContext, status: EpisodeStatus, condition: DeviceFunction) -> WrapElement:
    """Returns the function that makes segments of a step from compiled elements.

    Args:
        ctx: the context.
        status: the status of the episodes.
        condition: `condition(w, k)` -> whether an episode begins in env k of the block.
    """
    step_key, current_clock = status.step_key, status.current_clock

    @inline_function
    def key_of(w: Work, k: int) -> Key:
        return step_key(w, k, current_clock(w, k), i32(0))  # type: ignore[no-any-return]  # a Key

    return lambda unit, element: make_step_segment(ctx, unit, element, condition, key_of)


def in_reset(ctx: MultiAgentContext, status: EpisodeStatus) -> WrapElement:
    """Returns the function that makes segments of a reset from compiled elements.

    Args:
        ctx: the context.
        status: the status of the episodes.
    """
    own_key, reset_params, is_new_episode = ctx.rng_streams.own_key, ctx.reset_params, status.is_new_episode

    def wrap(unit: int, element: DeviceFunction) -> Segment:
        @inline_function
        def run(b: Batch, w: Work, e: int, k: int, c: int, clock: int, r: ResetRequest) -> None:
            if is_new_episode(w, k):
                element(b, w, e, k, c, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r))

        @inline_function
        def run_env(b: Batch, w: Work, e: int, k: int, clock: int, r: ResetRequest) -> None:
            run(b, w, e, k, 0, clock, r)

        return Segment(unit, run_env if unit == ENVS else run, takes_request=True)

    return wrap
