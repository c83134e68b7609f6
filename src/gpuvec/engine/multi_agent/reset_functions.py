"""The functions of the segments of a reset of many agents, in which envs are seeded and episodes start."""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import HAS_ENDED, TIME
from gpuvec.engine.multi_agent.step_functions import make_counter_reset

i32, u32 = np.int32, np.uint32


def make_reset_env(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `reset_env(b, w, e, k, clock, r)`: seeds an env if request r selects it, and loads the data of the whole env.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    rng_streams, load, clear_counters = ctx.rng_streams, ctx.ops.load, make_counter_reset(ctx)
    set_shared_seed, is_selected, begin_episode = (
        rng_streams.set_shared_seed,
        rng_streams.is_selected,
        rng_streams.begin_episode,
    )
    load_scalars, clear_scalars, is_new_episode = access.load_scalars, access.clear_scalars, status.is_new_episode

    @inline_function
    def reset_env(b: Batch, w: Work, e: int, k: int, clock: int, r: ResetRequest) -> None:
        # No thread reads the shared stream in a reset, so the first one may write it.
        if e == 0:
            set_shared_seed(b, clock, r)
        w.status[k, HAS_ENDED] = is_selected(b, e, r)
        clear_counters(w, k)
        load_scalars(b, w, e, k)
        if is_new_episode(w, k):
            begin_episode(b, e, clock, r)
            clear_scalars(w, k)
        start = load(b.start, e, u32)
        w.status[k, TIME] = load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start)

    return reset_env


def make_load_state(access: StateAccess) -> DeviceFunction:
    """Compiles `load_state(b, w, e, k, i, clock)`, which loads an agent's state to shared memory with `access`."""
    load_to_shared = access.load_to_shared

    @inline_function
    def load_state(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        load_to_shared(b, w, e, k, i)

    return load_state


def make_reset_agent(ctx: MultiAgentContext, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `reset_agent(b, w, e, k, i, clock, r)`: writes an agent's first state, if request r selects its env.

    Args:
        ctx: the context.
        status: the status of the episodes.
    """
    own_key, reset_params = ctx.rng_streams.own_key, ctx.reset_params
    is_new_episode, start_agent = status.is_new_episode, status.start_agent

    @inline_function
    def reset_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int, r: ResetRequest) -> None:
        if is_new_episode(w, k):
            start_agent(b, w, e, k, i, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r))

    return reset_agent
