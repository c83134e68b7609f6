"""Copies of the fields of index sets between global and shared memory, for all envs of a block at once.

The elements of the envs of a block follow each other in both memories. So neighboring threads copy neighboring words of up to
16 bytes, whatever the dtype of a field is, and several loads of a thread are on their way at once.

In the source, `x` is the number of a word of the block, `n` the number of its words, and `first` the number of its first word
in the buffer.
"""

from __future__ import annotations

import math

import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import BLOCK, Segment
from gpuvec.engine.multi_agent.state_layout import MAX_WORD_BYTES, StateLayout

WORDS = {
    16: row_of(np.uint32, 4),
    8: row_of(np.uint32, 2),
    4: row_of(np.uint32, 1),
    2: row_of(np.uint16, 1),
    1: row_of(np.uint8, 1),
}
MAX_UNROLL = 4  # words of a thread whose loads precede their stores


def copy_segments(ctx: MultiAgentContext, layout: StateLayout, is_load: bool) -> list[Segment]:
    """Compiles a segment without a barrier for each field of a set; none if the launch leaves the state in its buffers.

    Args:
        ctx: the context.
        layout: the layout of the state.
        is_load: whether the fields are copied from global to shared memory; otherwise from shared to global memory.
    """
    fields = layout.set_fields if ctx.launch.stage_state else ()
    copies = (_make_copy(ctx, layout, field, is_load) for field in fields)
    return [Segment(BLOCK, copy, barrier=False) for copy in copies]


def _make_copy(ctx: MultiAgentContext, layout: StateLayout, field: str, is_load: bool) -> DeviceFunction:
    """The function of the segment of a field."""
    buffer = layout.set_fields[field]
    env_bytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
    # A block begins at a word of this size, as those before it have whole words. The last block may have fewer envs, and so
    # bytes behind its last whole word.
    word_bytes = math.gcd(ctx.launch.envs_per_block * env_bytes, MAX_WORD_BYTES)
    rest_bytes = math.gcd(env_bytes, MAX_WORD_BYTES)
    words_per_thread = -(-ctx.launch.envs_per_block * env_bytes // word_bytes // ctx.launch.threads_per_block)
    copy_words = _make_copy_words(ctx, layout, field, is_load, word_bytes, min(words_per_thread, MAX_UNROLL))
    copy_rest = _make_copy_words(ctx, layout, field, is_load, rest_bytes, 1)
    assume_nonnegative, add_nonnegative = ctx.array_ops.assume_nonnegative, ctx.array_ops.add_nonnegative
    rest_words, has_rest = word_bytes // rest_bytes, word_bytes > rest_bytes

    @inline_function
    def copy(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        num_words = assume_nonnegative(m * env_bytes // word_bytes)
        copy_words(b, w, e0 * env_bytes // word_bytes, num_words, thread)
        if has_rest:
            n = assume_nonnegative(m * env_bytes // rest_bytes)
            copy_rest(b, w, e0 * env_bytes // rest_bytes, n, add_nonnegative(thread, num_words * rest_words))

    return copy


def _make_copy_words(
    ctx: MultiAgentContext, layout: StateLayout, field: str, is_load: bool, word_bytes: int, unroll: int
) -> DeviceFunction:
    """`copy_words(b, w, first, n, x)`: copies words x, x + T, x + 2 T and so on of the block, for T threads."""
    buffer: Buffer = layout.set_fields[field]
    threads, step = ctx.launch.threads_per_block, word_bytes // np.dtype(buffer.dtype).itemsize
    in_buffer = f"b.state_{field}, first + {{x}}"
    in_array = f"w.{PACKED_BUFFERS[buffer.dtype]}, {layout.offsets[field]} + {step} * {{x}}"
    source, target = (in_buffer, in_array) if is_load else (in_array, in_buffer)
    words = [f"x + {k * threads}" for k in range(unroll)]
    is_in_block = ["True", *(f"add_nonnegative(x, {k * threads}) < n" for k in range(1, unroll))]
    loads = [f"v{k} = load({source.format(x=f'({x})')}, like) if {is_in_block[k]} else like" for k, x in enumerate(words)]
    stores = [f"if {is_in_block[k]}: store({target.format(x=f'({x})')}, v{k})" for k, x in enumerate(words)]
    lines = [*loads, *stores, f"x = add_nonnegative(x, {unroll * threads})"]
    code = "def copy_words(b, w, first, n, x):\n    while x < n:\n" + "".join(f"        {line}\n" for line in lines)
    ops, array_ops = ctx.ops, ctx.array_ops
    load, store = (ops.load_row, array_ops.store_words) if is_load else (array_ops.load_words, ops.store_row)
    scope = {"load": load, "store": store, "like": WORDS[word_bytes], "add_nonnegative": array_ops.add_nonnegative}
    return inline_function(generate_function("copy_words", code, **scope))
