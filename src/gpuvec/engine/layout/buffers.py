"""The buffers of a vector environment: which there are, and what each holds.

A kernel takes one `Batch`: a NamedTuple with the address of each buffer and the number of envs `n`.

Time costs no traffic: `clock` counts the calls of `step`, `start` holds for each env the clock at which its episode
began, and the time within the episode is their difference. An episode that ended in the last step and awaits its reset
has `start == clock + 1`, so the next step finds its time to be 0. Only an episode's end writes `start`.

A random draw depends on a row's stream (seed, row), the episode and the step. The episode's number is the row's own
clock at its start, `start - origin`, where `origin` is the clock at which the row was seeded and every reset by the
user moves it back by one: so it grows with each reset, and no (episode, step) occurs twice. `shared` holds a stream for
all rows while none has been seeded or reset alone; then no env reads its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.errors import AuthoringError

SCALARS: dict[Any, Any] = {float: np.float32, int: np.int32, bool: np.bool_}
NO_STEP_LIMIT = np.iinfo(np.int32).max  # as max_episode_steps: an episode never reaches it
NO_FAULT = np.iinfo(np.uint64).max


class KernelOptions(NamedTuple):
    """What the kernels of an env are compiled for."""

    autoreset: AutoresetMode
    max_episode_steps: int | None
    per_env: tuple[str, ...] = ()  # parameters that are stored per env
    validate: bool = False
    reward: str = "agents"  # of a cooperative env: one for each agent, their "sum", or that of one role
    pool: tuple[str, ...] = ()  # fields of the state that resets take from the reset pool
    action_dtype: Any = np.int32
    cuda_c: bool = False  # with the author's functions in CUDA C++


class Buffer(NamedTuple):
    """A buffer of rows x `shape` elements."""

    dtype: Any
    shape: tuple[int, ...] = ()
    rows: str = "env"  # one for each "env", for each CUDA "block", for each state of the "pool", or one for the "batch"
    wide: bool = False  # whether kernels access rows of 4k or 2k words by 16 or 8 bytes

    def full_shape(self, num_envs: int, blocks: int) -> tuple[int, ...]:
        """The shape for that many envs and blocks."""
        return {"env": (num_envs,), "block": (blocks,), "batch": ()}[self.rows] + self.shape

    @property
    def alignment(self) -> int:
        """Bytes to which kernels expect the first row to be aligned."""
        size = np.dtype(self.dtype).itemsize
        return int(size * (next(k for k in (4, 2, 1) if self.shape[-1] % k == 0) if self.wide else 1))


class Layout(NamedTuple):
    """The buffers of an env."""

    kept: dict[str, Buffer]  # all that the next step depends on
    scratch: dict[str, Buffer]  # what one kernel leaves for the next
    pool: dict[str, Buffer]  # states to begin with
    given: dict[str, Buffer]  # at a reset or step
    returned: dict[str, Buffer]  # by a step

    @property
    def own(self) -> dict[str, Buffer]:
        """Those that an env has for itself."""
        return {**self.kept, **self.scratch}

    @property
    def batch(self) -> Any:
        """The NamedTuple class of a kernel's argument."""
        return named_tuple("Batch", (*self.own, *self.pool, *self.given, *self.returned, "n"))


