"""Copies between global and shared memory by the threads of a block, as LLVM instructions.

A thread that stores a word before it loads the next one waits for memory at each word. With all its loads in flight it waits
once. Thread t of T copies words t, t + T, t + 2 T and so on. An intrinsic emits the instructions of all copies of a segment: as
Python source, with a call for each load and each store and a condition for each word that may not exist, copies took a fifth of
the time in which Numba compiled an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT32, INT64, Args, Builder, load_evict_first, to_int32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.static_arrays import element_address
from gpuvec.engine.compiler.types import DeviceFunction, DType, NumbaType, Signature, TargetContext, TypingContext

MAX_LOOP_WORDS = 4  # of a thread, whose loads precede their stores in an iteration of a loop
REGISTERS_IN_FLIGHT = 32  # of a thread, for words whose loads precede their stores


class WordType(NamedTuple):
    """The type of the words of a copy: `num_items` numbers of `dtype`, which a GPU loads and stores with one instruction."""

    dtype: DType
    num_items: int = 1

    @property
    def num_bytes(self) -> int:
        """The size of a word."""
        return np.dtype(self.dtype).itemsize * self.num_items

    @property
    def num_registers(self) -> int:
        """The number of registers that hold a word."""
        return max(1, self.num_bytes // 4)

    def item_type(self, numba: NumbaApi) -> NumbaType:
        """Returns the type of the items of a word in the modules of `numba`."""
        return getattr(numba.types, np.dtype(self.dtype).name)


class BlockCopy(NamedTuple):
    """A copy of the data of all envs of a block, between a buffer in global memory and an array in shared memory.

    Attributes:
        buffer: the name of the buffer in the batch. The data of env e begins at byte `e * env_bytes`.
        env_bytes: the size of an env's data.
        word: the type of the words. A block with all of its envs has whole words.
        rest_word: the type of the words behind the last whole `word` of a block with fewer envs, which divide the data of an
            env; None if `word` divides it.
        array: the name of the array in the work; None if a function stores the words.
        offset: the element of the array at which the data of the first env of the block begins.
        is_load: whether words are copied from the buffer to the array.
        evict_first: whether a GPU's cache evicts what is loaded from the buffer first.
    """

    buffer: str
    env_bytes: int
    word: WordType
    rest_word: WordType | None = None
    array: str | None = None
    offset: int = 0
    is_load: bool = True
    evict_first: bool = False


class CopyLaunch(NamedTuple):
    """How the threads of a block run copies.

    Attributes:
        envs: the number of envs of a block. The last block may have fewer.
        threads: the number of threads of a block.
        is_unrolled: whether the copies are unrolled over the words of a thread in a block with all of its envs, so that all
            loads precede all stores. A copy that needs more than `REGISTERS_IN_FLIGHT` for that is the only one.
    """

    envs: int
    threads: int
    is_unrolled: bool = False

    def words_of_block(self, copy: BlockCopy) -> int:
        """Returns the number of words of `copy` in a block with all of its envs."""
        return self.envs * copy.env_bytes // copy.word.num_bytes

    def words_of_thread(self, copy: BlockCopy) -> int:
        """Returns the largest number of words of `copy` that a thread has."""
        return ceil(self.words_of_block(copy) / self.threads)


class _Word(NamedTuple):
    """A word of a thread: the one `round_number * T` words behind its first word."""

    copy: BlockCopy
    type: WordType
    round_number: int = 0
    num_words: ir.Value | None = None  # The word exists if its number is below; None if it exists for all threads.


class CopyEmitter:
    """Emits the instructions of a thread. Numbers of words are int64 and count from the first word of the block.

    Args:
        numba: the modules that the intrinsic is declared with.
        context: generates code for Numba's types.
        builder: emits the instructions.
        sig: the signature of the intrinsic.
        args: its arguments: the batch, the work, the first env, the number of envs, the thread, and a function that stores.
        launch: how the threads run the copies.
        store_sig: the signature of that function; None if there is none.
    """

    def __init__(
        self,
        numba: NumbaApi,
        context: TargetContext,
        builder: ir.IRBuilder,
        sig: Signature,
        args: Sequence[ir.Value],
        launch: CopyLaunch,
        store_sig: Signature | None,
    ) -> None:
        self._numba, self._context, self._builder, self._launch = numba, context, builder, launch
        (self._batch_type, self._work_type, *_, self._store_type), self._store_sig = sig.args, store_sig
        self._batch, self._work, self._first_env, self._num_envs, self._thread, _ = args

    def emit_block(self, copies: tuple[BlockCopy, ...]) -> None:
        """Emits `copies` for a block with any number of envs."""
        if not self._launch.is_unrolled:
            for copy in copies:
                self._emit_loops([copy], min(MAX_LOOP_WORDS, self._launch.words_of_thread(copy)))
            return
        if self._launch.envs == 1:
            self._emit_full_block(copies)
            return
        is_full = self._builder.icmp_signed("==", self._num_envs, INT64(self._launch.envs))
        with self._builder.if_else(is_full) as (full, smaller):
            with full:
                self._emit_full_block(copies)
            with smaller:
                # Fields of equal size share a loop.
                sizes: dict[tuple[Any, ...], list[BlockCopy]] = {}
                for copy in copies:
                    sizes.setdefault((copy.env_bytes, copy.word, copy.rest_word), []).append(copy)
                for copies_of_size in sizes.values():
                    self._emit_loops(copies_of_size, 1)

    def _emit_full_block(self, copies: tuple[BlockCopy, ...]) -> None:
        """Emits the copies of a block with all of its envs, in which only the last word of a thread may not exist.

        There is a loop only for a copy that needs more registers than may be in flight.
        """
        threads, first, words = self._launch.threads, 0, []
        for copy in copies:
            num_words = self._launch.words_of_block(copy)
            # How many words registers hold. The only thread of a CPU's block gains nothing from several.
            limit = REGISTERS_IN_FLIGHT // copy.word.num_registers if threads > 1 else 1
            num_rounds = max(0, num_words // threads // limit - (num_words == threads * limit))
            if num_rounds:
                assert len(copies) == 1, "a copy with several rounds has a segment of its own"
                first = num_rounds * limit * threads
                with self._loop(self._thread, INT64(first), limit * threads) as x:
                    self._move([_Word(copy, copy.word, k) for k in range(limit)], x)
            for k in range(ceil((num_words - first) / threads)):
                exists = first + (k + 1) * threads <= num_words
                words.append(_Word(copy, copy.word, k, None if exists else INT64(num_words)))
        self._move(words, self._add(self._thread, first))

    def _emit_loops(self, copies: list[BlockCopy], words_in_flight: int) -> None:
        """Emits loops over the words of any number of envs, and over the rest behind the last whole word.

        Args:
            copies: copies of fields of equal size.
            words_in_flight: the number of words of each copy in an iteration.
        """
        (_, env_bytes, word, rest_word, *_), threads = copies[0], self._launch.threads
        num_words = self._num_words(env_bytes, word)
        with self._loop(self._thread, num_words, words_in_flight * threads) as x:
            ends = [num_words if k else None for k in range(words_in_flight)]
            self._move([_Word(copy, word, k, end) for copy in copies for k, end in enumerate(ends)], x)
        if rest_word:
            num_before = self._builder.mul(num_words, INT64(word.num_bytes // rest_word.num_bytes))
            with self._loop(self._add(self._thread, num_before), self._num_words(env_bytes, rest_word), threads) as x:
                self._move([_Word(copy, rest_word) for copy in copies], x)

    def _move(self, words: Sequence[_Word], first: ir.Value) -> None:
        """Emits the loads of `words`, and then their stores, for a thread whose first word has the number `first`."""
        places: dict[BlockCopy, tuple[ir.Value, ir.Value | None]] = {}
        stores = []
        for word in words:
            if word.copy not in places:
                places[word.copy] = self._places(word, first)
            source, target = places[word.copy]
            number = self._add(first, word.round_number * self._launch.threads)
            exists = None if word.num_words is None else self._builder.icmp_signed("<", number, word.num_words)
            stores.append((word, target, number, exists, self._load(word, source, exists)))
        for word, target, number, exists, value in stores:
            with self._where(exists):
                if target is None:  # A function stores the word.
                    function = self._context.get_function(self._store_type, self._store_sig)
                    self._context.add_linking_libs(function.libs)
                    function(self._builder, (self._work, number, value))
                else:
                    pointer = self._builder.gep(target, [INT64(word.round_number * self._launch.threads)])
                    self._builder.store(value, pointer, align=self._alignment(word))

    def _places(self, word: _Word, number: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """Returns pointers to the source and the target of the word with a number; None for a target if a function stores."""
        item = self._context.get_data_type(word.type.item_type(self._numba))
        word_type = ir.VectorType(item, word.type.num_items) if word.type.num_items > 1 else item
        num_bytes = INT64(word.type.num_bytes)
        first = self._builder.udiv(
            self._builder.mul(self._first_env, INT64(word.copy.env_bytes), flags=("nuw", "nsw")), num_bytes
        )
        _, start = self._member(self._batch_type, self._batch, word.copy.buffer)
        address = self._builder.add(start, self._builder.mul(self._builder.add(first, number), num_bytes))
        buffer = self._builder.inttoptr(address, word_type.as_pointer(self._numba.address_space))
        if word.copy.array is None:
            return buffer, None
        array_type, array = self._member(self._work_type, self._work, word.copy.array)
        first_element = self._builder.gep(
            element_address(self._context, self._builder, array_type, array), [INT64(word.copy.offset)]
        )
        shared = self._builder.gep(self._builder.bitcast(first_element, word_type.as_pointer()), [number])
        return (buffer, shared) if word.copy.is_load else (shared, buffer)

    def _load(self, word: _Word, source: ir.Value, exists: ir.Value | None) -> ir.Value:
        """Returns a word that is loaded; if it may not exist, zero where it does not."""
        before = self._builder.block
        with self._where(exists):
            pointer = self._builder.gep(source, [INT64(word.round_number * self._launch.threads)])
            if word.copy.evict_first and self._numba.is_gpu:
                value = load_evict_first(self._builder, pointer)
            else:
                value = self._builder.load(pointer, align=self._alignment(word))
            after_load = self._builder.block
        if exists is None:
            return value
        result = self._builder.phi(value.type)
        result.add_incoming(value, after_load)
        result.add_incoming(ir.Constant(value.type, None), before)
        return result

    def _alignment(self, word: _Word) -> int:
        """The alignment of a word in bytes. NumPy does not align the arrays of the simulator."""
        return word.type.num_bytes if self._numba.is_gpu else 1

    def _member(self, tuple_type: NumbaType, value: ir.Value, name: str) -> tuple[NumbaType, ir.Value]:
        """Returns the type and the value of a member of a named tuple."""
        index = tuple_type.fields.index(name)
        return tuple_type.types[index], self._builder.extract_value(value, index)

    def _num_words(self, env_bytes: int, word_type: WordType) -> ir.Value:
        """Returns the number of whole words of the envs of this block."""
        num_envs = to_int32(self._builder, self._num_envs)
        num_bytes = self._builder.mul(num_envs, INT32(env_bytes), flags=("nuw", "nsw"))
        return self._builder.zext(self._builder.udiv(num_bytes, INT32(word_type.num_bytes)), INT64)

    def _add(self, number: ir.Value, increment: ir.Value | int) -> ir.Value:
        """Returns the sum of two numbers of words, which the compiler knows not to be negative and not to wrap."""
        a = to_int32(self._builder, number)
        b = INT32(increment) if isinstance(increment, int) else to_int32(self._builder, increment)
        return self._builder.zext(self._builder.add(a, b, flags=("nuw", "nsw")), INT64)

    @contextmanager
    def _where(self, condition: ir.Value | None) -> Iterator[None]:
        """A context whose instructions run where `condition` is true, or always if it is None."""
        if condition is None:
            yield
        else:
            with self._builder.if_then(condition):
                yield

    @contextmanager
    def _loop(self, start: ir.Value, end: ir.Value, step: int) -> Iterator[ir.Value]:
        """A context whose instructions run for each number from `start` on, `step` apart, that is below `end`.

        LLVM would unroll a loop over int32, eight times for each of these short loops.
        """
        before = self._builder.block
        head, body, after = (self._builder.append_basic_block(f"copy.{name}") for name in ("head", "body", "after"))
        self._builder.branch(head)
        self._builder.position_at_end(head)
        number = self._builder.phi(INT64)
        self._builder.cbranch(self._builder.icmp_signed("<", number, end), body, after)
        self._builder.position_at_end(body)
        yield number
        number.add_incoming(start, before)
        number.add_incoming(self._add(number, step), self._builder.block)
        self._builder.branch(head)
        self._builder.position_at_end(after)


def make_block_copies(numba: NumbaApi) -> Callable[[tuple[BlockCopy, ...], CopyLaunch], DeviceFunction]:
    """Declares `ArrayOps.block_copies` to `numba`."""

    @cache
    def block_copies(copies: tuple[BlockCopy, ...], launch: CopyLaunch) -> DeviceFunction:
        store_sigs: dict[Any, Signature] = {}  # by the types of the work and of the function that stores words

        def copy_type(
            typingctx: TypingContext,
            batch: NumbaType,
            work: NumbaType,
            first_env: NumbaType,
            num_envs: NumbaType,
            thread: NumbaType,
            store: NumbaType,
        ) -> Signature:
            if store != numba.types.none:
                arguments = work, numba.types.int64, copies[0].word.item_type(numba)
                store_sigs[work, store] = typingctx.resolve_function_type(store, arguments, {})
            return numba.types.void(batch, work, first_env, num_envs, thread, store)

        def codegen(_: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
            store_sig = store_sigs.get((sig.args[1], sig.args[-1]))
            CopyEmitter(numba, context, builder, sig, args, launch, store_sig).emit_block(copies)

        return numba.intrinsic("copy_words", copy_type, codegen)

    return block_copies
