"""The arguments of a kernel, 8 bytes each: the members of its `Batch`, then the scalars of a reset request."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import DType


class StepArguments(NamedTuple):
    """Views of the memory with the arguments of a step, and the places of those that differ from step to step.

    Attributes:
        words: all arguments as uint64.
        octets: the same memory as bytes.
        action: index in `words` of the address of the actions.
        outputs: the bytes in `octets` with the addresses of the outputs.
    """

    words: memoryview
    octets: memoryview
    action: int
    outputs: slice


def batch_members(
    owned: tuple[int, ...], outputs: bytes, num_envs: int, *, action: int = 0, mask: int = 0, seeds: int = 0
) -> tuple[int, ...]:
    """Returns the members of `Layout.batch`: addresses in the order of its fields, and E last.

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
    """Writes the arguments that are the same in every step to an array of arguments.

    Args:
        block: (number of members + `num_request_scalars`,) uint64, the arguments.
        owned: addresses of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.
        num_envs: E.
        num_request_scalars: the number of arguments at the end of the block that are scalars of a request.

    Returns:
        Views of the block, through which each step writes the addresses of its actions and outputs.
    """
    num_members = len(block) - num_request_scalars
    num_outputs = num_members - len(batch_members(owned, b"", 0))
    block[:num_members] = batch_members(owned, bytes(8 * num_outputs), num_envs)
    words = memoryview(block)  # type: ignore[arg-type]  # NumPy's stubs do not say that arrays are buffers on Python 3.11
    return StepArguments(words, words.cast("B"), len(owned), slice(8 * (num_members - 1 - num_outputs), 8 * (num_members - 1)))


def make_packer(dtypes: tuple[DType, ...]) -> Callable[..., None]:
    """Makes `pack(block, offset, *values)`, which writes numbers of these `dtypes` from byte `offset` on, 8 bytes each."""
    formats = [np.dtype(dtype).char for dtype in dtypes]
    return struct.Struct("".join(f"{format_char}{8 - struct.calcsize(format_char)}x" for format_char in formats)).pack_into
