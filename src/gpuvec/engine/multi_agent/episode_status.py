"""The status of the episodes in the envs of a block: running, ended, or awaiting a reset; and the start of an episode.

Letters: e an env, k its index in the block, i an agent of the env.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.set_fields import pool_scalars
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import AWAITS_RESET, CLOCK, HAS_ENDED, RNG_STREAM
from gpuvec.random import Key

i32, u32 = np.int32, np.uint32


class EpisodeStatus(NamedTuple):
    """The compiled functions of one context; `b` is the batch, `w` the work."""

    awaits_reset: DeviceFunction  # awaits_reset(w, k) -> whether the episode of env k ended in the last step
    is_running: DeviceFunction  # is_running(w, k) -> whether it did not end then
    is_new_episode: DeviceFunction  # is_new_episode(w, k) -> whether the last one ended in this step, or a reset was requested
    current_clock: DeviceFunction  # current_clock(w, k) -> the clock of this step, uint32
    step_key: DeviceFunction  # step_key(w, k, start, t) -> the Key of step t of the episode that began at clock `start`
    start_agent: DeviceFunction  # start_agent(b, w, e, k, i, key, p): writes the first state of agent i


def make_episode_status(ctx: MultiAgentContext, access: StateAccess) -> EpisodeStatus:
    """Compiles the functions for a context `ctx`, whose state `access` reads and writes."""
    same_step = ctx.same_step

    @inline_function
    def awaits_reset(w: Work, k: int) -> bool:
        return not same_step and w.status[k, AWAITS_RESET] != i32(0)

    @inline_function
    def is_running(w: Work, k: int) -> bool:
        return not awaits_reset(w, k)

    @inline_function
    def is_new_episode(w: Work, k: int) -> bool:
        return bool(w.status[k, HAS_ENDED] != i32(0))

    @inline_function
    def current_clock(w: Work, k: int) -> int:
        # With the clock in a register, every thread would wait for its load, so it is read from shared memory.
        return u32(w.status[k, CLOCK])

    @inline_function
    def step_key(w: Work, k: int, start: int, t: int) -> Key:
        # `load_env` has loaded the stream, because the first draw of a step would wait for it.
        seed, high, row = u32(w.status[k, RNG_STREAM]), u32(w.status[k, RNG_STREAM + 1]), u32(w.status[k, RNG_STREAM + 2])
        return Key(seed, high, row, u32(start - u32(w.status[k, RNG_STREAM + 3])), i32(t))

    start_agent = _make_start_agent(ctx, access)
    return EpisodeStatus(awaits_reset, is_running, is_new_episode, current_clock, step_key, start_agent)


def _make_start_agent(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """`start_agent` as in `EpisodeStatus`, for steps and resets."""
    has_pool = bool(ctx.options.pool)
    # If `reset` is a tuple of phases, other segments start an episode, and nothing calls this function.
    reset: DeviceFunction = device_function(ctx.env.reset) if callable(ctx.env.reset) else every_agent
    state, set_from_pool = access.state, access.set_from_pool
    scalars_from_pool = pool_scalars(ctx, access)
    has_pool_scalars, set_scalars = scalars_from_pool is not None, scalars_from_pool or every_agent

    @inline_function
    def start_agent(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
        s = state(b, w, e, k)
        reset(i, s, key, p)
        if has_pool:
            set_from_pool(b, s, i, key)
        if has_pool_scalars and i == 0:
            set_scalars(b, w, e, k, i, key, p)

    return start_agent
