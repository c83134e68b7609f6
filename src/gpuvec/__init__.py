"""Reinforcement-learning environments whose whole batch lives, steps and learns on one GPU.

    import gymnasium, gpuvec
    envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=65_536)

Importing this registers the bundled environments and imports nothing heavier than Gymnasium; Numba, CuPy and PyTorch are
loaded when an environment is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpuvec.angles import sincos, wrap
from gpuvec.canvas import Canvas
from gpuvec.fractions import fraction
from gpuvec.random import Key, normal, randint, uniform
from gpuvec.registration import register
from gpuvec.spec import (
    Bools,
    Floats,
    Ints,
    MultiAgentEnv,
    NearestNeighbors,
    Observation,
    SingleAgentEnv,
    Time,
    all_of,
    any_of,
    argmin_of,
    count_of,
)  # fmt: skip

if TYPE_CHECKING:
    from gpuvec.episode import fetch_episode
    from gpuvec.vector.env import VectorEnv
    from gpuvec.vector.parallel import ParallelEnv

__all__ = [
    "Bools",
    "Canvas",
    "Floats",
    "Ints",
    "Key",
    "MultiAgentEnv",
    "NearestNeighbors",
    "Observation",
    "SingleAgentEnv",
    "Time",
    "VectorEnv",
    "all_of",
    "any_of",
    "argmin_of",
    "count_of",
    "fetch_episode",
    "fraction",
    "normal",
    "parallel_env",
    "randint",
    "register",
    "sincos",
    "uniform",
    "wrap",
]  # fmt: skip

__version__ = "0.1.0"
ON_DEMAND = {"VectorEnv": "gpuvec.vector.env", "fetch_episode": "gpuvec.episode"}  # they bring in Numba


def parallel_env(id: str, **kwargs: Any) -> ParallelEnv:
    """A registered environment of many agents as PettingZoo's `ParallelEnv`, on the CPU unless `device` says otherwise.

    Args:
        id: such as "gpuvec/TagContinuous-v0".
        kwargs: `device`, `render_mode`, `max_episode_steps` and the environment's own parameters.

    Raises:
        MissingExtraError: PettingZoo is not installed.
        AuthoringError: an environment of one agent.
    """
    found: ParallelEnv = importlib.import_module("gpuvec.vector.parallel").ParallelEnv(id, **kwargs)
    return found


def __getattr__(name: str) -> Any:
    if name in ON_DEMAND:
        return getattr(importlib.import_module(ON_DEMAND[name]), name)
    raise AttributeError(f"module 'gpuvec' has no attribute {name!r}")


# The bundled environments are a client of this package like any other; by name, so that no layer below depends on them.
importlib.import_module("gpuvec_envs")
