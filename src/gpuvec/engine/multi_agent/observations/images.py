"""Observations that are images, (C, H, W): a thread computes all channels of a few neighboring pixels and stores them together.

Consecutive threads have consecutive pixels, so their stores are coalesced. Two or four pixels of uint8 are stored as one word.

Letters: C channels, i an agent, q a group of pixels, r an image of the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.items import ItemStore

WORDS = {4: np.uint32, 2: np.uint16}  # {pixels of uint8 in a word: its type}


def make_image_store(ctx: MultiAgentContext) -> ItemStore:
    """Compiles the function that stores a group of pixels, for a context `ctx`."""
    layout = ctx.schema.obs
    channels, height, width = layout.shape
    group, num_groups = layout.pixels_per_word, height * width // layout.pixels_per_word
    pixel: Any = ctx.schema.observation.pixel
    source = "def store_group(out, r, q, i, s, t, p):\n"
    for n in range(group):
        source += f"    v{n} = pixel(i, divmod_i32(q * {group} + {n}, {width}), s, t, p)\n"
    for c in range(channels):
        pixels = [f"v{n}[{c}]" for n in range(group)]
        value = f"dtype({pixels[0]})" if group == 1 else f"pack_bytes(({', '.join(pixels)}))"
        source += f"    store_streaming(out, (r * {channels} + {c}) * {num_groups} + q, {value}, word)\n"
    scope = {
        "pixel": device_function(pixel),
        "divmod_i32": ctx.array_ops.divmod_i32,
        "pack_bytes": ctx.array_ops.pack_bytes,
        "store_streaming": ctx.ops.store_streaming,
        "dtype": layout.dtype,
        "word": WORDS.get(group, layout.dtype),
    }
    return ItemStore(num_groups, inline_function(generate_function("store_group", source, **scope)))
