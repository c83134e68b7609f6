"""The action mask of the next step, from the author's function `allowed`.

Letters: A agents per env, N actions of an agent, or the sum of the components' sizes, e an env, k its index in the block, i an
agent, n an action.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess

b1 = np.bool_


def mask_segments(ctx: MultiAgentContext, access: StateAccess) -> list[Segment]:
    """Compiles the segment that stores the masks of all agents; none if the environment has no function `allowed`.

    Args:
        ctx: the context of all agents, or of one role.
        access: access to the state.
    """
    if ctx.env.allowed is None:
        return []
    A, N, divmod_u32, store_streaming = ctx.num_agents, ctx.schema.mask_size, ctx.array_ops.divmod_u32, ctx.ops.store_streaming
    allowed, state, params = device_function(ctx.env.allowed), access.state, ctx.params
    action_of_number = _make_action_of_number(ctx.schema.action_space)
    suffix = ctx.schema.suffix
    mask_of = inline_function(generate_function("mask_of", f"def mask_of(b):\n    return b.action_mask{suffix}\n"))

    @inline_function
    def store_mask(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        i, n = divmod_u32(x, N)
        is_allowed = allowed(i, action_of_number(n), state(b, w, e, k), params(b, e))
        store_streaming(mask_of(b), e * (A * N) + x, is_allowed, b1)

    return [Segment(AGENTS, store_mask, barrier=False, num_elements=A * N)]


def _make_action_of_number(space: gym.Space[Any]) -> DeviceFunction:
    """`action_of_number(n)`: the action at position n of a mask, or the pair (component, value) of a MultiDiscrete action."""
    source = "def action_of_number(n):\n"
    if isinstance(space, gym.spaces.Discrete):
        source += f"    return i32(n + {int(space.start)})\n"
    else:
        assert isinstance(space, gym.spaces.MultiDiscrete), "a Box has no masks"
        first = 0
        for component, (size, start) in enumerate(zip(space.nvec.tolist(), space.start.tolist(), strict=True)):
            source += f"    if n < {first + size}:\n        return i32({component}), i32(n - {first} + {start})\n"
            first += size
        source += f"    return i32({len(space.nvec) - 1}), i32(0)\n"
    return inline_function(generate_function("action_of_number", source, i32=np.int32))
