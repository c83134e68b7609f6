"""Puts environments on Gymnasium's list, by strings, so that their specs compare, copy and serialise."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium as gym

from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, SingleAgentEnv

VECTOR_ENTRY_POINT = "gpuvec.vector.env:VectorEnv"  # which tells environments of gpuvec in Gymnasium's list
SCALAR_ENTRY_POINT = "gpuvec.vector.scalar:ScalarEnv"  # one env of many agents is no gymnasium.Env, whose reward is a number


def register(id: str, env: Environment | str, **kwargs: Any) -> None:
    """Makes `gymnasium.make_vec(id, num_envs=...)` and `gymnasium.make(id)` build `env`.

    Args:
        id: "namespace/Name-v0"; registering it again with the same environment changes nothing.
        env: the environment, bound to a name in the module that defines it, or that place as "module:NAME".
        kwargs: keyword arguments that this id gives to the environment, parameters included.

    Raises:
        AuthoringError: `env` is bound to no name in its module, or the place holds no environment.
    """
    place = env if isinstance(env, str) else find_place(env)
    declared = load_env(place) if isinstance(env, str) else env
    known = gym.registry.get(id)
    if known is not None and known.kwargs == {"env": place, **kwargs}:
        return
    gym.register(
        id,
        entry_point=SCALAR_ENTRY_POINT if isinstance(declared, SingleAgentEnv) else "gpuvec.registration:refuse_make",
        vector_entry_point=VECTOR_ENTRY_POINT,
        max_episode_steps=declared.max_episode_steps,
        reward_threshold=declared.reward_threshold,
        kwargs={"env": place, **kwargs},
    )


def refuse_make(env: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """The entry point of an environment of many agents: `gymnasium.make` is for one agent.

    Raises:
        gymnasium.error.Error: always; it says what to use.
    """
    raise gym.error.Error(
        f"{env} is an environment of many agents, and gymnasium.make is for one agent: use "
        "gymnasium.make_vec(id, num_envs=...), or gpuvec.parallel_env(id), which is PettingZoo's interface."
    )


def find_place(env: Environment) -> str:
    """ "module:NAME" of `env`."""
    name = env.reset.__module__
    module = sys.modules.get(name)
    for attribute, value in vars(module).items() if module is not None else ():
        if value is env:
            return f"{name}:{attribute}"
    raise AuthoringError(
        f"this environment is bound to no name in {name!r}, the module of its functions, so its spec could not be copied or "
        "serialised: bind it there (ENV = SingleAgentEnv(...)) and register that, or give its place as 'module:NAME'."
    )


def load_env(place: str | Environment) -> Environment:
    """The environment at "module:NAME"; one that is given as itself is returned.

    Raises:
        AuthoringError: there is none.
    """
    if isinstance(place, Environment):
        return place
    if not isinstance(place, str):
        raise AuthoringError(
            f"env is {place!r}; it must be a SingleAgentEnv or a MultiAgentEnv, or the place of one, as 'module:NAME'."
        )
    module, _, name = place.partition(":")
    env = getattr(importlib.import_module(module), name or "ENV", None)
    if not isinstance(env, Environment):
        raise AuthoringError(
            f"{place!r} holds {type(env).__name__}; expected 'module:NAME' of a SingleAgentEnv or a MultiAgentEnv."
        )
    return env
