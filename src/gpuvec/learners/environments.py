"""Environments as learners and evaluations make them, with the parameters that settings hold."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.registration import VECTOR_ENTRY_POINT
from gpuvec.vector.env import VectorEnv

SETTABLE = {"max_episode_steps", "per_env"}  # arguments of `make_vec` that change the game and not how it is run


def make_env(env: str, num_envs: int, params: Mapping[str, Any], **arguments: Any) -> Any:
    """`gymnasium.make_vec` of an environment of gpuvec, with its own parameters.

    Args:
        env: its id; "module:id" imports the module.
        num_envs: how many, E.
        params: the environment's own parameters, `max_episode_steps` and `per_env`.
        arguments: of `VectorEnv`.

    Raises:
        ValueError: the environment is not one of gpuvec, or `params` holds another argument of `make_vec`.
        gymnasium.error.Error: there is no such id.
        GpuvecError: as `VectorEnv`.
    """
    module, _, id = env.rpartition(":")
    if module:
        importlib.import_module(module)
    if gym.spec(id).vector_entry_point != VECTOR_ENTRY_POINT:
        raise ValueError(f"{env} is not an environment of gpuvec: learners train in those that `gpuvec envs` lists.")
    arguments_of_make = {*inspect.signature(gym.make_vec).parameters, *inspect.signature(VectorEnv.__init__).parameters}
    if taken := sorted(params.keys() & arguments_of_make - SETTABLE):
        raise ValueError(
            f"params holds {', '.join(taken)}, which gymnasium.make_vec takes itself; params are the environment's own "
            "parameters, such as gravity, max_episode_steps and per_env."
        )
    return gym.make_vec(env, num_envs=num_envs, **arguments, **params)
