"""The schema of an environment: the fields, sizes and types that follow from its declaration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.functions import author_function, generate_function
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import SCALARS, Buffer
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.observations import NearestNeighbors, Observation
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign
from gpuvec.spec import Bools, Floats, Int8s, Ints, MultiAgentEnv, SingleAgentEnv, UInt8s

# The layout of observations and actions in memory, from their spaces.


IMAGE_AXES = 3  # (C, H, W)
MAX_TUPLE_COMPONENTS = 16  # of an action that many agents' functions receive as a tuple


class ActionLayout(NamedTuple):
    """The layout of an agent's action.

    Attributes:
        components: K; 0 for a scalar.
        discrete: whether components are integers.
    """

    components: int
    discrete: bool

    @property
    def dtype(self) -> DType:
        """The type of a component as an argument of the author's functions: int32 or float32."""
        return np.int32 if self.discrete else np.float32

    @property
    def is_long(self) -> bool:
        """Whether functions of a multi-agent environment receive an action as an array, since a tuple would fill registers."""
        return self.components > MAX_TUPLE_COMPONENTS

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one agent's action, (K,) or ()."""
        return (self.components,) if self.components else ()


class ObservationLayout(NamedTuple):
    """The layout of an agent's observation.

    Attributes:
        shape: (D,) or, for an image, (C, H, W).
        dtype: float32, or uint8 for an image.
    """

    shape: tuple[int, ...]
    dtype: DType = np.float32

    @property
    def is_image(self) -> bool:
        """Whether observations are images."""
        return len(self.shape) == IMAGE_AXES

    @property
    def pixels_per_word(self) -> int:
        """The number of neighboring pixels of a channel that are stored at once: 4 or 2 of uint8, if they divide a channel."""
        if not self.is_image or self.dtype is not np.uint8:
            return 1
        return next(k for k in (4, 2, 1) if math.prod(self.shape[1:]) % k == 0)

    @property
    def num_features(self) -> int:
        """The number of elements, D or C * H * W."""
        return math.prod(self.shape)


def make_observation_layout(observation: gym.Space[Any]) -> ObservationLayout:
    """Returns the layout of the observations of the space `observation`.

    Raises:
        AuthoringError: the space is not a Box of shape (D,) and dtype float32, or (C, H, W) and dtype uint8 or float32.
    """
    if isinstance(observation, gym.spaces.Box):
        dtypes: dict[int, tuple[DType, ...]] = {1: (np.float32,), IMAGE_AXES: (np.uint8, np.float32)}
        for dtype in dtypes.get(len(observation.shape), ()):
            if observation.dtype == dtype:
                return ObservationLayout(observation.shape, dtype)
    raise AuthoringError(
        f"the observation space is {observation}; it must be a Box of shape (D,) and dtype float32, or for images a Box of "
        "shape (channels, height, width) and dtype uint8 or float32."
    )


