"""Copies of the fields of index sets between global and shared memory, for all envs of a block at once.

The elements of the envs of a block follow each other in both memories. So neighboring threads copy neighboring words of up to
16 bytes, whatever the dtype of a field is.
"""

from __future__ import annotations

import math

import numpy as np

from gpuvec.engine.compiler.memory_ops import row_of
from gpuvec.engine.layout.buffers import max_word_bytes
from gpuvec.engine.layout.schema import PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import Segment
from gpuvec.engine.multi_agent.state_layout import StateLayout
from gpuvec.engine.multi_agent.unrolled_copies import BlockCopy, copy_segments

WORDS = {
    16: row_of(np.uint32, 4),
    8: row_of(np.uint32, 2),
    4: row_of(np.uint32, 1),
    2: row_of(np.uint16, 1),
    1: row_of(np.uint8, 1),
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
    copy = _copy_in_words(ctx, layout, field, is_load, word_bytes)
    return copy._replace(rest=_copy_in_words(ctx, layout, field, is_load, rest_bytes)) if word_bytes > rest_bytes else copy


def _copy_in_words(ctx: MultiAgentContext, layout: StateLayout, field: str, is_load: bool, word_bytes: int) -> BlockCopy:
    """The copy of a field in words of `word_bytes` bytes."""
    buffer, ops, array_ops = layout.set_fields[field], ctx.ops, ctx.array_ops
    item_bytes = np.dtype(buffer.dtype).itemsize
    env_bytes = math.prod(buffer.shape) * item_bytes
    return BlockCopy(
        buffer=f"state_{field}",
        word_bytes=word_bytes,
        first_word=f"e0 * {env_bytes} // {word_bytes}",
        words_of_block=ctx.launch.envs_per_block * env_bytes // word_bytes,
        num_words=f"m * {env_bytes} // {word_bytes}",
        array=f"w.{PACKED_BUFFERS[buffer.dtype]}",
        offset=layout.offsets[field],
        items_per_word=word_bytes // item_bytes,
        is_load=is_load,
        like=WORDS[word_bytes],
        placeholder=WORDS[word_bytes],
        load=ops.load_row if is_load else array_ops.load_words,
        store=array_ops.store_words if is_load else ops.store_row,
    )
