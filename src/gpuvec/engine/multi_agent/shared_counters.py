"""Counters that the threads of a block share, with integer operations that give the same result in any order."""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import DeviceFunction, SharedArray


class SharedCounters(NamedTuple):
    """The operations on a two-dimensional array of counters."""

    increment: DeviceFunction  # increment(array, k, j): array[k, j] += 1
    update_max: DeviceFunction  # update_max(array, k, j, value): array[k, j] becomes the larger of the two
    update_max_by_block: DeviceFunction  # the same, called by all threads of the block


def cpu_shared_counters() -> SharedCounters:
    """The operations on a CPU, where one thread runs an env, and in the simulator, whose threads take turns."""

    @inline_function
    def increment(array: SharedArray, k: int, j: int) -> None:
        array[k, j] += array.dtype.type(1)

    @inline_function
    def update_max(array: SharedArray, k: int, j: int, value: int) -> None:
        array[k, j] = max(array[k, j], value)

    return SharedCounters(increment, update_max, update_max)
