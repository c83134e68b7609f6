"""The environments that policies train and are evaluated in."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import gymnasium as gym
import numpy as np

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import find_tuned_settings
from gpuvec.registration import find_env_spec, load_env
from gpuvec.spec import Environment, MultiAgentEnv
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.spaces import space_of_one_agent

# Arguments of `make_vec` that change the environment, while others change only its execution.
ENV_ARGUMENTS = {"max_episode_steps", "per_env"}

A = TypeVar("A", bound=TrainingArgs)


class TrainingEnv(Protocol):
    """A `VectorEnv` in SAME_STEP mode with torch output, or a wrapper around one."""

    num_envs: int
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    device: Any
    roles: Mapping[str, Any]
    """{role: its agents, as a slice, (n,) indices or (E, n) indices}."""
    action_mask_shape: Any
    """The shape of `infos["action_mask"]` without E, or {role: shape}; None without masks."""

    @property
    def unwrapped(self) -> Any:
        """The `VectorEnv` inside all wrappers."""

    # Arguments and results depend on the array library of the output, so Gymnasium leaves them untyped.
    reset: Any
    step: Any
    state_dict: Any
    load_state_dict: Any
    close: Any


class AgentSpaces(NamedTuple):
    """The spaces of one agent, and whether its actions have masks."""

    observation: gym.Space[Any]
    action: gym.Space[Any]
    critic_observation: gym.Space[Any] | None  # that of a value function in training; None if the environment has none
    has_masks: bool

    @classmethod
    def of_env(cls, env: TrainingEnv, role: str = ALL) -> AgentSpaces:
        """Returns the spaces of one agent of an environment.

        Args:
            env: the environment.
            role: the role of the agent, if roles have spaces of their own.
        """
        shape = env.action_mask_shape
        has_masks = role in shape if isinstance(shape, Mapping) else shape is not None
        return cls(*spaces_of_agent(env, role), critic_space_of_agent(env), has_masks)


def make_env(env: str, num_envs: int, params: Mapping[str, Any], **arguments: Any) -> TrainingEnv:
    """Calls `gymnasium.make_vec` for an environment of gpuvec with its own parameters.

    Args:
        env: the id of the environment; "module:id" imports the module.
        num_envs: E.
        params: the environment's own parameters, `max_episode_steps` and `per_env`.
        arguments: of `VectorEnv`.

    Raises:
        ValueError: the environment is not one of gpuvec, or `params` has another argument of `make_vec`.
        gymnasium.error.Error: there is no such id.
        GpuvecError: as `VectorEnv`.
    """
    find_env_spec(env)
    make_vec_arguments = {*inspect.signature(gym.make_vec).parameters, *inspect.signature(VectorEnv.__init__).parameters}
    if reserved := sorted(params.keys() & make_vec_arguments - ENV_ARGUMENTS):
        raise ValueError(
            f"params contains {', '.join(reserved)}, which gymnasium.make_vec takes itself; params are the environment's own "
            "parameters, such as gravity, max_episode_steps and per_env."
        )
    return cast(TrainingEnv, gym.make_vec(env, num_envs=num_envs, **arguments, **params))


def map_roles(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns `function(value)`, or {role: function(part)} of what an environment with spaces by role has for each role.

    Args:
        function: the function.
        value: a space, an array or a shape, or a dict of them by role.
    """
    return {role: function(part) for role, part in value.items()} if isinstance(value, Mapping) else function(value)


def has_role_spaces(env: TrainingEnv) -> bool:
    """Returns whether the roles of `env` have spaces of their own, so that observations and actions are dicts by role."""
    return isinstance(env.single_action_space, gym.spaces.Dict)


def policy_roles(env: str, params: Mapping[str, Any], algorithm: str = "ppo") -> tuple[str, ...]:
    """Returns the roles that have a policy each in a training with tuned settings; ("all",) if one policy acts for all agents.

    Roles have a policy each if their spaces differ, or if tuned settings say so.

    Args:
        env: the id of an environment of gpuvec, whose module is imported.
        params: the environment's own parameters.
        algorithm: the name of the algorithm that trains.
    """
    declaration = _declaration_of(env)[0]
    values = {name: value for name, value in params.items() if name in declaration.params._fields}
    declared_params = declaration.params._replace(**values)
    if isinstance(declaration, MultiAgentEnv) and declaration.roles and find_tuned_settings(env, algorithm).by_role:
        return tuple(declaration.roles(declared_params))
    spaces: Any = declaration.spaces(declared_params)
    return tuple(spaces) if isinstance(spaces, Mapping) else (ALL,)


def _declaration_of(env: str) -> tuple[Environment, int | None]:
    """The declaration of a registered environment with the parameters of its id, and its step limit."""
    kwargs = find_env_spec(env).kwargs
    declared = load_env(kwargs["env"])
    own = {name: value for name, value in kwargs.items() if name in declared.params._fields}
    return apply_params(declared, own, (), 1)[0], kwargs.get("max_episode_steps", declared.max_episode_steps)