def mask_size(space: gym.Space[Any]) -> int:
    """Returns N, the number of elements of an action mask for the action `space` of one agent.

    Raises:
        AuthoringError: the space is a Box, whose actions cannot be masked.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise AuthoringError(f"the action space is {space}; allowed(...) is for Discrete and MultiDiscrete actions: remove it.")


def make_action_layout(space: gym.Space[Any]) -> ActionLayout:
    """Returns the layout of the actions of `space`.

    Raises:
        AuthoringError: the space is not Discrete, MultiDiscrete of shape (K,) or Box of shape (K,), or is beyond int32.
    """
    limits = np.iinfo(np.int32)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        counts = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        pairs = [(int(first), int(count)) for first, count in zip(np.ravel(space.start), np.ravel(counts), strict=True)]
        if any(first < limits.min or first + count - 1 > limits.max for first, count in pairs):
            raise AuthoringError(
                f"the action space is {space}; its actions must be int32, from {limits.min} to {limits.max}: use a smaller one."
            )
    if isinstance(space, gym.spaces.Discrete):
        return ActionLayout(0, True)
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.Box) and len(space.shape) == 1:
        return ActionLayout(space.shape[0], isinstance(space, gym.spaces.MultiDiscrete))
    raise AuthoringError(f"the action space is {space}; it must be Discrete, MultiDiscrete of shape (K,) or Box of shape (K,).")


# The index sets of an environment with many agents, and the fields of a state that belong to them.


ARRAYS: dict[Any, DType] = {Floats: np.float32, Ints: np.int32, Bools: np.bool_, Int8s: np.int8, UInt8s: np.uint8}
IndexSets = dict[str, tuple[int, ...]]  # {name: shape}
MAX_ELEMENTS = 1 << 31  # of a field in one env: an index of an element is an int32


def make_index_sets(env: MultiAgentEnv, num_agents: int, roles: Mapping[str, int]) -> IndexSets:
    """Returns {name: shape} of the sets of an environment: those that always exist, and those of its function `sets`.

    Args:
        env: the environment.
        num_agents: A.
        roles: {role: number of agents} of the roles that are sets.

    Raises:
        AuthoringError: a set with the name of another one, or a size that is no number of at least 1.
    """
    sets: IndexSets = {WORLD: (), AGENTS: (num_agents,), PAIRS: (num_agents, num_agents)}
    for role, count in roles.items():
        if role in sets:
            raise AuthoringError(f"roles(p) has {role!r}, the name of a set that every environment has: choose another name.")
        sets[role] = (count,)
    declared = env.sets(env.params) if env.sets is not None else {}
    if not isinstance(declared, Mapping):
        raise AuthoringError(f"sets(p) returned {declared!r}; it must return a dict, {{name: size or (rows, columns)}}.")
    for name, size in declared.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise AuthoringError(f"sets(p) has {name!r}; the name of a set must be an identifier of Python, such as 'cells'.")
        if name in env.state._fields:
            raise AuthoringError(f"sets(p) has {name!r}, the name of a field of the state: choose another name.")
        if name in sets:
            owner = "of a role" if name in roles else "that every environment has"
            raise AuthoringError(f"sets(p) has {name!r}, a set {owner}: choose another name.")
        shape = size if isinstance(size, tuple) else (size,)
        if not shape or not all(_is_size(n) for n in shape):
            raise AuthoringError(
                f"sets(p) gives {name!r} the size {size!r}; it must be an integer of at least 1, or a tuple of them."
            )
        if math.prod(shape) >= MAX_ELEMENTS:
            raise OutOfMemoryError(
                f"the set {name!r} has {math.prod(shape):,} elements; at most {MAX_ELEMENTS - 1:,} are allowed."
            )
        sets[name] = tuple(int(n) for n in shape)
    return sets


def set_number(sets: IndexSets, index_set: str) -> int:
    """Returns the number of a set, on which its random numbers depend: 0 for the agents.

    Args:
        sets: {name: shape} of all sets.
        index_set: the name of the set.
    """
    return 0 if index_set == AGENTS else 1 + [name for name in sets if name != AGENTS].index(index_set)


def make_array_field(env: MultiAgentEnv, sets: IndexSets, name: str, hint: Any) -> tuple[str, Buffer]:
    """Returns the set that field `name` of the state belongs to, and its buffer: the shape of the set and of an element.

    Args:
        env: the environment.
        sets: its index sets.
        name: the name of the field.
        hint: its annotation, such as `Floats` or `Annotated[Ints, "cells", 4]`.

    Raises:
        AuthoringError: a type, a set or a size that does not exist.
    """
    arguments: list[Any] = [AGENTS]
    if get_origin(hint) is Annotated:
        hint, *arguments = (argument for argument in get_args(hint) if argument is not NearestNeighbors)
    if hint not in ARRAYS:
        raise AuthoringError(
            f"field {name!r} is a {hint}; it must be Floats, Ints, Bools, Int8s or UInt8s, or float, int or bool for the world."
        )
    if not arguments or arguments[0] not in sets:
        declared_set = repr(arguments[0]) if arguments else "nothing"
        raise AuthoringError(
            f"field {name!r} belongs to {declared_set}; the first argument of Annotated is the set that it belongs to: "
            f"{', '.join(map(repr, sets))}. Sizes follow it, as in Annotated[Floats, 'agents', 'num_rays']."
        )
    shape = sets[arguments[0]]
    for size in arguments[1:]:
        value: Any = getattr(env.params, size, None) if isinstance(size, str) and size in env.params._fields else size
        if not _is_size(value):
            raise AuthoringError(
                f"field {name!r} has the size {size!r}; a size is an integer of at least 1, or the name of an int parameter of "
                f"at least 1: {', '.join(k for k, v in env.params._asdict().items() if _is_size(v)) or 'there is none'}."
            )
        shape += (int(value),)
    if not shape:
        raise AuthoringError(f"field {name!r} is one number of the world: declare it as float, int or bool.")
    if math.prod(shape) >= MAX_ELEMENTS:
        raise OutOfMemoryError(
            f"field {name!r} has shape {shape}, {math.prod(shape):,} elements in each environment: make it smaller."
        )
    return arguments[0], Buffer(ARRAYS[hint], shape)


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


# A `SingleAgentEnv` with arrays in its state, or with images, in the form of a `MultiAgentEnv` with one agent.
#
# Threads of a block share the arrays of an env and the pixels of an image, as they share the agents of a multi-agent
# environment. The scalars of the state are scalars of the world. One thread of each env calls the author's `step`, which writes
# the arrays in place and returns the scalars.


STEP_RESULTS = ("step_reward", "step_terminated")  # scalars that hold the results of a step until the engine stores them


@lru_cache(maxsize=64)
def as_multi_agent(env: SingleAgentEnv) -> MultiAgentEnv:
    """Returns the environment in the form of a `MultiAgentEnv` with one agent.

    Args:
        env: the environment.
    """
    hints = get_type_hints(env.state, include_extras=True)
    names, scalars = env.state._fields, tuple(name for name in env.state._fields if hints[name] in SCALARS)
    fields = [*((name, hints[name]) for name in names), *zip(STEP_RESULTS, (float, bool), strict=True)]
    state_class: Any = NamedTuple("State", fields)  # type: ignore[misc]  # computed
    results, is_image = (*scalars, *STEP_RESULTS), make_observation_layout(env.spaces(env.params)[0]).is_image
    state = f"State({', '.join(f's.{name}' for name in names)})"
    new_scalars = "".join(f"new.{name}, " for name in scalars)
    reset_arguments = "key, p" if len(scalars) == len(names) else f"{state}, key, p"
    step_reward, step_terminated = STEP_RESULTS
    # {name: function} of the multi-agent form, which call the author's functions
    sources = {
        "reset": f"(s, key, p):\n    new = author_reset({reset_arguments})\n    return ({new_scalars}zero, False)\n",
        "step": f"(s, action, key, p):\n    new, reward, terminated = author_step({state}, action, key, p)\n"
        f"    return ({new_scalars}reward, terminated)\n",
        "reward": f"(i, s, t, p):\n    return s.{step_reward}\n",
        "terminated": f"(i, s, p):\n    return s.{step_terminated}\n",
        "pixel": f"(i, cell, s, t, p):\n    return author_observe(cell, {state}, p)\n",
        "allowed": f"(i, action, s, p):\n    return author_allowed(action, {state}, p)\n",
        "metrics": f"(s, p):\n    return author_metrics({state}, p)\n",
        "features": f"(i, s, t, p):\n    return author_observe({state}, p)\n",
    }
    scope = {"State": env.state, "author_reset": env.reset, "author_step": env.step, "author_observe": env.observe}
    scope |= {"author_allowed": env.allowed, "author_metrics": env.metrics, "zero": np.float32(0.0)}
    functions = {name: generate_function(name, f"def {name}{source}", **scope) for name, source in sources.items()}
    # The engine counts features in Python, where a CUDA C++ implementation of `observe` cannot be called.
    scope["author_observe"] = author_function(env.observe)
    functions["features"].author = generate_function("features", f"def features{sources['features']}", **scope)

    def observation(p: Any) -> Observation:
        return Observation(pixel=functions["pixel"]) if is_image else Observation(functions["features"])

    return MultiAgentEnv(
        state=state_class,
        params=env.params,
        spaces=env.spaces,
        agents=lambda p: 1,
        reset=(Assign(results, functions["reset"]),),
        phases=(Assign(results, functions["step"], has_action=True),),
        reward=functions["reward"],
        terminated=functions["terminated"],
        observation=observation,
        allowed=functions["allowed"] if env.allowed is not None else None,
        masked_components=env.masked_components,
        metrics=functions["metrics"] if env.metrics is not None else None,
        critic_observation=env.critic_observation,
        structural=env.structural,
        max_episode_steps=env.max_episode_steps,
        reset_options=env.reset_options,
        field_ranges=env.field_ranges,
    )


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
    def has_tile_rows(self) -> bool:
        """Whether rows can be assembled in shared memory: not those of roles, of images, or with blocks."""
        return not self.role_schemas and not self.obs.is_image and not self.observation.blocks

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


def default_action_dtype(schema: EnvSchema, integer_dtype: DType = np.int32) -> DType:
    """Returns the dtype of actions: integers or float32, or a tuple of those of each role if spaces are by role.

    Args:
        schema: the schema of the environment.
        integer_dtype: the dtype of integers: that of the user's framework, or that which the author's functions receive.
    """
    if isinstance(schema, MultiAgentSchema) and schema.role_schemas:
        return tuple(integer_dtype if part.action.discrete else np.float32 for part in schema.parts)
    return integer_dtype if schema.action.discrete else np.float32
