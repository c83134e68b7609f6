"""Copies of the fields of index sets between global and shared memory, for all envs of a block at once.

The elements of the envs of a block follow each other in both memories. So neighboring threads copy neighboring words of up to
16 bytes, whatever the dtype of a field is.
"""

from __future__ import annotations

import math

import numpy as np

from gpuvec.engine.compiler.block_copies import BlockCopy, WordType
from gpuvec.engine.layout.buffers import max_word_bytes
from gpuvec.engine.layout.schema import PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import Segment
from gpuvec.engine.multi_agent.state_layout import StateLayout
from gpuvec.engine.multi_agent.unrolled_copies import copy_segments

WORDS = {
    16: WordType(np.uint32, 4),
    8: WordType(np.uint32, 2),
    4: WordType(np.uint32),
    2: WordType(np.uint16),
    1: WordType(np.uint8),
}


def set_copy_segments(ctx: MultiAgentContext, layout: StateLayout, is_load: bool) -> list[Segment]:
    """Compiles segments without barriers that copy the fields of sets; none if the launch leaves the state in its buffers.

    Args:
        ctx: the context.
        layout: the layout of the state.
        is_load: whether the fields are copied from global to shared memory; otherwise from shared to global memory.
    """
    fields = layout.set_fields if ctx.launch.stage_state else ()
    return copy_segments(ctx, [_field_copy(ctx, layout, field, is_load) for field in fields])


def _field_copy(ctx: MultiAgentContext, layout: StateLayout, field: str, is_load: bool) -> BlockCopy:
    """The copy of a field."""
    buffer = layout.set_fields[field]
    env_bytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
    # A block begins at a word of this size, as those before it have whole words. The last block may have fewer envs, and so
    # bytes behind its last whole word.
    word_bytes = max_word_bytes(ctx.launch.envs_per_block * env_bytes)
    rest_bytes = max_word_bytes(env_bytes)
    return BlockCopy(
        buffer=f"state_{field}",
        env_bytes=env_bytes,
        word=WORDS[word_bytes],
        rest_word=WORDS[rest_bytes] if word_bytes > rest_bytes else None,
        array=PACKED_BUFFERS[buffer.dtype],
        offset=layout.offsets[field],
        is_load=is_load,
    )