@cache
def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The NamedTuple class of that name with those fields: one for the same, as functions are compiled once for each type."""
    return NamedTuple(name, [(field, Any) for field in fields])


def batch_members(
    kept: tuple[int, ...], outputs: bytes, num_envs: int, *, action: int = 0, mask: int = 0, seeds: int = 0
) -> tuple[int, ...]:
    """The members of `Layout.batch`: addresses, and E last.

    Those of the outputs come as they lie in a kernel's arguments, 8 bytes each.
    """
    return (*kept, action, mask, seeds, *memoryview(outputs).cast("q"), num_envs)


def pack_arguments(block: Any, kept: tuple[int, ...], num_envs: int, asked: int = 0) -> tuple[Any, Any, int, slice]:
    """Puts the members of a step into `block`, an array of uint64 of which the last `asked` are no members, and tells where a
    step changes it: (its words, its bytes, the word that is the action's address, the bytes that are those of the outputs).
    """
    count = len(block) - asked
    returned = count - len(batch_members(kept, b"", 0))
    block[:count] = batch_members(kept, bytes(8 * returned), num_envs)
    return memoryview(block), memoryview(block).cast("B"), len(kept), slice(8 * (count - 1 - returned), 8 * (count - 1))


def make_packer(dtypes: tuple[Any, ...]) -> Callable[..., None]:
    """`pack(block, at, *values)`: numbers of those dtypes from byte `at` on, 8 bytes each."""
    kinds = [np.dtype(dtype).char for dtype in dtypes]
    return struct.Struct("".join(f"{kind}{8 - struct.calcsize(kind)}x" for kind in kinds)).pack_into


class ActionLayout(NamedTuple):
    """The actions of one agent."""

    components: int  # K; 0 for a scalar
    discrete: bool

    @property
    def dtype(self) -> Any:
        """Of an action in author code."""
        return np.int32 if self.discrete else np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one agent's action."""
        return (self.components,) if self.components else ()


def observation_features(observation: gym.Space[Any]) -> int:
    """D.

    Raises:
        AuthoringError: a space of a kind that kernels cannot write.
    """
    if not isinstance(observation, gym.spaces.Box) or len(observation.shape) != 1 or observation.dtype != np.float32:
        raise AuthoringError(f"the observation space is {observation}; it must be a Box of shape (D,) and dtype float32.")
    return observation.shape[0]


def make_action_layout(space: gym.Space[Any]) -> ActionLayout:
    """Those of `space`.

    Raises:
        AuthoringError: a space of a kind that kernels cannot read.
    """
    limits = np.iinfo(np.int32)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        counts = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        pairs = [(int(first), int(count)) for first, count in zip(np.ravel(space.start), np.ravel(counts), strict=True)]
        if any(first < limits.min or first + count - 1 > limits.max for first, count in pairs):
            raise AuthoringError(
                f"the action space is {space}; its actions must be int32, from {limits.min} to {limits.max}: use a smaller one."
            )
    if isinstance(space, gym.spaces.Discrete):
        return ActionLayout(0, True)
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.Box) and len(space.shape) == 1:
        return ActionLayout(space.shape[0], isinstance(space, gym.spaces.MultiDiscrete))
    raise AuthoringError(f"the action space is {space}; it must be Discrete, MultiDiscrete of shape (K,) or Box of shape (K,).")


def bookkeeping_buffers(options: KernelOptions, params: Any) -> dict[str, Buffer]:
    """The buffers that every environment keeps beside its state."""
    return {f"param_{k}": Buffer(SCALARS[type(getattr(params, k))]) for k in options.per_env} | {
        "start": Buffer(np.uint32),
        "clock": Buffer(np.uint32, rows="block"),
        "rng_streams": Buffer(np.uint32, (4,)),  # seed, its high word, row, origin
        "shared": Buffer(np.uint32, (4,), rows="batch"),  # is it in force?, seed, its high word, origin
        "faults": Buffer(np.uint64, (2,), rows="batch"),  # first bad action, first step of an ended env
    }


def pool_buffers(fields: dict[str, Buffer]) -> dict[str, Buffer]:
    """The reset pool that holds `fields`, {name: buffer}, and its size."""
    pool = {f"pool_{name}": buffer._replace(rows="pool") for name, buffer in fields.items()}
    return pool | {"pool_size": Buffer(np.int32, rows="batch")} if pool else {}


def input_buffers(components: tuple[int, ...], discrete: bool) -> dict[str, Buffer]:
    """What a reset or a step is given; actions have shape (E, *components)."""
    return {
        "action": Buffer(np.int32 if discrete else np.float32, components),
        "mask": Buffer(np.bool_),
        "seeds": Buffer(np.uint32, (3,)),  # is it given?, seed, its high word
    }
