"""Which copies between global and shared memory share a segment, in which all loads of a thread precede all stores.

If a thread has several words of fewer than 16 bytes, copies are unrolled over all words of a thread, and those that take few
registers are joined into one segment. Otherwise each copy is a loop, in which up to four words of a thread are in flight.
"""

from __future__ import annotations

from gpuvec.engine.compiler.block_copies import REGISTERS_IN_FLIGHT, BlockCopy, CopyLaunch
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.layout.buffers import MAX_WORD_BYTES
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import BLOCK, Segment


def copy_segments(ctx: MultiAgentContext, copies: list[BlockCopy], store: DeviceFunction | None = None) -> list[Segment]:
    """Compiles segments without barriers that run the copies.

    Args:
        ctx: the context.
        copies: the copies.
        store: `store(w, x, value)`, which stores word x of a block for copies without an array.
    """
    launch, groups = CopyLaunch(ctx.launch.envs_per_block, ctx.launch.threads_per_block), [[copy] for copy in copies]
    if any(is_narrow(copy, launch) for copy in copies):
        launch, groups = launch._replace(is_unrolled=True), _groups(copies, launch)
    return [_copy_segment(ctx, group, launch, store) for group in groups]


def is_narrow(copy: BlockCopy, launch: CopyLaunch) -> bool:
    """Returns whether a thread has several words of fewer than 16 bytes.

    Words of 16 bytes keep enough bytes in flight in a loop. Breakout and ConnectFour were slower with unrolled copies.

    Args:
        copy: the copy.
        launch: the envs and threads of a block.
    """
    return copy.word.num_bytes < MAX_WORD_BYTES and launch.words_of_block(copy) > launch.threads


def _groups(copies: list[BlockCopy], launch: CopyLaunch) -> list[list[BlockCopy]]:
    """The copies that share a segment, because registers hold all of their words."""
    groups: list[list[BlockCopy]] = []
    for copy in copies:
        joined = [*groups[-1], copy] if groups else []
        registers = sum(launch.words_of_thread(part) * part.word.num_registers for part in joined)
        if groups and registers <= REGISTERS_IN_FLIGHT:
            groups[-1] = joined
        else:
            groups.append([copy])
    return groups


def _copy_segment(ctx: MultiAgentContext, copies: list[BlockCopy], launch: CopyLaunch, store: DeviceFunction | None) -> Segment:
    """The segment that runs a group of copies."""
    copy_words = ctx.array_ops.block_copies(tuple(copies), launch)

    @inline_function
    def copy(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        copy_words(b, w, e0, m, thread, store)

    return Segment(BLOCK, copy, barrier=False)
