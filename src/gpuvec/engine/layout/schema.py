"""The schema of an environment: the fields, sizes and types that follow from its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import SCALARS, Buffer
from gpuvec.engine.layout.index_sets import IndexSets, make_array_field, make_index_sets
from gpuvec.engine.layout.metric_kinds import metric_kinds
from gpuvec.engine.layout.one_agent import STEP_RESULTS, as_multi_agent, needs_block
from gpuvec.engine.layout.space_layout import (
    ActionLayout,
    ObservationLayout,
    make_action_layout,
    make_observation_layout,
    mask_size,
)
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.phases import AGENTS
from gpuvec.spec import Environment, MultiAgentEnv, NearestNeighbors, Observation, SingleAgentEnv

# {dtype: the buffer of `packed_fields`, and the array of staged elements}
PACKED_BUFFERS = {np.float32: "floats", np.int32: "ints", np.bool_: "bools", np.int8: "int8s", np.uint8: "uint8s"}
# The largest number of agents of an environment: every index of an agent is exact as a float32.
MAX_AGENTS = 1 << 24
ENGINE_FIELDS = ("role", "agents_by_role")  # fields that the engine writes


class SingleAgentSchema(NamedTuple):
    """The schema of a `SingleAgentEnv`.

    Attributes:
        float_fields: the names of the float fields of the state, which share a buffer.
        non_float_fields: {name: dtype} of the int and bool fields, which have a buffer each.
        obs: the layout of an observation.
        action: the layout of an action.
    """

    float_fields: tuple[str, ...]
    non_float_fields: dict[str, DType]
    obs: ObservationLayout
    action: ActionLayout

    @property
    def num_features(self) -> int:
        """The number of elements of an observation, D or C * H * W."""
        return self.obs.num_features

    @property
    def agents_shape(self) -> tuple[int, ...]:
        """The shape of a value for each agent of an env: ()."""
        return ()

    @property
    def num_agents(self) -> int:
        """The number of agents: 1."""
        return 1

    @property
    def packed_fields(self) -> dict[str, tuple[str, ...]]:
        """{buffer: fields} of the fields that share a buffer: all floats of an env are consecutive elements."""
        return {"state": self.float_fields} if self.float_fields else {}

    @property
    def fields(self) -> dict[str, Buffer]:
        """{field: buffer} of the state in the form in which `get_state` returns it."""
        return {k: Buffer(np.float32) for k in self.float_fields} | {k: Buffer(t) for k, t in self.non_float_fields.items()}


class MultiAgentSchema(NamedTuple):
    """The schema of a `MultiAgentEnv`.

    Attributes:
        sets: {name: shape} of the index sets.
        array_fields: {name: buffer} of the fields of the state with several elements.
        field_sets: {name of such a field: the set that it belongs to}.
        scalar_fields: {name: dtype} of the fields with one value for the world.
        obs: the layout of an agent's observation.
        action: the layout of an agent's action.
        num_agents: A.
        observation: what the author's function `observation` returned.
        roles: {name: number of agents}.
        search_fields: the fields that a neighbor search fills.
        mask_size: the number of elements of an agent's action mask; 0 without masks.
        metrics: {name: how it is combined over an episode}.
        has_turns: whether one agent may act while the others wait.
        is_single_agent: whether it is that of a `SingleAgentEnv`, whose arrays have no axis of agents.
    """

    sets: IndexSets
    array_fields: dict[str, Buffer]
    field_sets: dict[str, str]
    scalar_fields: dict[str, DType]
    obs: ObservationLayout
    action: ActionLayout
    num_agents: int
    observation: Observation
    roles: dict[str, int]
    search_fields: tuple[str, ...]
    mask_size: int = 0
    metrics: Mapping[str, str] = MappingProxyType({})
    has_turns: bool = False
    is_single_agent: bool = False

    @property
    def num_features(self) -> int:
        """The number of elements of an observation, D or C * H * W."""
        return self.obs.num_features

    @property
    def agents_shape(self) -> tuple[int, ...]:
        """The shape of a value for each agent of an env: (A,), or () for a `SingleAgentEnv`."""
        return () if self.is_single_agent else (self.num_agents,)

    @property
    def agent_fields(self) -> dict[str, Buffer]:
        """The array fields that belong to the agents."""
        return {k: b for k, b in self.array_fields.items() if self.field_sets[k] == AGENTS}

    @property
    def set_fields(self) -> dict[str, Buffer]:
        """The array fields that belong to other sets."""
        return {k: b for k, b in self.array_fields.items() if self.field_sets[k] != AGENTS}

    @property
    def packed_fields(self) -> dict[str, tuple[str, ...]]:
        """{buffer: fields} of the fields that share a buffer: those with one element for each agent, one buffer for each type.

        The fields of an env follow each other in the buffer, so that a kernel computes one address for all fields of an agent.
        """
        dtypes = {k: b.dtype for k, b in self.agent_fields.items() if b.shape == (self.num_agents,)}
        field_groups = {name: tuple(k for k, dtype in dtypes.items() if dtype is t) for t, name in PACKED_BUFFERS.items()}
        return {name: fields for name, fields in field_groups.items() if fields}

    @property
    def search(self) -> NearestNeighbors | None:
        """The neighbor search before each observation, if there is one."""
        return self.observation.neighbors if isinstance(self.observation.neighbors, NearestNeighbors) else None

    @property
    def has_only_self_features(self) -> bool:
        """Whether an observation is an agent's own features and nothing else."""
        return not self.observation.blocks and (self.observation.other_features is None or self.observation.max_neighbors == 0)

    @property
    def fields(self) -> dict[str, Buffer]:
        """{field: buffer} of the state in the form in which `get_state` returns it."""
        arrays = {k: b for k, b in self.array_fields.items() if k not in self.search_fields and k != "agents_by_role"}
        return arrays | {k: Buffer(dtype) for k, dtype in self.stored_scalars.items()}

    @property
    def stored_scalars(self) -> dict[str, DType]:
        """The scalar fields that belong to the state; a `SingleAgentEnv` has others during a step."""
        transient = STEP_RESULTS if self.is_single_agent else ()
        return {k: dtype for k, dtype in self.scalar_fields.items() if k not in transient}


