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
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.layout.buffers import MAX_WORD_BYTES
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import BLOCK, Segment

u64 = np.uint64
MAX_LOOP_WORDS = 4  # of a thread, whose loads precede their stores in an iteration of a loop
REGISTERS_IN_FLIGHT = 32  # of a thread, for words whose loads precede their stores


class BlockCopy(NamedTuple):
    """A copy of the words of all envs of a block, of which thread t of T copies words t, t + T, t + 2 T and so on.

    Sources may use `b`, `w`, `e0`, `m` and `thread`, as the function of a segment does. Word x of the block begins at element
    `offset + items_per_word * x` of the array.
    """

    buffer: str  # the name of the buffer in global memory
    word_bytes: int
    first_word: str  # source of the number of the first word of the block in the buffer
    words_of_block: int  # of a block with all of its envs
    num_words: str  # source of the number of words of `m` envs
    array: str  # source of the array in shared memory
    offset: int
    items_per_word: int
    is_load: bool  # whether words are copied from the buffer to the array
    like: Any  # the argument of `load` that tells the type of a word
    placeholder: Any  # a value of that type, for a thread without a word
    # load(source, index, like) and store(target, index, value), which are the same in all copies of a call; of the buffer they
    # take an address and a number of words.
    load: DeviceFunction
    store: DeviceFunction
    rest: BlockCopy | None = None  # the copy of what is behind the `num_words` whole words of `m` envs, in smaller words

    @property
    def word_registers(self) -> int:
        """The number of registers that hold a word."""
        return max(1, self.word_bytes // 4)

    @property
    def checked_count(self) -> str:
        """Source of `num_words`, which the compiler knows not to be negative."""
        return f"assume_nonnegative({self.num_words})"

    def source(self, address: str, number: str, x: str) -> str:
        """Source of the first two arguments of `load`, for word `x`, which is word `number` from `address` on."""
        return f"{address}, {number}" if self.is_load else self._element(x)

    def target(self, address: str, number: str, x: str) -> str:
        """Source of the first two arguments of `store`, for word `x`, which is word `number` from `address` on."""
        return self._element(x) if self.is_load else f"{address}, {number}"

    def _element(self, x: str) -> str:
        return f"{self.array}, {self.offset} + {self.items_per_word} * {x}"


def copy_segments(ctx: MultiAgentContext, copies: list[BlockCopy]) -> list[Segment]:
    """Compiles segments without barriers that run the copies.

    Args:
        ctx: the context.
        copies: the copies.
    """
    threads, envs = ctx.launch.threads_per_block, ctx.launch.envs_per_block
    if not copies:
        return []
    functions = _copy_functions(ctx, copies[0])
    if not any(is_narrow(copy, threads) for copy in copies):
        return [_copy_segment(functions, [copy], _lines_of_loop(copy, threads)) for copy in copies]
    segments = []
    for group in _groups(copies, threads):
        lines = _lines_of_full_block(group, threads)
        if envs > 1:
            lines = [f"if m == {envs}:", *_indented(lines), "else:", *_indented(_lines_of_smaller_block(group))]
        segments.append(_copy_segment(functions, group, lines))
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


def _copy_functions(ctx: MultiAgentContext, copy: BlockCopy) -> dict[str, DeviceFunction]:
    """The functions that segments of copies call, of which all have the `load` and the `store` of `copy`.

    Each copy would compile the lines of these functions again.
    """
    load, store, is_load, threads = copy.load, copy.store, copy.is_load, ctx.launch.threads_per_block
    add_nonnegative = ctx.array_ops.add_nonnegative

    @inline_function
    def word_address(buffer: int, number: int, word_bytes: int) -> np.uint64:
        return u64(buffer) + u64(number) * u64(word_bytes)

    @inline_function
    def copy_words(
        buffer: int, word_bytes: int, first: int, x: int, end: int, array: Any, offset: int, items: int, like: Any
    ) -> None:
        while x < end:
            address = word_address(buffer, first + x, word_bytes)
            if is_load:
                store(array, offset + items * x, load(address, 0, like))
            else:
                store(address, 0, load(array, offset + items * x, like))
            x = add_nonnegative(x, threads)

    @inline_function
    def copy_words_and_rest(
        buffer: int,
        word_bytes: int,
        first: int,
        end: int,
        rest_bytes: int,
        rest_first: int,
        rest_end: int,
        thread: int,
        array: Any,
        offset: int,
        items: int,
        rest_items: int,
        like: Any,
        rest_like: Any,
    ) -> None:
        copy_words(buffer, word_bytes, first, thread, end, array, offset, items, like)
        rest_start = add_nonnegative(thread, end * (word_bytes // rest_bytes))
        copy_words(buffer, rest_bytes, rest_first, rest_start, rest_end, array, offset, rest_items, rest_like)

    operations = {name: getattr(ctx.array_ops, name) for name in ("assume_nonnegative", "add_nonnegative")}
    functions = {"word_address": word_address, "copy_words": copy_words, "copy_words_and_rest": copy_words_and_rest}
    return {"load": load, "store": store, **operations, **functions}


def _copy_segment(functions: dict[str, DeviceFunction], copies: list[BlockCopy], lines: list[str]) -> Segment:
    """The segment that runs the `lines` of a group of copies."""
    scope: dict[str, Any] = dict(functions)
    for c, copy in enumerate(copies):
        scope |= {f"like_{c}": copy.like, f"placeholder_{c}": copy.placeholder}
        if copy.rest:
            scope[f"rest_like_{c}"] = copy.rest.like
    source = "def copy(b, w, e0, m, thread, clock):\n" + "".join(f"    {line}\n" for line in lines)
    return Segment(BLOCK, inline_function(generate_function("copy", source, **scope)), barrier=False)


def _lines_of_loop(copy: BlockCopy, threads: int) -> list[str]:
    """Lines of a loop that copies the words of any number of envs, a few at a time."""
    unroll = min(MAX_LOOP_WORDS, -(-copy.words_of_block // threads))
    loads, stores = [], []
    for k in range(unroll):
        word = f"b.{copy.buffer}", f"first + (x + {k * threads})", f"(x + {k * threads})"
        load, store = f"load({copy.source(*word)}, like_0)", f"store({copy.target(*word)}, v{k})"
        condition = f"add_nonnegative(x, {k * threads}) < n"
        loads.append(f"v{k} = {load} if {condition} else placeholder_0" if k else f"v{k} = {load}")
        stores.append(f"if {condition}: {store}" if k else store)
    body = [*loads, *stores, f"x = add_nonnegative(x, {unroll * threads})"]
    lines = [f"n = {copy.checked_count}", f"first, x = {copy.first_word}, thread"]
    lines += ["while x < n:", *_indented(body)]
    if copy.rest:
        names = {source: f"({source})" for source in (copy.rest.first_word, copy.rest.checked_count)}
        lines.append(_rest_line(copy, 0, "n", names))
    return lines


def _lines_of_full_block(copies: list[BlockCopy], threads: int) -> list[str]:
    """Lines that copy the words of a block with all of its envs. Only the last word of a thread may not exist."""
    first_words = _distinct([copy.first_word for copy in copies])
    lines, loads, stores = ["x = thread", *(f"{name} = {source}" for source, name in first_words.items())], [], []
    for c, copy in enumerate(copies):
        address = f"a{c} = word_address(b.{copy.buffer}, {first_words[copy.first_word]} + x, {copy.word_bytes})"
        # The only thread of a CPU's block gains nothing from loads in flight.
        limit = REGISTERS_IN_FLIGHT // copy.word_registers if threads > 1 else 1
        num_rounds = max(0, copy.words_of_block // threads // limit - (copy.words_of_block == threads * limit))
        if num_rounds:  # A copy with several rounds has a segment of its own.
            whole = [_access_lines(copy, c, k, threads, True) for k in range(limit)]
            body = [address, *(load for load, _ in whole), *(store for _, store in whole)]
            end = num_rounds * limit * threads
            lines += [f"while x < {end}:", *_indented([*body, f"x = add_nonnegative(x, {limit * threads})"])]
        num_words = copy.words_of_block - num_rounds * limit * threads
        loads.append(address)
        for k in range(-(-num_words // threads)):
            load, store = _access_lines(copy, c, k, threads, (k + 1) * threads <= num_words)
            loads.append(load)
            stores.append(store)
    return [*lines, *loads, *stores]


def _distinct(sources: list[str]) -> dict[str, str]:
    """Returns {source: name of a variable with its value}. Copies of fields of equal size have the same numbers of words."""
    return {source: f"n{k}" for k, source in enumerate(dict.fromkeys(sources))}


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
    source, target = copy.source(f"a{c}", str(k * threads), x), copy.target(f"a{c}", str(k * threads), x)
    if has_word:
        return f"v{c}_{k} = load({source}, like_{c})", f"store({target}, v{c}_{k})"
    condition = f"{x} < {copy.words_of_block}"
    load = f"v{c}_{k} = load({source}, like_{c}) if {condition} else placeholder_{c}"
    return load, f"if {condition}: store({target}, v{c}_{k})"


def _lines_of_smaller_block(copies: list[BlockCopy]) -> list[str]:
    """Lines that copy the words of the last block, which may have fewer envs, one after the other."""
    every_copy = [*copies, *(copy.rest for copy in copies if copy.rest)]
    names = _distinct([source for copy in every_copy for source in (copy.first_word, copy.checked_count)])
    lines = [f"{name} = {source}" for source, name in names.items()]
    for c, copy in enumerate(copies):
        if not copy.rest:
            lines.append(_call_of_loop(copy, f"like_{c}", "thread", names))
            continue
        words, rest_words = (
            f"{part.word_bytes}, {names[part.first_word]}, {names[part.checked_count]}" for part in (copy, copy.rest)
        )
        place = f"{copy.array}, {copy.offset}, {copy.items_per_word}, {copy.rest.items_per_word}"
        words = f"b.{copy.buffer}, {words}, {rest_words}, thread"
        lines.append(f"copy_words_and_rest({words}, {place}, like_{c}, rest_like_{c})")
    return lines


def _rest_line(copy: BlockCopy, c: int, num_words: str, names: dict[str, str]) -> str:
    """The line that copies what is behind the `num_words` whole words of copy c; `names` as for `_call_of_loop`."""
    assert copy.rest is not None, "there are whole words only"
    start = f"add_nonnegative(thread, {num_words} * {copy.word_bytes // copy.rest.word_bytes})"
    return _call_of_loop(copy.rest, f"rest_like_{c}", start, names)


def _call_of_loop(copy: BlockCopy, like: str, start: str, names: dict[str, str]) -> str:
    """The line that copies the words of a thread from word `start` on, one after the other.

    Args:
        copy: the copy.
        like: source of its `like`.
        start: source of the number of the first word.
        names: {source: name of the variable with its value} for the first word and the number of words.
    """
    words = f"{names[copy.first_word]}, {start}, {names[copy.checked_count]}"
    place = f"{copy.array}, {copy.offset}, {copy.items_per_word}"
    return f"copy_words(b.{copy.buffer}, {copy.word_bytes}, {words}, {place}, {like})"


def _indented(lines: list[str]) -> list[str]:
    """The lines of a block of statements."""
    return [f"    {line}" for line in lines]
