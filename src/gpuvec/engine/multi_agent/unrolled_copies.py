"""Copies between global and shared memory in which the loads of several words of a thread precede its stores.

A thread that stores a word before it loads the next one waits for memory at each word. With all its loads in flight it waits
once. If a thread has several words of fewer than 16 bytes, copies are unrolled over all words of a thread, and those that take
few registers are joined into one segment, whose loads precede all of its stores. Otherwise each copy is a loop, in which up to
four words of a thread are in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.layout.buffers import MAX_WORD_BYTES
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import BLOCK, Segment

u64 = np.uint64
MAX_LOOP_WORDS = 4  # of a thread, whose loads precede their stores in an iteration of a loop
REGISTERS_IN_FLIGHT = 32  # of a thread, for words whose loads precede their stores


class BlockCopy(NamedTuple):
    """A copy of the words of all envs of a block, of which thread t of T copies words t, t + T, t + 2 T and so on.

    Sources may use `b`, `w`, `e0`, `m` and `thread`, as the function of a segment does, and the names of `scope`. In those of
    an access, `{x}` stands for the number of the word in the block. `{address}` is an address in global memory, and `{offset}`
    the number of words from there to this word. `{value}` stands for the word.
    """

    buffer: str  # the name of the buffer in global memory
    word_bytes: int
    first_word: str  # source of the number of the first word of the block in the buffer
    words_of_block: int  # of a block with all of its envs
    num_words: str  # source of the number of words of `m` envs
    load: str  # source of the word
    store: str  # source of the statement that stores the word
    placeholder: str  # source of a value of its type, for a thread without a word
    scope: dict[str, Any]  # the values of these names, which are the same in all copies of a call
    rest: tuple[str, ...] = ()  # lines that copy what is behind the `num_words` whole words of `m` envs

    @property
    def word_registers(self) -> int:
        """The number of registers that hold a word."""
        return max(1, self.word_bytes // 4)


def copy_segments(ctx: MultiAgentContext, copies: list[BlockCopy]) -> list[Segment]:
    """Compiles segments without barriers that run the copies.

    Args:
        ctx: the context.
        copies: the copies.
    """
    threads, envs = ctx.launch.threads_per_block, ctx.launch.envs_per_block
    if not any(is_narrow(copy, threads) for copy in copies):
        return [_copy_segment(ctx, [copy], _lines_of_loop(copy, threads)) for copy in copies]
    segments = []
    for group in _groups(copies, threads):
        lines = _lines_of_full_block(group, threads)
        if envs > 1:
            smaller = [line for copy in group for line in _lines_of_smaller_block(copy, threads)]
            lines = [f"if m == {envs}:", *_indented(lines), "else:", *_indented(smaller)]
        segments.append(_copy_segment(ctx, group, lines))
    return segments


def is_narrow(copy: BlockCopy, threads: int) -> bool:
    """Returns whether a thread has several words of fewer than 16 bytes.

    Words of 16 bytes keep enough bytes in flight in a loop. Breakout and ConnectFour were slower with unrolled copies.

    Args:
        copy: the copy.
        threads: of a block.
    """
    return copy.word_bytes < MAX_WORD_BYTES and copy.words_of_block > threads


def _groups(copies: list[BlockCopy], threads: int) -> list[list[BlockCopy]]:
    """The copies that share a segment, because registers hold all of their words."""
    groups: list[list[BlockCopy]] = []
    for copy in copies:
        joined = [*groups[-1], copy] if groups else []
        registers = sum(-(-part.words_of_block // threads) * part.word_registers for part in joined)
        if groups and registers <= REGISTERS_IN_FLIGHT:
            groups[-1] = joined
        else:
            groups.append([copy])
    return groups


def _copy_segment(ctx: MultiAgentContext, copies: list[BlockCopy], lines: list[str]) -> Segment:
    """The segment that runs the `lines` of a group of copies."""
    operations = {name: getattr(ctx.array_ops, name) for name in ("assume_nonnegative", "add_nonnegative")}
    scope: dict[str, Any] = {"u64": u64, **operations}
    for copy in copies:
        scope |= copy.scope
    source = "def copy(b, w, e0, m, thread, clock):\n" + "".join(f"    {line}\n" for line in lines)
    return Segment(BLOCK, inline_function(generate_function("copy", source, **scope)), barrier=False)


def _lines_of_loop(copy: BlockCopy, threads: int) -> list[str]:
    """Lines of a loop that copies the words of any number of envs, a few at a time."""
    unroll = min(MAX_LOOP_WORDS, -(-copy.words_of_block // threads))
    loads, stores = [], []
    for k in range(unroll):
        x = f"x + {k * threads}"
        names = {"address": f"b.{copy.buffer}", "offset": f"first + ({x})", "x": f"({x})", "value": f"v{k}"}
        load, store = f"v{k} = {copy.load.format(**names)}", copy.store.format(**names)
        condition = f"add_nonnegative(x, {k * threads}) < n"
        loads.append(f"{load} if {condition} else {copy.placeholder}" if k else load)
        stores.append(f"if {condition}: {store}" if k else store)
    body = [*loads, *stores, f"x = add_nonnegative(x, {unroll * threads})"]
    start = [f"n = num_words = assume_nonnegative({copy.num_words})", f"first, x = {copy.first_word}, thread"]
    return [*start, "while x < n:", *_indented(body), *copy.rest]


def _lines_of_full_block(copies: list[BlockCopy], threads: int) -> list[str]:
    """Lines that copy the words of a block with all of its envs. Only the last word of a thread may not exist."""
    lines, loads, stores = ["x = thread"], [], []
    for c, copy in enumerate(copies):
        # The only thread of a CPU's block gains nothing from loads in flight.
        limit = REGISTERS_IN_FLIGHT // copy.word_registers if threads > 1 else 1
        num_rounds = max(0, copy.words_of_block // threads // limit - (copy.words_of_block == threads * limit))
        if num_rounds:  # A copy with several rounds has a segment of its own.
            whole = [_access_lines(copy, c, k, threads, True) for k in range(limit)]
            body = [_address_line(copy, c), *(load for load, _ in whole), *(store for _, store in whole)]
            end = num_rounds * limit * threads
            lines += [f"while x < {end}:", *_indented([*body, f"x = add_nonnegative(x, {limit * threads})"])]
        num_words = copy.words_of_block - num_rounds * limit * threads
        loads.append(_address_line(copy, c))
        for k in range(-(-num_words // threads)):
            load, store = _access_lines(copy, c, k, threads, (k + 1) * threads <= num_words)
            loads.append(load)
            stores.append(store)
    return [*lines, *loads, *stores]


def _address_line(copy: BlockCopy, c: int) -> str:
    """The line that computes the address of word `x` of copy c, from which all words of a thread have constant distances."""
    return f"a{c} = u64(b.{copy.buffer}) + u64({copy.first_word} + x) * u64({copy.word_bytes})"


def _access_lines(copy: BlockCopy, c: int, k: int, threads: int, has_word: bool) -> tuple[str, str]:
    """The lines that load and store the k-th word of copy c from `x` on.

    Args:
        copy: the copy.
        c: its number in the segment.
        k: the number of the word.
        threads: of a block.
        has_word: whether this word exists for all threads.
    """
    x = f"add_nonnegative(x, {k * threads})" if k else "x"
    names = {"address": f"a{c}", "offset": k * threads, "x": x, "value": f"v{c}_{k}"}
    load, store = f"v{c}_{k} = {copy.load.format(**names)}", copy.store.format(**names)
    if has_word:
        return load, store
    condition = f"{x} < {copy.words_of_block}"
    return f"{load} if {condition} else {copy.placeholder}", f"if {condition}: {store}"


def _lines_of_smaller_block(copy: BlockCopy, threads: int) -> list[str]:
    """Lines that copy the words of the last block, which may have fewer envs, one after the other."""
    load, store = _access_lines(copy, 0, 0, threads, True)
    body = [_address_line(copy, 0), load, store, f"x = add_nonnegative(x, {threads})"]
    start = [f"num_words = assume_nonnegative({copy.num_words})", "x = thread"]
    return [*start, "while x < num_words:", *_indented(body), *copy.rest]


def _indented(lines: list[str]) -> list[str]:
    """The lines of a block of statements."""
    return [f"    {line}" for line in lines]
