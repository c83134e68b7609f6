"""The types that describe buffers, the buffers that every vector environment has, and the arguments of kernels.

The first argument of a kernel is a `Batch`: a NamedTuple with the address of each buffer and the number of envs `n`.

The time of an episode is not stored, so a step does not write it. `clock` counts the calls of `step`, `start` contains for each
env the clock at which its episode began, and the time within the episode is their difference. If the episode ended in the last
step and the env is reset in the next one, `start == clock + 1`, so the time in the next step is 0. `start` is written only when
an episode ends or the env is reset.

A random draw depends on a row's stream (seed, row), the episode and the step. The number of the episode is the clock at its
start relative to the row, `start - origin`: `origin` is the clock at which the row was seeded, and each reset without a seed
decrements it. So the number increases with each reset, and no pair (episode, step) occurs twice. `shared` contains one stream
for all rows, which is valid until a row is seeded or reset individually. While it is valid, no env reads its own stream.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import DType

SCALARS: dict[type, DType] = {float: np.float32, int: np.int32, bool: np.bool_}
# The value of max_episode_steps without a limit; no episode is as long.
NO_STEP_LIMIT = int(np.iinfo(np.int32).max)
# The value of `faults` where nothing was reported.
NO_FAULT = np.iinfo(np.uint64).max
MAX_WORD_BYTES = 16  # that a thread loads or stores at once


def max_word_bytes(num_bytes: int) -> int:
    """Returns the size of the largest words of which `num_bytes` bytes are a multiple: 1, 2, 4, 8 or 16."""
    return math.gcd(num_bytes, MAX_WORD_BYTES)


class KernelOptions(NamedTuple):
    """The options that the kernels of an environment are compiled for.

    Attributes:
        autoreset: when an env is reset after its episode has ended.
        max_episode_steps: the number of steps after which an episode is truncated; None for no limit.
        per_env: parameters that are stored per env.
        validate: whether steps report invalid actions.
        reward: for multi-agent environments, "agents" for a reward for each agent, "sum" for the sum of all agents, or the name
            of a role for the sum of its agents.
        pool: fields of the state that a reset reads from the reset pool.
        action_dtype: the dtype of the actions in the buffer; a tuple with that of each role if spaces are by role.
        cuda_c: whether CUDA C++ implementations replace the author's functions.
    """

    autoreset: AutoresetMode
    max_episode_steps: int | None
    per_env: tuple[str, ...] = ()
    validate: bool = False
    reward: str = "agents"
    pool: tuple[str, ...] = ()
    action_dtype: DType = np.int32
    cuda_c: bool = False

    @property
    def same_step(self) -> bool:
        """Whether an episode that ends is reset in the same step."""
        return self.autoreset is AutoresetMode.SAME_STEP

    @property
    def next_step(self) -> bool:
        """Whether an episode that ends is reset in the next step."""
        return self.autoreset is AutoresetMode.NEXT_STEP

    @property
    def step_limit(self) -> np.int32:
        """The step at which an episode is truncated."""
        return np.int32(NO_STEP_LIMIT if self.max_episode_steps is None else self.max_episode_steps)


class Buffer(NamedTuple):
    """An array of rows, each of `shape` elements of `dtype`.

    Attributes:
        dtype: the type of an element.
        shape: the shape of a row.
        rows: whether there is a row for each env, for each CUDA block, for each state of the reset pool, or for the batch.
        wide: whether kernels access 16 or 8 bytes of a row at once if the last axis is a multiple of 4 or 2 words.
        pixels_per_word: the number of elements of an image that kernels store at once.
    """

    dtype: DType
    shape: tuple[int, ...] = ()
    rows: Literal["env", "block", "pool", "batch"] = "env"
    wide: bool = False
    pixels_per_word: int = 1

    def full_shape(self, num_envs: int, blocks: int) -> tuple[int, ...]:
        """Returns the shape of the array with all rows, for `num_envs` envs in this number of CUDA `blocks`."""
        return {"env": (num_envs,), "block": (blocks,), "batch": ()}[self.rows] + self.shape

    @property
    def alignment(self) -> int:
        """The number of bytes to which the first row must be aligned."""
        size = np.dtype(self.dtype).itemsize
        return int(size * (next(k for k in (4, 2, 1) if self.shape[-1] % k == 0) if self.wide else self.pixels_per_word))


class Layout(NamedTuple):
    """The buffers of a vector environment, {name: buffer} by their use.

    Attributes:
        persistent: the buffers that the next step depends on.
        scratch: the buffers that one kernel writes for the next kernel.
        pool: the initial states of the reset pool.
        inputs: the buffers that a caller passes to a reset or a step.
        outputs: the buffers that a step returns.
    """

    persistent: dict[str, Buffer]
    scratch: dict[str, Buffer]
    pool: dict[str, Buffer]
    inputs: dict[str, Buffer]
    outputs: dict[str, Buffer]

    @property
    def owned(self) -> dict[str, Buffer]:
        """The buffers that a simulation allocates for itself."""
        return {**self.persistent, **self.scratch}

    @property
    def batch(self) -> Any:
        """The NamedTuple class of a kernel's first argument."""
        return named_tuple("Batch", (*self.owned, *self.pool, *self.inputs, *self.outputs, "n"))


@cache
def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Returns the NamedTuple class `name` with `fields`. Equal arguments give one class, for which Numba compiles once."""
    return NamedTuple(name, [(field, Any) for field in fields])


# The arguments of a kernel, 8 bytes each: the members of its `Batch`, then the scalars of a reset request.


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
