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

from typing import Any, NamedTuple, get_type_hints

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.errors import AuthoringError
from gpuvec.spec import Single

SCALARS: dict[Any, Any] = {float: np.float32, int: np.int32, bool: np.bool_}
WITHOUT_LIMIT = np.iinfo(np.int32).max  # as max_episode_steps: an episode never reaches it
NO_FAULT = np.iinfo(np.uint64).max


class Variant(NamedTuple):
    """What the kernels of an env are compiled for."""

    autoreset: AutoresetMode
    max_episode_steps: int | None
    per_env: tuple[str, ...] = ()  # parameters that are stored per env
    validate: bool = False
    action_dtype: Any = np.int32


class Buffer(NamedTuple):
    """A buffer of `rows` x `shape` elements; rows is "env" (one per env), "block" (one per CUDA block) or "batch" (one)."""

    dtype: Any
    shape: tuple[int, ...] = ()
    rows: str = "env"

    def full_shape(self, num_envs: int, blocks: int) -> tuple[int, ...]:
        """The shape for that many envs and blocks."""
        return {"env": (num_envs,), "block": (blocks,), "batch": ()}[self.rows] + self.shape

    @property
    def alignment(self) -> int:
        """Bytes to which kernels expect the first row to be aligned: rows of 4k or 2k words are accessed by 16 or 8 bytes."""
        size = np.dtype(self.dtype).itemsize
        wide = next(k for k in (4, 2, 1) if k == 1 or (self.shape and self.shape[-1] % k == 0))
        return int(wide * size if size == 4 else size)


class Layout(NamedTuple):
    """The buffers of an env: those it keeps, those it is given at a reset or step, and those a step returns."""

    kept: dict[str, Buffer]
    given: dict[str, Buffer]
    returned: dict[str, Buffer]

    @property
    def batch(self) -> Any:
        """The NamedTuple class of a kernel's argument."""
        return NamedTuple("Batch", [(name, Any) for name in (*self.kept, *self.given, *self.returned, "n")])


class Signature(NamedTuple):
    """Widths and types that follow from an env's declaration."""

    floats: tuple[str, ...]  # float fields of the state, stored together as (E, len(floats))
    others: dict[str, Any]  # the other fields and their dtypes, one buffer each
    features: int  # D
    components: int  # K; 0 for a scalar action
    discrete: bool


def signature(env: Single) -> Signature:
    """What the kernels of `env` need to know.

    Raises:
        AuthoringError: a state field or a space of a kind that kernels cannot hold.
    """
    hints = get_type_hints(env.state)
    for name, hint in hints.items():
        if hint not in SCALARS:
            raise AuthoringError(f"{env.state.__module__}.State.{name} is a {hint}; a state field is float, int or bool.")
    observation, action = env.spaces(env.params)
    if not isinstance(observation, gym.spaces.Box) or len(observation.shape) != 1 or observation.dtype != np.float32:
        raise AuthoringError(f"the observation space is {observation}; it must be a Box of shape (D,) and dtype float32.")
    if isinstance(action, gym.spaces.Discrete):
        components, discrete = 0, True
    elif isinstance(action, gym.spaces.MultiDiscrete | gym.spaces.Box) and len(action.shape) == 1:
        components, discrete = action.shape[0], isinstance(action, gym.spaces.MultiDiscrete)
    else:
        raise AuthoringError(
            f"the action space is {action}; it must be Discrete, MultiDiscrete of shape (K,) or Box of shape (K,)."
        )
    return Signature(
        floats=tuple(k for k in hints if hints[k] is float),
        others={k: SCALARS[h] for k, h in hints.items() if h is not float},
        features=observation.shape[0],
        components=components,
        discrete=discrete,
    )


def layout(env: Single, variant: Variant) -> Layout:
    """The buffers that `env` needs as `variant`."""
    s = signature(env)
    kept = {"state": Buffer(np.float32, (len(s.floats),))} if s.floats else {}
    kept |= {f"state_{k}": Buffer(dtype) for k, dtype in s.others.items()}
    kept |= {f"param_{k}": Buffer(SCALARS[type(getattr(env.params, k))]) for k in variant.per_env}
    kept |= {
        "start": Buffer(np.uint32),
        "clock": Buffer(np.uint32, rows="block"),
        "streams": Buffer(np.uint32, (4,)),  # seed, its high word, row, origin
        "shared": Buffer(np.uint32, (4,), rows="batch"),  # is it in force?, seed, its high word, origin
        "faults": Buffer(np.uint64, (2,), rows="batch"),  # first bad action, first step of an ended env
    }
    components = (s.components,) if s.components else ()
    given = {
        "action": Buffer(np.int32 if s.discrete else np.float32, components),
        "mask": Buffer(np.bool_),
        "seeds": Buffer(np.uint32, (3,)),  # is it given?, seed, its high word
    }
    returned = {
        "obs": Buffer(np.float32, (s.features,)),
        "reward": Buffer(np.float32),
        "terminated": Buffer(np.bool_),
        "truncated": Buffer(np.bool_),
    }
    if variant.autoreset is AutoresetMode.SAME_STEP:
        returned |= {"final_obs": Buffer(np.float32, (s.features,)), "final_mask": Buffer(np.bool_)}
    return Layout(kept, given, returned)
