"""Derives the schema of an environment from its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import numpy as np

from gpuvec.engine.layout.buffers import SCALARS, Buffer
from gpuvec.engine.layout.function_checks import (
    acting_sets_of,
    check_multi_agent_functions,
    check_observation_functions,
    check_single_agent_functions,
    with_line_of,
)
from gpuvec.engine.layout.index_sets import make_array_field, make_index_sets
from gpuvec.engine.layout.masked_components import masked_components
from gpuvec.engine.layout.metric_kinds import metric_kinds
from gpuvec.engine.layout.observation_checks import check_observation, check_search
from gpuvec.engine.layout.one_agent import as_multi_agent, needs_block
from gpuvec.engine.layout.reduction_fields import check_reductions
from gpuvec.engine.layout.role_functions import check_roles, refuse_functions_by_role
from gpuvec.engine.layout.schema import ENGINE_FIELDS, EnvSchema, MultiAgentSchema, SingleAgentSchema
from gpuvec.engine.layout.space_layout import (
    MAX_TUPLE_COMPONENTS,
    make_action_layout,
    make_observation_layout,
    mask_size,
)
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.observations import NearestNeighbors, Observation
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv

# The largest number of agents of an environment: every index of an agent is exact as a float32.
MAX_AGENTS = 1 << 24


def make_schema(env: Environment) -> EnvSchema:
    """Derives the schema of `env` from its declaration.

    Raises:
        AuthoringError: a field, a space or a number of agents that kernels do not support.
    """
    metrics = metric_kinds(env)
    if isinstance(env, MultiAgentEnv):
        schema = _multi_agent_schema(env)
        acting_sets = acting_sets_of(schema.role_schemas)
        check_multi_agent_functions(env, schema.sets, schema.scalar_fields, acting_sets)
        for part in schema.parts:
            check_observation_functions(part.observation, schema.sets)
        return schema._replace(metrics=metrics, has_turns=env.to_move is not None)
    with with_line_of(env.spaces):
        observation_space, _ = _spaces(env)
        obs = make_observation_layout(observation_space)
        check_single_agent_functions(env, obs.is_image)
        if needs_block(env, observation_space):
            return _multi_agent_schema(as_multi_agent(env))._replace(is_single_agent=True, metrics=metrics)
        return _single_agent_schema(env)


def _single_agent_schema(env: SingleAgentEnv) -> SingleAgentSchema:
    observation_space, action_space = _spaces(env)
    obs, action = make_observation_layout(observation_space), make_action_layout(action_space)
    hints = get_type_hints(env.state, include_extras=True)
    for name, hint in hints.items():
        if hint not in SCALARS:
            raise AuthoringError(f"{env.state.__module__}.State.{name} is a {hint}; a state field is float, int or bool.")
    float_fields = tuple(name for name, hint in hints.items() if hint is float)
    non_float_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint is not float}
    return SingleAgentSchema(float_fields, non_float_fields, obs, action)


def _multi_agent_schema(env: MultiAgentEnv) -> MultiAgentSchema:
    count, spaces = count_agents(env), _spaces(env)
    hints = get_type_hints(env.state, include_extras=True)
    roles = dict(env.roles(env.params)) if env.roles is not None else {}
    if roles and sum(roles.values()) != count:
        raise AuthoringError(f"roles(p) is {roles}, which sums up to {sum(roles.values())}; agents(p) is {count}.")
    by_role = isinstance(spaces, Mapping)
    if by_role:
        check_roles(env, roles, spaces)
    else:
        refuse_functions_by_role(env)
    with with_line_of(env.sets):
        sets = make_index_sets(env, count, roles if by_role else {})
    fields = {name: make_array_field(env, sets, name, hint) for name, hint in hints.items() if hint not in SCALARS}
    array_fields, field_sets = {k: f.buffer for k, f in fields.items()}, {k: f.index_set for k, f in fields.items()}
    scalar_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint in SCALARS}
    search_fields = tuple(name for name, hint in hints.items() if NearestNeighbors in get_args(hint))
    undefined: Any = None
    schema = MultiAgentSchema(
        sets, array_fields, field_sets, scalar_fields, undefined, undefined, count, undefined, roles, search_fields
    )  # fmt: skip
    _check_engine_fields(schema, by_role)
    if by_role:
        schema = schema._replace(role_schemas=_make_role_schemas(env, schema, spaces))
    else:
        with with_line_of(env.spaces):
            components = masked_components(env, spaces[1])
            schema = _with_spaces(schema, spaces, env.observation(env.params), components)
    if schema.search is not None:
        check_search(schema.search, search_fields, array_fields, count)
    writable = {k: b for k, b in array_fields.items() if k not in (*search_fields, *ENGINE_FIELDS)}
    check_reductions(env, schema.neighbors, sets, writable, field_sets, scalar_fields)
    return schema


def _check_engine_fields(schema: MultiAgentSchema, by_role: bool) -> None:
    """Raises AuthoringError unless the state has the fields of the engine exactly if it needs them."""
    arrays, roles, count = schema.array_fields, schema.roles, schema.num_agents
    for name in ENGINE_FIELDS:
        if by_role and name in arrays:
            raise AuthoringError(
                f"spaces(p) is by role, so roles are fixed, and the state has no field {name!r}: remove it. Functions by role "
                "and phases each(role, ...) know the role of an agent."
            )
        if not by_role and ((name in arrays) != bool(roles) or (roles and arrays[name] != Buffer(np.int32, (count,)))):
            raise AuthoringError(
                f"a state has Ints fields {' and '.join(ENGINE_FIELDS)} if and only if the environment has roles(p); "
                "here one is there without the other."
            )


def _with_spaces(
    schema: MultiAgentSchema, spaces: Any, observation: Any, components: tuple[int, ...] | None
) -> MultiAgentSchema:
    """The schema of agents with these spaces, this observation, and masks for these components."""
    if not isinstance(observation, Observation):
        raise AuthoringError(
            f"observation(p) returned a {type(observation).__name__}; it must return one Observation(...) for all agents, "
            "whose functions may do other things for other roles: `if s.role[i] == TAGGER`; or spaces(p) must be by role, too."
        )
    obs, action = make_observation_layout(spaces[0]), make_action_layout(spaces[1])
    check_observation(observation, obs)
    size = 0 if components == () else mask_size(spaces[1])
    return schema._replace(
        obs=obs, action=action, action_space=spaces[1], observation=observation, mask_size=size, masked_components=components
    )


def _make_role_schemas(env: MultiAgentEnv, schema: MultiAgentSchema, spaces: Any) -> dict[str, MultiAgentSchema]:
    """{role: its schema}."""
    role_schemas: dict[str, MultiAgentSchema] = {}
    observations, first, neighbors = env.observation(env.params), 0, None
    for number, (role, count) in enumerate(schema.roles.items()):
        components = masked_components(env, spaces[role][1], role)
        part = _with_spaces(schema, spaces[role], observations[role], components)
        if part.action.is_long:
            raise AuthoringError(
                f"the actions of role {role!r} have {part.action.components} components; with spaces by role an action has at "
                f"most {MAX_TUPLE_COMPONENTS}."
            )
        neighbors = neighbors if part.observation.neighbors is None else part.observation.neighbors
        if part.observation.neighbors not in (None, neighbors):
            raise AuthoringError("observation(p) has different `neighbors` for its roles: use one search or reduction for all.")
        role_schemas[role] = part._replace(role=role, suffix=f"_{number}", num_agents=count, first_agent=first)
        first += count
    return role_schemas


def _spaces(env: Environment) -> Any:
    """Returns (observation space, action space) of one agent, or {role: such a pair}."""
    try:
        spaces: Any = env.spaces(env.params)
    except MemoryError as error:
        raise OutOfMemoryError(f"the spaces of {env.params} do not fit into this machine's memory: make it smaller.") from error
    if isinstance(env, MultiAgentEnv) and isinstance(spaces, Mapping):
        return spaces
    if not isinstance(spaces, tuple) or len(spaces) != 2:
        raise AuthoringError(
            f"spaces(p) returned {spaces}; it must return two spaces, (observation, action), or with many agents a dict of "
            "them by role."
        )
    return spaces


def check_fits_memory(env: Environment) -> None:
    """Raises an error if `env` is too large for the machine, before anything else is computed from its parameters.

    Raises:
        AuthoringError: `agents(p)` is not a number, or `spaces(p)` is not two spaces.
        OutOfMemoryError: there are more agents than an environment can have, or the spaces do not fit into memory.
    """
    if isinstance(env, MultiAgentEnv):
        count_agents(env)
    _spaces(env)


def count_agents(env: MultiAgentEnv) -> int:
    """Returns the number of agents A of `env`. Of the author's functions, only `agents` is called.

    Raises:
        AuthoringError: `agents(p)` is not a number.
        OutOfMemoryError: there are more agents than an environment can have.
    """
    count = env.agents(env.params)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise AuthoringError(f"agents(p) is {count!r}; it must be an integer of at least 1.")
    # This comes before `spaces` and `tables`, which allocate memory for each agent.
    if count > MAX_AGENTS:
        raise OutOfMemoryError(f"agents(p) is {count}; an environment holds at most {MAX_AGENTS} agents: use fewer.")
    return int(count)
