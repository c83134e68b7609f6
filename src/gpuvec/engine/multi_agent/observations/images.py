"""Observations that are images, (C, H, W): a thread computes all channels of a few neighboring pixels and stores them together.

Consecutive threads have consecutive pixels, so their stores are coalesced. Four pixels of uint8 are one word.

Letters: A agents per env, C channels, N pixels of an image, e an env, k its index in the block, i an agent, q a group of
pixels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_env
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures, make_output
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME

f32, u8, u32 = np.float32, np.uint8, np.uint32


class ImageStores(NamedTuple):
    """The compiled function that stores part of an image."""

    groups_per_image: int
    # store_group(out, r, q, i, s, t, p): group q of the pixels of agent i, in image r of the buffer `out`
    store_group: DeviceFunction


def pixels_per_group(schema: MultiAgentSchema) -> int:
    """Returns the number of pixels that a thread computes: those that are stored as one word.

    Args:
        schema: the schema of an environment whose observations are images.
    """
    return 4 if schema.obs.dtype is u8 and math.prod(schema.obs.shape[1:]) % 4 == 0 else 1


def make_image_stores(ctx: MultiAgentContext) -> ImageStores:
    """Compiles the function for a context `ctx`."""
    channels, _, width = ctx.schema.obs.shape
    num_pixels, group = math.prod(ctx.schema.obs.shape[1:]), pixels_per_group(ctx.schema)
    pixel: Any = ctx.schema.observation.pixel
    source = "def store_group(out, r, q, i, s, t, p):\n"
    for n in range(group):
        source += f"    v{n} = pixel(i, divmod_u32(q * {group} + {n}, {width}), s, t, p)\n"
    for c in range(channels):
        value = f"dtype(v0[{c}])" if group == 1 else " | ".join(f"u32(u8(v{n}[{c}])) << u32({8 * n})" for n in range(group))
        index = f"(r * {channels} + {c}) * {num_pixels // group} + q"
        source += f"    store_streaming(out, {index}, {value}, {'dtype' if group == 1 else 'u32'})\n"
    scope = {
        "pixel": device_function(pixel),
        "divmod_u32": ctx.array_ops.divmod_u32,
        "u8": u8,
        "u32": u32,
    }
    scope |= {"store_streaming": ctx.ops.store_streaming, "dtype": ctx.schema.obs.dtype}
    return ImageStores(num_pixels // group, inline_function(generate_function("store_group", source, **scope)))


def image_segment(
    ctx: MultiAgentContext,
    access: StateAccess,
    features: ObservationFeatures,
    stores: ImageStores,
    condition: DeviceFunction | None = None,
) -> Segment:
    """Compiles the segment that stores the images of all agents, or the final ones of envs whose episode ended.

    Args:
        ctx: the context.
        access: access to the state.
        features: has the time of an episode.
        stores: the function that stores part of an image.
        condition: `condition(w, k)` -> whether the episode of env k ended, for final observations; None for all others.
    """
    A, groups, store_group = ctx.num_agents, stores.groups_per_image, stores.store_group
    state, params, episode_time, divmod_u32 = access.state, ctx.params, features.episode_time, ctx.array_ops.divmod_u32
    out, is_stored = make_output(condition is not None), condition or every_env

    @inline_function
    def store(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        if is_stored(w, k):
            i, q = divmod_u32(x, groups)
            store_group(out(b), e * A + i, q, i, state(b, w, e, k), episode_time(w.status[k, TIME]), params(b, e))

    return Segment(AGENTS, store, barrier=condition is not None, num_elements=A * groups)
