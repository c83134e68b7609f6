"""The schema of an environment: the fields, sizes and types that follow from its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.index_sets import IndexSets
from gpuvec.engine.layout.one_agent import STEP_RESULTS
from gpuvec.engine.layout.space_layout import (
    ActionLayout,
    ObservationLayout,
)
from gpuvec.observations import NearestNeighbors, Observation
from gpuvec.phases import AGENTS

# {dtype: the buffer of `packed_fields`, and the array of staged elements}
PACKED_BUFFERS = {np.float32: "floats", np.int32: "ints", np.bool_: "bools", np.int8: "int8s", np.uint8: "uint8s"}
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

    The schema of all agents has the attributes that follow from spaces and observation only if they are equal for all agents.
    If spaces are by role, it has a schema for each role instead, in which `num_agents` is that of the role.

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
        masked_components: the components of an action that have masks; None if all have one.
        metrics: {name: how it is combined over an episode}.
        has_turns: whether one agent may act while the others wait.
        is_single_agent: whether it is that of a `SingleAgentEnv`, whose arrays have no axis of agents.
        action_space: the action space of one agent.
        role_schemas: {role: its schema} if spaces are by role, else empty.
        role: the role whose schema it is; "" for the schema of all agents.
        suffix: the end of the names of the role's buffers, such as "_0"; "" for all agents.
        first_agent: the index of the role's first agent among all agents.
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
    masked_components: tuple[int, ...] | None = None
    metrics: Mapping[str, str] = MappingProxyType({})
    has_turns: bool = False
    is_single_agent: bool = False
    action_space: Any = None
    role_schemas: Mapping[str, MultiAgentSchema] = MappingProxyType({})
    role: str = ""
    suffix: str = ""
    first_agent: int = 0

    @property
    def parts(self) -> tuple[MultiAgentSchema, ...]:
        """The schemas of groups of agents with equal spaces: those of the roles, or this one."""
        return tuple(self.role_schemas.values()) or (self,)

    @property
    def has_role_field(self) -> bool:
        """Whether the state has the fields `role` and `agents_by_role`, as roles are not by consecutive agents."""
        return bool(self.roles) and not self.role_schemas and not self.role

    @property
    def neighbors(self) -> Any:
        """The search or the reduction before each observation, which all observations have in common; None without."""
        return next((part.observation.neighbors for part in self.parts if part.observation.neighbors is not None), None)

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
        return self.neighbors if isinstance(self.neighbors, NearestNeighbors) else None

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


def default_action_dtype(schema: EnvSchema) -> DType:
    """Returns the dtype of actions as author functions receive them; a tuple with that of each role if spaces are by role.

    Args:
        schema: the schema of the environment.
    """
    if isinstance(schema, MultiAgentSchema) and schema.role_schemas:
        return tuple(part.action.dtype for part in schema.parts)
    return schema.action.dtype


def sampled_action_dtype(schema: EnvSchema, integer_dtype: DType) -> DType:
    """Returns the dtype of actions that users sample: integers or float32, or a tuple of those of each role.

    Args:
        schema: the schema of the environment.
        integer_dtype: the dtype of integers in the user's framework.
    """
    if isinstance(schema, MultiAgentSchema) and schema.role_schemas:
        return tuple(integer_dtype if part.action.discrete else np.float32 for part in schema.parts)
    return integer_dtype if schema.action.discrete else np.float32
