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
    buffer, ops, array_ops = layout.set_fields[field], ctx.ops, ctx.array_ops
    env_bytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
    # A block begins at a word of this size, as those before it have whole words. The last block may have fewer envs, and so
    # bytes behind its last whole word.
    word_bytes = max_word_bytes(ctx.launch.envs_per_block * env_bytes)
    rest_bytes = max_word_bytes(env_bytes)
    load, store = (ops.load_row, array_ops.store_words) if is_load else (array_ops.load_words, ops.store_row)
    array, threads = f"w.{PACKED_BUFFERS[buffer.dtype]}, {layout.offsets[field]}", ctx.launch.threads_per_block
    item_bytes = np.dtype(buffer.dtype).itemsize
    in_buffer, in_array = "{address}, {offset}", f"{array} + {word_bytes // item_bytes} * ({{x}})"
    rest: tuple[str, ...] = ()
    if word_bytes > rest_bytes:
        in_rest = f"b.state_{field}, first + x", f"{array} + {rest_bytes // item_bytes} * x"
        source, target = in_rest if is_load else in_rest[::-1]
        rest = (
            f"n, first = assume_nonnegative(m * {env_bytes} // {rest_bytes}), e0 * {env_bytes} // {rest_bytes}",
            f"x = add_nonnegative(thread, num_words * {word_bytes // rest_bytes})",
            "while x < n:",
            f"    store({target}, load({source}, word_{rest_bytes}))",
            f"    x = add_nonnegative(x, {threads})",
        )
    source, target = (in_buffer, in_array) if is_load else (in_array, in_buffer)
    return BlockCopy(
        buffer=f"state_{field}",
        word_bytes=word_bytes,
        first_word=f"e0 * {env_bytes} // {word_bytes}",
        words_of_block=ctx.launch.envs_per_block * env_bytes // word_bytes,
        num_words=f"m * {env_bytes} // {word_bytes}",
        load=f"load({source}, word_{word_bytes})",
        store=f"store({target}, {{value}})",
        placeholder=f"word_{word_bytes}",
        scope={"load": load, "store": store} | {f"word_{size}": word for size, word in WORDS.items()},
        rest=rest,
    )
