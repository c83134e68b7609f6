"""The buffers of a vector environment and what each of them holds.

A kernel takes one `Batch`: a NamedTuple with the address of each buffer and the number of envs `n`.

Time needs no memory traffic in a step: `clock` counts the calls of `step`, `start` holds for each env the clock at which
its episode began, and the time within the episode is their difference. An episode that ended in the last step and awaits its
reset has `start == clock + 1`, so the next step finds its time to be 0. Only an episode's end writes `start`.

A random draw depends on a row's stream (seed, row), the episode and the step. The episode's number is the row's own
clock at its start, `start - origin`, where `origin` is the clock at which the row was seeded and every reset by the
user moves it back by one: so it grows with each reset, and no (episode, step) occurs twice. `shared` holds a stream for
all rows while none has been seeded or reset alone; then no env reads its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.types import DType, EnvParams

SCALARS: dict[type, DType] = {float: np.float32, int: np.int32, bool: np.bool_}
NO_STEP_LIMIT = np.iinfo(np.int32).max  # as max_episode_steps: an episode never reaches it
NO_FAULT = np.iinfo(np.uint64).max


class KernelOptions(NamedTuple):
    """What the kernels of an environment are compiled for."""

    autoreset: AutoresetMode
    max_episode_steps: int | None
    per_env: tuple[str, ...] = ()  # parameters that are stored per env
    validate: bool = False
    reward: str = "agents"  # of many agents: "agents" for one each, "sum" for their sum, or a role for that of its agents
    pool: tuple[str, ...] = ()  # fields of the state that resets take from the reset pool
    action_dtype: DType = np.int32
    cuda_c: bool = False  # with the author's functions in CUDA C++


class Buffer(NamedTuple):
    """An array of some number of rows, each of `shape` elements of `dtype`."""

    dtype: DType
    shape: tuple[int, ...] = ()
    # What there is one row for: each env, each CUDA block, each state of the reset pool, or the whole batch.
    rows: Literal["env", "block", "pool", "batch"] = "env"
    # Whether kernels access a row by 16 or 8 bytes at once, where the last axis is a multiple of 4 or 2 words.
    wide: bool = False

    def full_shape(self, num_envs: int, blocks: int) -> tuple[int, ...]:
        """The shape of the array with all rows, for `num_envs` envs in that many CUDA `blocks`."""
        return {"env": (num_envs,), "block": (blocks,), "batch": ()}[self.rows] + self.shape

    @property
    def alignment(self) -> int:
        """Bytes to which kernels expect the first row to be aligned."""
        size = np.dtype(self.dtype).itemsize
        return int(size * (next(k for k in (4, 2, 1) if self.shape[-1] % k == 0) if self.wide else 1))


class Layout(NamedTuple):
    """The buffers of a vector environment, {name: buffer} by their use."""

    persistent: dict[str, Buffer]  # all that the next step depends on
    scratch: dict[str, Buffer]  # what one kernel leaves for the next
    pool: dict[str, Buffer]  # the states with which resets begin
    inputs: dict[str, Buffer]  # what a caller passes to a reset or a step
    outputs: dict[str, Buffer]  # what a step returns

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
    """The NamedTuple class called `name` with those `fields`; one class for the same, since Numba compiles for each class."""
    return NamedTuple(name, [(field, Any) for field in fields])


def bookkeeping_buffers(options: KernelOptions, params: EnvParams) -> dict[str, Buffer]:
    """The buffers that every environment has besides its state, for kernels with `options` and the author's `params`."""
    return {f"param_{k}": Buffer(SCALARS[type(getattr(params, k))]) for k in options.per_env} | {
        "start": Buffer(np.uint32),
        "clock": Buffer(np.uint32, rows="block"),
        "rng_streams": Buffer(np.uint32, (4,)),  # seed, its high word, row, origin
        "shared": Buffer(np.uint32, (4,), rows="batch"),  # whether it is in force, seed, its high word, origin
        "faults": Buffer(np.uint64, (2,), rows="batch"),  # first bad action, first step of an ended env
    }


def pool_buffers(fields: dict[str, Buffer]) -> dict[str, Buffer]:
    """The buffers of the reset pool with `fields`, {name: buffer}, and of its size."""
    pool = {f"pool_{name}": buffer._replace(rows="pool") for name, buffer in fields.items()}
    return pool | {"pool_size": Buffer(np.int32, rows="batch")} if pool else {}


def input_buffers(components: tuple[int, ...], discrete: bool) -> dict[str, Buffer]:
    """The buffers that a caller passes to a reset or a step.

    Args:
        components: the shape of an env's actions: (), (K,), (A,) or (A, K).
        discrete: whether actions are integers.
    """
    return {
        "action": Buffer(np.int32 if discrete else np.float32, components),
        "mask": Buffer(np.bool_),
        "seeds": Buffer(np.uint32, (3,)),  # whether there is one, seed, its high word
    }
