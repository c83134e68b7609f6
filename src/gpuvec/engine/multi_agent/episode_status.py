"""What a block knows of the episodes in its envs, and how one begins.

Letters: e an env, k that env within the block, i an agent within its env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.multi_agent.state_access import CLOCK, IDLE, OVER, STREAM, StateAccess
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv

i32, u32 = np.int32, np.uint32


class Episode(NamedTuple):
    """The functions of composed code; `b` is the batch, `w` the work."""

    idle: Any  # idle(w, k)
    playing: Any  # playing(w, k)
    over: Any  # over(w, k)
    any_env: Any  # any_env(w, k)
    now: Any  # now(w, k) -> the clock
    key: Any  # key(w, k, start, t) -> the Key of a step
    first: Any  # first(b, w, e, k, i, key, params)


def episode(env: MultiAgentEnv, options: KernelOptions, state: StateAccess) -> Episode:
    """Their versions for `env`."""
    row, pooled, takes, reset = state.row, state.pooled, bool(options.pool), device_function(env.reset)
    same_step = options.autoreset is AutoresetMode.SAME_STEP

    @inline_function
    def idle(w: Any, k: int) -> bool:
        """Whether the env's episode ended in the last step."""
        return not same_step and w.now[k, IDLE] != i32(0)

    @inline_function
    def playing(w: Any, k: int) -> bool:
        return not idle(w, k)

    @inline_function
    def over(w: Any, k: int) -> bool:
        """Whether it ended in this step, or is about to be reset."""
        return bool(w.now[k, OVER] != i32(0))

    @inline_function
    def any_env(w: Any, k: int) -> bool:
        return True

    @inline_function
    def now(w: Any, k: int) -> int:
        """The clock, as who first looks at it puts it down: a sum with it that others had too would be waited for by all."""
        return u32(w.now[k, CLOCK])

    @inline_function
    def key(w: Any, k: int, start: int, t: int) -> Any:
        """Of step t of the episode that began at clock `start`; the stream is read before, as who draws had to wait for it."""
        seed, high, number = u32(w.now[k, STREAM]), u32(w.now[k, STREAM + 1]), u32(w.now[k, STREAM + 2])
        return Key(seed, high, number, u32(start - u32(w.now[k, STREAM + 3])), i32(t))

    @inline_function
    def first(b: Any, w: Any, e: int, k: int, i: int, key_: Any, p: Any) -> None:
        """Agent i's first state of the episode with that key."""
        s = row(b, w, e, k)
        reset(i, s, key_, p)
        if takes:
            pooled(b, s, i, key_)

    return Episode(idle, playing, over, any_env, now, key, first)
