"""Descriptions of copies between global and shared memory by the threads of a block.

A thread that stores a word before it loads the next one waits for memory at each word. With all its loads in flight it waits
once. Thread t of T copies words t, t + T, t + 2 T and so on.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DType, NumbaType

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

    def max_words_in_flight(self, copy: BlockCopy) -> int:
        """Returns how many words of `copy` registers hold. The only thread of a CPU's block gains nothing from several."""
        return REGISTERS_IN_FLIGHT // copy.word.num_registers if self.threads > 1 else 1
