"""Registers environments with Gymnasium, by strings, so that their specs can be compared, copied and serialised."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium as gym

from gpuvec.errors import AuthoringError
from gpuvec.phases import first_function
from gpuvec.spec import Environment, SingleAgentEnv

VECTOR_ENTRY_POINT = "gpuvec.vector.env:VectorEnv"  # by which environments of gpuvec are recognised in Gymnasium's registry
SCALAR_ENTRY_POINT = "gpuvec.vector.scalar:ScalarEnv"
REFUSING_ENTRY_POINT = "gpuvec.registration:refuse_make"  # the reward of a gymnasium.Env is one number, not one per agent


def register(id: str, env: Environment | str, **kwargs: Any) -> None:
    """Registers an environment, so that `gymnasium.make_vec(id, num_envs=...)` and `gymnasium.make(id)` create it.

    `gymnasium.make` is for environments with one agent. Registering a variable again under the same id replaces all that was
    registered: the limit of steps, the threshold and the functions are those that the variable holds now, as after an edit in a
    notebook. Environments that exist do not change.

    Args:
        id: "namespace/Name-v0".
        env: the environment, which must be the value of a global variable of the module that defines its functions; or the
            name of that variable, "module:NAME".
        kwargs: keyword arguments that `make_vec` and `make` pass to the environment, such as values of parameters.

    Raises:
        AuthoringError: no global variable of the module has the value `env`, or the variable that `env` names does not hold
            an environment.
        TypeError: an id that is no text.
    """
    if not isinstance(id, str):
        raise TypeError(f"id must be text, as 'namespace/Name-v0', got {id!r}.")
    declaration = load_env(env)
    import_path = env if isinstance(env, str) else find_import_path(env)
    fields: dict[str, Any] = {
        "entry_point": SCALAR_ENTRY_POINT if isinstance(declaration, SingleAgentEnv) else REFUSING_ENTRY_POINT,
        "vector_entry_point": VECTOR_ENTRY_POINT,
        "max_episode_steps": declaration.max_episode_steps,
        "reward_threshold": declaration.reward_threshold,
        "kwargs": {"env": import_path, **kwargs},
    }
    registered = gym.registry.get(id)
    if registered is None or registered.vector_entry_point != VECTOR_ENTRY_POINT or registered.kwargs.get("env") != import_path:
        gym.register(id, **fields)  # which warns of an environment of another name that it replaces
        return
    for name, value in fields.items():
        setattr(registered, name, value)


def registered_envs(namespace: str) -> dict[str, Environment]:
    """Returns {name: environment} of all ids "namespace/name" that `register` has registered, in the order of registration.

    Args:
        namespace: the part of the ids before the slash; "gpuvec" gives the environments that come with gpuvec.
    """
    prefix = f"{namespace}/"
    specs = [spec for spec in gym.registry.values() if spec.vector_entry_point == VECTOR_ENTRY_POINT]
    return {spec.id.removeprefix(prefix): load_env(spec.kwargs["env"]) for spec in specs if spec.id.startswith(prefix)}


def refuse_make(env: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Refuses to create an environment with many agents by `gymnasium.make`, which is for one agent.

    Args:
        env: the name of the environment, "module:NAME".
        kwargs: keyword arguments for the environment, which are ignored.

    Raises:
        gymnasium.error.Error: always; the message names the functions to use.
    """
    raise gym.error.Error(
        f"{env} is an environment with many agents, and gymnasium.make is for one agent: use "
        "gymnasium.make_vec(id, num_envs=...), or gpuvec.parallel_env(id), which is PettingZoo's interface."
    )


def find_import_path(env: Environment) -> str:
    """The name "module:NAME" of the global variable that holds an environment.

    Args:
        env: the environment. The module of its functions is searched.

    Raises:
        AuthoringError: no global variable of that module holds the environment.
    """
    name = first_function(env.reset).__module__
    module = sys.modules.get(name)
    for attribute, value in vars(module).items() if module is not None else ():
        if value is env:
            return f"{name}:{attribute}"
    raise AuthoringError(
        f"no global variable of {name!r}, the module of the environment's functions, holds this environment, so its spec could "
        "not be copied or serialised: assign it there (ENV = SingleAgentEnv(...)) and register that, or pass its name as "
        "'module:NAME'."
    )


def find_env_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of a registered environment of gpuvec.

    Args:
        env_id: the id of the environment; "module:id" imports the module first.

    Raises:
        ValueError: the environment is not one of gpuvec; the message names the bundled one of that name, if there is one.
        gymnasium.error.Error: there is no such environment; the message suggests similar ids.
        ModuleNotFoundError: there is no such module.
    """
    module, _, id = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    spec, bundled = gym.registry.get(id), f"gpuvec/{id}"
    if spec is None and bundled not in gym.registry:
        spec = gym.spec(id)  # which raises the error, or resolves the newest version of an id without one
    if spec is not None and spec.vector_entry_point == VECTOR_ENTRY_POINT:
        return spec
    remedy = f"did you mean {bundled}?" if bundled in gym.registry else "`gpuvec envs` lists those that are."
    raise ValueError(f"{id} is not an environment of gpuvec: {remedy}")


def load_env(import_path: str | Environment) -> Environment:
    """Imports the module of an environment and returns the environment.

    Args:
        import_path: "module:NAME"; an environment is returned unchanged.

    Raises:
        AuthoringError: the variable does not hold an environment.
    """
    if isinstance(import_path, Environment):
        return import_path
    if not isinstance(import_path, str):
        raise AuthoringError(
            f"env is {import_path!r}; it must be a SingleAgentEnv or a MultiAgentEnv, or the name of one, as 'module:NAME'."
        )
    module, _, name = import_path.partition(":")
    if not all(map(str.isidentifier, module.split("."))):
        raise AuthoringError(f"{import_path!r} names no module; expected 'module:NAME'.")
    try:
        env = getattr(importlib.import_module(module), name or "ENV", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # from an import in that module
        message = f"{import_path!r} names no module that can be imported ({error}); expected 'module:NAME'."
        raise AuthoringError(message) from error
    if not isinstance(env, Environment):
        raise AuthoringError(
            f"{import_path!r} holds {type(env).__name__}; expected 'module:NAME' of a SingleAgentEnv or a MultiAgentEnv."
        )
    return env
