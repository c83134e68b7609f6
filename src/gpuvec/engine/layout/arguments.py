"""The arguments of a kernel as 8 bytes each: the members of its `Batch`, then the scalars of a request."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import DType


class StepArguments(NamedTuple):
    """Views of the memory with a step's arguments, and which of them a step changes."""

    words: memoryview  # all arguments as uint64
    octets: memoryview  # the same memory as bytes
    action: int  # index in `words` of the address of the actions
    outputs: slice  # bytes in `octets` with the addresses of the outputs


def batch_members(
    owned: tuple[int, ...], outputs: bytes, num_envs: int, *, action: int = 0, mask: int = 0, seeds: int = 0
) -> tuple[int, ...]:
    """The members of `Layout.batch`: addresses in the order of its fields, and E last.

    Args:
        owned: addresses of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.
        outputs: addresses of the outputs, packed into 8 bytes each.
        num_envs: E.
        action: address of the actions.
        mask: address of the (E,) bool mask of a reset.
        seeds: address of the (E, 3) uint32 seeds of a reset.
    """
    return (*owned, action, mask, seeds, *memoryview(outputs).cast("q"), num_envs)


def pack_arguments(
    block: NDArray[np.uint64], owned: tuple[int, ...], num_envs: int, num_request_scalars: int = 0
) -> StepArguments:
    """Writes what is the same in every step into a block of arguments.

    Args:
        block: the arguments, (number of members + `num_request_scalars`,) uint64.
        owned: addresses of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.
        num_envs: E.
        num_request_scalars: how many arguments at the end of the block are no members of the batch.

    Returns:
        Views of the block, with which each step writes the addresses of its actions and outputs.
    """
    count = len(block) - num_request_scalars
    num_outputs = count - len(batch_members(owned, b"", 0))
    block[:count] = batch_members(owned, bytes(8 * num_outputs), num_envs)
    words = memoryview(block)  # type: ignore[arg-type]  # NumPy's stubs do not say that arrays are buffers on Python 3.11
    return StepArguments(words, words.cast("B"), len(owned), slice(8 * (count - 1 - num_outputs), 8 * (count - 1)))


def make_packer(dtypes: tuple[DType, ...]) -> Callable[..., None]:
    """Makes `pack(block, offset, *values)`, which writes numbers of the given `dtypes` from byte `offset` on, 8 bytes each."""
    kinds = [np.dtype(dtype).char for dtype in dtypes]
    return struct.Struct("".join(f"{kind}{8 - struct.calcsize(kind)}x" for kind in kinds)).pack_into