EnvSchema: TypeAlias = SingleAgentSchema | MultiAgentSchema


def make_schema(env: Environment) -> EnvSchema:
    """Derives the schema of `env` from its declaration.

    Raises:
        AuthoringError: a field, a space or a number of agents that kernels do not support.
    """
    if isinstance(env, MultiAgentEnv):
        return _multi_agent_schema(env)._replace(metrics=metric_kinds(env), has_turns=env.to_move is not None)
    if needs_block(env, _spaces(env)[0]):
        schema = _multi_agent_schema(as_multi_agent(env))
        return schema._replace(is_single_agent=True, metrics=metric_kinds(env))
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
    count = count_agents(env)
    observation_space, action_space = _spaces(env)
    obs, action = make_observation_layout(observation_space), make_action_layout(action_space)
    hints = get_type_hints(env.state, include_extras=True)
    sets = make_index_sets(env, count)
    fields = {name: make_array_field(env, sets, name, hint) for name, hint in hints.items() if hint not in SCALARS}
    array_fields, field_sets = {k: f.buffer for k, f in fields.items()}, {k: f.index_set for k, f in fields.items()}
    scalar_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint in SCALARS}
    roles = dict(env.roles(env.params)) if env.roles is not None else {}
    if roles and sum(roles.values()) != count:
        raise AuthoringError(f"roles(p) is {roles}, which sums up to {sum(roles.values())}; agents(p) is {count}.")
    for name in ENGINE_FIELDS:
        if (name in array_fields) != bool(roles) or (roles and array_fields[name] != Buffer(np.int32, (count,))):
            raise AuthoringError(
                f"a state has Ints fields {' and '.join(ENGINE_FIELDS)} if and only if the environment has roles(p); "
                "here one is there without the other."
            )
    observation = env.observation(env.params)
    if not isinstance(observation, Observation):
        raise AuthoringError(
            f"observation(p) returned a {type(observation).__name__}; it must return one Observation(...) for all agents: its "
            "functions may do other things for other roles: `if s.role[i] == TAGGER`."
        )
    _check_observation(observation, obs)
    search_fields = tuple(name for name, hint in hints.items() if NearestNeighbors in get_args(hint))
    schema = MultiAgentSchema(
        sets, array_fields, field_sets, scalar_fields, obs, action, count, observation, roles, search_fields,
        mask_size(action_space) if env.allowed is not None else 0,
    )  # fmt: skip
    if schema.search is not None:
        _check_search(schema.search, search_fields, array_fields, count)
    return schema


def _check_observation(observation: Observation, obs: ObservationLayout) -> None:
    """Raises AuthoringError unless `observation` has functions for features, or for an image one for its pixels."""
    has_features = observation.self_features is not None or observation.other_features is not None
    if obs.is_image and (observation.pixel is None or has_features):
        raise AuthoringError(
            f"the observation space is an image of shape {obs.shape}; observation(p) must return Observation(pixel=...), "
            "without features."
        )
    if not obs.is_image and (observation.pixel is not None or observation.self_features is None):
        raise AuthoringError(
            f"the observation space has shape {obs.shape}; observation(p) must return Observation(self_features, ...), and "
            "pixel only for an image of shape (channels, height, width)."
        )


def _check_search(search: NearestNeighbors, search_fields: tuple[str, ...], arrays: dict[str, Buffer], agents: int) -> None:
    """Raises AuthoringError unless the fields that `search` names have the types that it needs."""
    if search.field not in search_fields or arrays[search.field].dtype != np.int32:
        raise AuthoringError(
            f"the search fills {search.field!r}, which must be a field of type Annotated[Ints, 'agents', 'parameter', "
            "NearestNeighbors]."
        )
    if isinstance(search.position, str):
        raise AuthoringError(
            f"the search has position={search.position!r}; it must be a tuple: position=({search.position!r},)."
        )
    if bool(search.position) != isinstance(search.squared, bool):
        raise AuthoringError(
            f"the search has position={search.position!r} and squared={search.squared!r}; give both: squared=True if the "
            "distance is not less than the squared difference in each field, squared=False if not less than the difference."
        )
    for name in search.position:
        if arrays.get(name) != Buffer(np.float32, (agents,)):
            fields = ", ".join(k for k, b in arrays.items() if b == Buffer(np.float32, (agents,)))
            raise AuthoringError(
                f"the search has {name!r} in its position; it must be a Floats field with one element for each agent: {fields}."
            )


def _spaces(env: Environment) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Returns (observation space, action space) of one agent."""
    try:
        spaces: Any = env.spaces(env.params)
    except MemoryError as error:
        raise OutOfMemoryError(f"the spaces of {env.params} do not fit into this machine's memory: make it smaller.") from error
    if not isinstance(spaces, tuple) or len(spaces) != 2:
        raise AuthoringError(f"spaces(p) returned {spaces}; it must return two spaces, (observation, action).")
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
