"""Observations that are images, (C, H, W): a thread computes all channels of a few neighboring pixels and stores them together.

Consecutive threads have consecutive pixels, so their stores are coalesced. Four pixels of uint8 are one word.

Letters: C channels, i an agent, q a group of pixels, r an image of the buffer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.items import ItemStore

u8, u32 = np.uint8, np.uint32


def pixels_per_group(schema: MultiAgentSchema) -> int:
    """Returns the number of pixels that a thread computes: those that are stored as one word.

    Args:
        schema: the schema of an environment whose observations are images.
    """
    return 4 if schema.obs.dtype is u8 and math.prod(schema.obs.shape[1:]) % 4 == 0 else 1


def make_image_store(ctx: MultiAgentContext) -> ItemStore:
    """Compiles the function that stores a group of pixels, for a context `ctx`."""
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
    return ItemStore(num_pixels // group, inline_function(generate_function("store_group", source, **scope)))