def resolve_args(args: A, device: str) -> A:
    """Returns settings for a device, with all parameters of their evaluations that are not the environment's own.

    Args:
        args: the settings.
        device: "cpu" or "cuda:<index>".

    Raises:
        ValueError, TypeError: parameters that the environment refuses, or with which a policy cannot be evaluated.
    """
    params = evaluation_params(args.env, args.params, args.evaluate_params)
    return dataclasses.replace(args.resolved(device), evaluate_params=params)


def evaluation_params(env: str, trained: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the environment with which a policy is evaluated, those that are not the environment's own.

    A training may make its task easier, such as by a wider range of initial states. Its parameters are therefore kept only
    where the network would not fit otherwise: those on which spaces, the number of agents or roles depend. A step limit is kept
    if the environment has none.

    Args:
        env: the id of the environment.
        trained: the parameters in the training.
        overrides: parameters that replace those.

    Raises:
        ValueError: with `overrides`, spaces, agents or roles are not those of the training; or values that the environment
            refuses.
        TypeError: a parameter that the environment does not have, or a value of another type.
    """
    declaration, step_limit = _declaration_of(env)

    def fitting(params: Mapping[str, Any]) -> Any:
        """What a network depends on."""
        return _network_inputs(apply_params(declaration, params, (), 1, keywords=sorted(ENV_ARGUMENTS))[0])

    needed = {name: value for name, value in trained.items() if name not in ENV_ARGUMENTS}
    expected = fitting(needed)
    for name in list(needed):
        others = {key: value for key, value in needed.items() if key != name}
        with suppress(ValueError, TypeError):  # parameters that make no sense without this one
            if fitting(others) == expected:
                needed = others
    params = {**needed, **{name: value for name, value in overrides.items() if name not in ENV_ARGUMENTS}}
    if fitting(params) != expected:
        raise ValueError(
            f"with the parameters {dict(overrides)} the spaces, agents or roles of {env} are not those of the training, so its "
            "policies do not fit: leave these parameters out, or train with them."
        )
    params = {name: value for name, value in params.items() if value != getattr(declaration.params, name)}
    limit = overrides.get("max_episode_steps", step_limit or trained.get("max_episode_steps"))
    return params if limit == step_limit else {**params, "max_episode_steps": limit}


def _network_inputs(env: Environment) -> Any:
    """What the networks of policies depend on in an environment."""
    params, spaces = env.params, cast(Any, env.spaces(env.params))
    by_role = spaces if isinstance(spaces, Mapping) else {ALL: spaces}
    shapes = [(role, type(obs), obs.shape, obs.dtype, action) for role, (obs, action) in by_role.items()]
    masked = env.masked_components(params) if env.masked_components else None
    if not isinstance(env, MultiAgentEnv):
        return shapes, masked
    return shapes, masked, env.agents(params), list(env.roles(params).items()) if env.roles else None


def spaces_of_agent(env: TrainingEnv, role: str = ALL) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Returns the observation space and the action space of one agent.

    Args:
        env: the environment.
        role: the role of the agent, if roles have spaces of their own.
    """
    spaces: tuple[Any, Any] = (env.single_observation_space, env.single_action_space)
    if has_role_spaces(env):
        spaces = spaces[0][role], spaces[1][role]
    elif not is_multi_agent(env):
        return spaces
    return space_of_one_agent(spaces[0]), space_of_one_agent(spaces[1])


def critic_space_of_agent(env: TrainingEnv) -> gym.spaces.Box | None:
    """Returns the space of the critic's observation of one agent, (Dc,); None if the environment has none.

    Args:
        env: the environment.
    """
    space = getattr(env.unwrapped, "single_critic_observation_space", None)
    return None if space is None else gym.spaces.Box(-np.inf, np.inf, space.shape[-1:])


def find_agent_spaces(env: str, params: Mapping[str, Any], device: str, role: str = ALL) -> AgentSpaces:
    """Returns the spaces of one agent of an environment, which is created for that.

    Args:
        env: the id of the environment.
        params: the environment's own parameters.
        device: "auto", "cpu", "cuda" or "cuda:1".
        role: the role of the agent, if roles have spaces of their own.

    Raises:
        StateError: the roles of the environment have spaces of their own, and `role` is none of them.
    """
    with closing(make_env(env, 1, params, device=device, output="numpy")) as envs:
        if has_role_spaces(envs) and role not in envs.roles:
            raise StateError(f"{env} has the roles {', '.join(envs.roles)}, and the policy is of the role {role!r}.")
        return AgentSpaces.of_env(envs, role)


def is_multi_agent(env: TrainingEnv) -> bool:
    """Returns whether arrays of `env` have an axis of agents, such as observations (E, A, D) or images (E, A, C, H, W).

    A wrapper such as `FlattenAgents` may have removed it, which its action space shows.
    """
    base = env.unwrapped
    has_agents_axis = len(env.single_action_space.shape or ()) == len(base.single_action_space.shape or ())
    return bool(base.is_multi_agent) and has_agents_axis
