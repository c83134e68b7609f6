"""Roles with spaces of their own: the checks of their declaration, and functions by role as one function of all agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.errors import AuthoringError
from gpuvec.observations import Observation
from gpuvec.phases import ByRole
from gpuvec.spec import MultiAgentEnv

# {function that may be by role: its arguments after the index of an agent}
AGENT_FUNCTIONS = {"reward": "s, t, p", "terminated": "s, p", "active": "s, p", "allowed": "action, s, p"}
OPTIONAL_ROLES = ("active", "allowed")  # functions that some roles may lack


def check_roles(env: MultiAgentEnv, roles: Mapping[str, int], spaces: Mapping[str, Any]) -> None:
    """Checks the declaration of an environment whose spaces are by role.

    Args:
        env: the environment.
        roles: {role: number of agents}, what `roles(p)` returned.
        spaces: what `spaces(p)` returned.

    Raises:
        AuthoringError: roles without spaces, spaces or functions of roles that do not exist, or what needs equal spaces.
    """
    if not roles:
        raise AuthoringError(f"spaces(p) has spaces for {_names(spaces)}, and the environment has no roles(p): declare them.")
    _require_roles("spaces(p)", spaces, roles)
    for role, pair in spaces.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(space, gym.Space) for space in pair):
            raise AuthoringError(f"spaces(p)[{role!r}] is {pair}; it must be two spaces, (observation, action).")
    for role, count in roles.items():
        if count < 1:
            raise AuthoringError(f"roles(p) is {dict(roles)}; with spaces by role, {role!r} must have at least 1 agent.")
    observation = env.observation(env.params)
    if not isinstance(observation, Mapping):
        raise AuthoringError(
            f"spaces(p) is by role, and observation(p) returned a {type(observation).__name__}; it must return "
            "{role: Observation(...)}, too."
        )
    _require_roles("observation(p)", observation, roles)
    for role, declared in observation.items():
        if not isinstance(declared, Observation):
            raise AuthoringError(f"observation(p)[{role!r}] is a {type(declared).__name__}; it must be an Observation(...).")
    for name in AGENT_FUNCTIONS:
        functions = getattr(env, name)
        if isinstance(functions, ByRole):
            _require_roles(name, dict.fromkeys(functions.roles), roles, all_roles=name not in OPTIONAL_ROLES)
    if callable(env.allowed):
        raise AuthoringError("allowed is one function, and actions differ between roles: give allowed={role: function}.")
    if env.cuda_c is not None:
        raise AuthoringError("cuda_c is for environments whose agents have equal spaces; here spaces(p) is by role: remove it.")


def refuse_functions_by_role(env: MultiAgentEnv) -> None:
    """Refuses functions by role of an environment with equal spaces for all agents.

    Args:
        env: the environment.

    Raises:
        AuthoringError: a function is by role.
    """
    for name in AGENT_FUNCTIONS:
        if isinstance(getattr(env, name), ByRole):
            raise AuthoringError(
                f"{name} is by role, and spaces(p) is not: return {{role: (observation space, action space)}} there, or give "
                "one function for all agents, which reads s.role[i]."
            )


def _require_roles(subject: str, declared: Mapping[str, Any], roles: Mapping[str, int], all_roles: bool = True) -> None:
    """Raises AuthoringError unless the keys of `declared` are the roles, or some of them."""
    for role in declared:
        if role not in roles:
            raise AuthoringError(f"{subject} has {role!r}, which is no role: roles(p) has {_names(roles)}.")
    for role in roles:
        if all_roles and role not in declared:
            raise AuthoringError(f"{subject} has nothing for role {role!r}: it must have {_names(roles)}.")


def _names(mapping: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, mapping))


def role_of_agent(roles: Mapping[str, int], agent: int) -> tuple[str, int]:
    """Returns the role of an agent, and its index within the role.

    Args:
        roles: {role: number of agents}, whose agents are consecutive.
        agent: the index among all agents.
    """
    for role, count in roles.items():
        if agent < count:
            return role, agent
        agent -= count
    raise IndexError("there are fewer agents")


def author_function_of(functions: Any, roles: Mapping[str, int], agent: int) -> tuple[Any, int]:
    """Returns the author's function for an agent, or None, and the index that it receives.

    Args:
        functions: one function of all agents, a `ByRole`, or None.
        roles: {role: number of agents}.
        agent: the index among all agents.
    """
    if not isinstance(functions, ByRole):
        return functions, agent
    role, index = role_of_agent(roles, agent)
    return functions.of(role), index


def function_of_agents(functions: Any, name: str, roles: Mapping[str, int], array_ops: ArrayOps) -> Any:
    """Compiles functions by role as one function of all agents, which calls that of the agent's role.

    Args:
        functions: a `ByRole`; any other value is returned as it is.
        name: "reward", "terminated" or "active".
        roles: {role: number of agents}.
        array_ops: the operations on arrays, of which it uses `assume_nonnegative`.
    """
    if not isinstance(functions, ByRole):
        return functions
    source, first = f"def {name}(i, {AGENT_FUNCTIONS[name]}):\n", 0
    scope: dict[str, Any] = {"assume_nonnegative": array_ops.assume_nonnegative}
    for number, (role, count) in enumerate(roles.items()):
        function, call = functions.of(role), "True"
        if function is not None:
            scope[f"function_{number}"] = device_function(function)
            call = f"function_{number}(assume_nonnegative(i - {first}), {AGENT_FUNCTIONS[name]})"
        first += count
        source += f"    if i < {first}:\n        return {call}\n" if first < sum(roles.values()) else f"    return {call}\n"
    return inline_function(generate_function(name, source, **scope))
