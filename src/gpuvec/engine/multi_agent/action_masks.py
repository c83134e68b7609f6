"""The action mask of the next step, from the author's function `allowed`.

Letters: A agents per env, N actions of an agent, or the sum of the components' sizes, e an env, k its index in the block, i an
agent, n an action.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Work
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
    if ctx.schema.mask_size == 0:
        return []
    A, N, divmod_u32, store_streaming = ctx.num_agents, ctx.schema.mask_size, ctx.array_ops.divmod_u32, ctx.ops.store_streaming
    state, params = access.state, ctx.params
    is_allowed = _make_is_allowed(ctx)
    suffix = ctx.schema.suffix
    mask_of = inline_function(generate_function("mask_of", f"def mask_of(b):\n    return b.action_mask{suffix}\n"))

    @inline_function
    def store_mask(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        i, n = divmod_u32(x, N)
        store_streaming(mask_of(b), e * (A * N) + x, is_allowed(i, n, state(b, w, e, k), params(b, e)), b1)

    return [Segment(AGENTS, store_mask, barrier=False, num_elements=A * N)]


def _make_is_allowed(ctx: MultiAgentContext) -> DeviceFunction:
    """`is_allowed(i, n, s, p)`: whether agent i may choose the action at position n of its mask."""
    assert ctx.env.allowed is not None, "an environment with masks has this function"
    allowed, action_of_number = device_function(ctx.env.allowed), _make_action_of_number(ctx.schema.action_space)
    if ctx.schema.masked_components is None:

        @inline_function
        def is_allowed(i: int, n: int, s: EnvState, p: EnvParams) -> bool:
            return allowed(i, action_of_number(n), s, p)  # type: ignore[no-any-return]

        return is_allowed
    # Positions of other components are compared with the bounds of those with masks alone.
    space = ctx.schema.action_space
    source = "def is_allowed(i, n, s, p):\n"
    for component in ctx.schema.masked_components:
        first, size = int(space.nvec[:component].sum()), int(space.nvec[component])
        source += f"    if {first} <= n < {first + size}:\n"
        source += f"        return allowed(i, (i32({component}), i32(n - {first} + {int(space.start[component])})), s, p)\n"
    source += "    return True\n"
    return inline_function(generate_function("is_allowed", source, allowed=allowed, i32=np.int32))


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
