"""What an environment file declares.

Letters used for shapes everywhere: E envs, A agents, T steps, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Single:
    """An environment with one agent, as pure functions of scalars; nothing in it names a device.

    In the state and in the functions `float` means float32, `int` int32 and `bool` bool. The engine owns time,
    truncation, autoreset, episode counts and seeds: an environment never repeats them.

    `reset` may read any parameter. Those listed in `reset_options` can be given anew for one reset, as
    `env.reset(options={name: value})`; automatic resets keep the parameter's own value.
    """

    state: type[Any]
    """A NamedTuple class; one scalar field per variable of the physical state, with units in comments."""
    params: Any
    """A NamedTuple instance: the parameters and their defaults, which `make_vec` takes as keyword arguments."""
    reset: Callable[..., Any]
    """`reset(key, p) -> State`: the first state of an episode."""
    step: Callable[..., tuple[Any, Any, Any]]
    """`step(s, action, key, p) -> (State, reward, terminated)`.

    `action` is an int for a Discrete space, and a tuple of K numbers for Box((K,)) and MultiDiscrete.
    """
    observe: Callable[..., tuple[Any, ...]]
    """`observe(s, p) -> tuple` of D floats."""
    spaces: Callable[[Any], tuple[gym.spaces.Box, gym.Space[Any]]]
    """`spaces(p) -> (observation, action)`: Box((D,)) and a Discrete, MultiDiscrete or Box((K,)) space."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; None for no limit."""
    reward_threshold: float | None = None
    """The mean return at which the environment counts as solved."""
    reset_options: tuple[str, ...] = ()
    """Names of parameters that `reset(options=...)` may override for that reset."""
    check: Callable[[Any], None] | None = None
    """`check(p)`: raises ValueError, naming given and allowed, for parameters that make no sense together."""
    draw: Callable[[Any, Any], NDArray[np.uint8]] | None = None
    """`draw(s, p) -> (H, W, 3) uint8`: a picture of one state, drawn on the host."""
    render_fps: int = 30
    """Pictures per second at which `draw` looks natural."""
