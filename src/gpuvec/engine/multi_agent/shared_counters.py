"""Integer counters that the threads of a block share; the result of their operations does not depend on the order."""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import DeviceFunction, SharedArray


class SharedCounters(NamedTuple):
    """The compiled operations on a two-dimensional array of counters."""

    increment: DeviceFunction  # increment(array, k, j): array[k, j] += 1
    update_max: DeviceFunction  # update_max(array, k, j, value): array[k, j] = max(array[k, j], value)
    update_max_by_block: DeviceFunction  # as `update_max`, for a call by all threads of the block


def cpu_shared_counters() -> SharedCounters:
    """Returns the operations on a CPU, where one thread runs an env, and in the simulator, where one thread runs at a time."""

    @inline_function
    def increment(array: SharedArray, k: int, j: int) -> None:
        array[k, j] += array.dtype.type(1)

    @inline_function
    def update_max(array: SharedArray, k: int, j: int, value: int) -> None:
        array[k, j] = max(array[k, j], value)

    return SharedCounters(increment, update_max, update_max)
