"""What follows from an environment's declaration: its fields, widths and types, and the buffers that its kernels take."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import (
    SCALARS,
    Buffer,
    KernelOptions,
    Layout,
    bookkeeping_buffers,
    input_buffers,
    pool_buffers,
)
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.space_layout import ActionLayout, make_action_layout, observation_features
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.spec import Bools, Environment, Floats, Ints, MultiAgentEnv, NearestNeighbors, Observation, SingleAgentEnv, Time

ARRAYS: dict[Any, DType] = {Floats: np.float32, Ints: np.int32, Bools: np.bool_}
PACKED_BUFFERS = {np.float32: "floats", np.int32: "ints", np.bool_: "bools"}  # {dtype: buffer} of `packed_fields`
MAX_AGENTS = 1 << 24  # agents of one environment: each index is exact as a float32
ENGINE_FIELDS = ("role", "agents_by_role")  # fields that the engine writes


class SingleAgentSchema(NamedTuple):
    """What the kernels of a `SingleAgentEnv` need to know."""

    float_fields: tuple[str, ...]
    non_float_fields: dict[str, DType]  # int and bool fields and their dtypes, one buffer each
    num_features: int  # D
    action: ActionLayout

    @property
    def agents_shape(self) -> tuple[int, ...]:
        """The shape of what there is one of for each agent: ()."""
        return ()

    @property
    def num_agents(self) -> int:
        """The number of agents: 1."""
        return 1

    @property
    def packed_fields(self) -> dict[str, tuple[str, ...]]:
        """{buffer: fields} of the fields that share a buffer: all floats of an env are stored side by side."""
        return {"state": self.float_fields} if self.float_fields else {}

    @property
    def fields(self) -> dict[str, Buffer]:
        """{field: buffer} of the state as users see it."""
        return {k: Buffer(np.float32) for k in self.float_fields} | {k: Buffer(t) for k, t in self.non_float_fields.items()}


class MultiAgentSchema(NamedTuple):
    """What the kernels of a `MultiAgentEnv` need to know."""

    array_fields: dict[str, Buffer]  # fields of the state with elements for each agent
    scalar_fields: dict[str, DType]  # fields with one value for the env, and their dtypes
    num_features: int  # D
    action: ActionLayout
    num_agents: int  # A
    observation: Observation
    roles: dict[str, int]  # {name: number of agents}
    search_fields: tuple[str, ...]  # fields that a neighbor search fills

    @property
    def agents_shape(self) -> tuple[int]:
        """The shape of what there is one of for each agent: (A,)."""
        return (self.num_agents,)

    @property
    def packed_fields(self) -> dict[str, tuple[str, ...]]:
        """{buffer: fields} of the fields that share a buffer: those with one element for each agent, one buffer for each type.

        The fields of an env are stored side by side, so that a kernel computes one address for all fields of an agent.
        """
        plain = {k: b.dtype for k, b in self.array_fields.items() if b.shape == self.agents_shape}
        packed = {name: tuple(k for k, dtype in plain.items() if dtype is t) for t, name in PACKED_BUFFERS.items()}
        return {name: fields for name, fields in packed.items() if fields}

    @property
    def search(self) -> NearestNeighbors | None:
        """The neighbor search before each observation, if there is one."""
        return self.observation.neighbors if isinstance(self.observation.neighbors, NearestNeighbors) else None

    @property
    def has_only_self_features(self) -> bool:
        """Whether an observation is an agent's own features and nothing else."""
        return self.observation.other_features is None or self.observation.max_neighbors == 0

    @property
    def fields(self) -> dict[str, Buffer]:
        """{field: buffer} of the state as users see it."""
        arrays = {k: b for k, b in self.array_fields.items() if k not in self.search_fields and k != "agents_by_role"}
        return arrays | {k: Buffer(dtype) for k, dtype in self.scalar_fields.items()}


EnvSchema: TypeAlias = SingleAgentSchema | MultiAgentSchema


def make_schema(env: Environment) -> EnvSchema:
    """Derives what the kernels of `env` need to know.

    Raises:
        AuthoringError: a field, a space or a number of agents of a kind that kernels cannot hold.
    """
    return _single_agent_schema(env) if isinstance(env, SingleAgentEnv) else _multi_agent_schema(env)


def _single_agent_schema(env: SingleAgentEnv) -> SingleAgentSchema:
    observation_space, action_space = _spaces(env)
    num_features, action = observation_features(observation_space), make_action_layout(action_space)
    hints = get_type_hints(env.state, include_extras=True)
    for name, hint in hints.items():
        if hint not in SCALARS:
            raise AuthoringError(f"{env.state.__module__}.State.{name} is a {hint}; a state field is float, int or bool.")
    float_fields = tuple(name for name, hint in hints.items() if hint is float)
    non_float_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint is not float}
    return SingleAgentSchema(float_fields, non_float_fields, num_features, action)


def _multi_agent_schema(env: MultiAgentEnv) -> MultiAgentSchema:
    count = count_agents(env)
    observation_space, action_space = _spaces(env)
    num_features, action = observation_features(observation_space), make_action_layout(action_space)
    hints = get_type_hints(env.state, include_extras=True)
    array_fields = {name: _array(env, name, hint, count) for name, hint in hints.items() if hint not in SCALARS}
    scalar_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint in SCALARS}
    roles = dict(env.roles(env.params)) if env.roles is not None else {}
    if roles and sum(roles.values()) != count:
        raise AuthoringError(f"roles(p) is {roles}, which sums up to {sum(roles.values())}; agents(p) is {count}.")
    for name in ENGINE_FIELDS:
        if (name in array_fields) != bool(roles) or (roles and array_fields[name] != Buffer(np.int32, (count,))):
            raise AuthoringError(
                f"a state with Ints fields {' and '.join(ENGINE_FIELDS)} goes with roles(p); one is there without the other."
            )
    for name, dtype in scalar_fields.items():
        if dtype is np.float32:
            raise AuthoringError(
                f"field {name!r} of State is a float for the env, which nothing can write: reductions set ints "
                "and bools. Use Floats, with an element for each agent, or a parameter."
            )
    observation = env.observation(env.params)
    if not isinstance(observation, Observation):
        raise AuthoringError(
            f"observation(p) returned a {type(observation).__name__}; it must return one Observation(...) for all agents: its "
            "functions may do other things for other roles: `if s.role[i] == TAGGER`."
        )
    search_fields = tuple(name for name, hint in hints.items() if NearestNeighbors in get_args(hint))
    schema = MultiAgentSchema(array_fields, scalar_fields, num_features, action, count, observation, roles, search_fields)
    if schema.search is not None:
        _check_search(schema.search, search_fields, array_fields, count)
    return schema


def _check_search(search: NearestNeighbors, search_fields: tuple[str, ...], arrays: dict[str, Buffer], agents: int) -> None:
    """Raises AuthoringError unless the fields that `search` names are of the kinds that it needs."""
    if search.field not in search_fields or arrays[search.field].dtype != np.int32:
        raise AuthoringError(
            f"the search fills {search.field!r}, which must be an Annotated[Ints, 'parameter', NearestNeighbors] field."
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
    """(observation, action): the spaces of one agent."""
    try:
        spaces: Any = env.spaces(env.params)
    except MemoryError as error:
        raise OutOfMemoryError(f"the spaces of {env.params} do not fit into this machine's memory: make it smaller.") from error
    if not isinstance(spaces, tuple) or len(spaces) != 2:
        raise AuthoringError(f"spaces(p) returned {spaces}; it must return two spaces, (observation, action).")
    return spaces


def check_fits_memory(env: Environment) -> None:
    """Refuses an environment `env` that is too large for the machine, before anything else is made of its parameters.

    Raises:
        AuthoringError: `agents(p)` gives no number, or `spaces(p)` no two spaces.
        OutOfMemoryError: it gives more agents than an environment can hold, or spaces that do not fit into memory.
    """
    if isinstance(env, MultiAgentEnv):
        count_agents(env)
    _spaces(env)


def count_agents(env: MultiAgentEnv) -> int:
    """The number of agents A of `env`, for which only its `agents` function is called.

    Raises:
        AuthoringError: `agents(p)` gives no number.
        OutOfMemoryError: it gives more agents than an environment can hold.
    """
    count = env.agents(env.params)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise AuthoringError(f"agents(p) is {count!r}; it must be an integer of at least 1.")
    if count > MAX_AGENTS:  # before `spaces` and `tables` allocate what a machine cannot hold
        raise OutOfMemoryError(f"agents(p) is {count}; an environment holds at most {MAX_AGENTS} agents: use fewer.")
    return int(count)


def _array(env: MultiAgentEnv, name: str, hint: Any, count: int) -> Buffer:
    """The buffer of a field with elements for each agent."""
    shape: tuple[int, ...] = (count,)
    if get_origin(hint) is Annotated:
        hint, parameter, *others = get_args(hint)
        others = [other for other in others if other is not NearestNeighbors]
        if others:
            raise AuthoringError(
                f"field {name!r} has {others[0]!r} besides {parameter!r}; a field has one number of elements for each agent: "
                "name a parameter with the product, and write s.field[i, row * columns + column]."
            )
        if parameter not in env.params._fields:
            raise AuthoringError(f"field {name!r} has {parameter!r} elements for each agent, which is no parameter.")
        shape += (int(getattr(env.params, parameter)),)
    if hint not in ARRAYS:
        raise AuthoringError(f"field {name!r} is a {hint}; it must be Floats, Ints or Bools, or int or bool for the env.")
    return Buffer(ARRAYS[hint], shape)


def make_layout(env: Environment, options: KernelOptions, split: bool = False) -> Layout:
    """Lists the buffers that kernels need.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        split: whether a step is two or three kernels, the last of which writes the observations.
    """
    schema = make_schema(env)
    layout = (
        _single_agent_layout(schema) if isinstance(schema, SingleAgentSchema) else _multi_agent_layout(schema, options, split)
    )
    outputs = layout.outputs
    if options.autoreset is AutoresetMode.SAME_STEP:
        outputs = outputs | {"final_obs": outputs["obs"], "final_mask": Buffer(np.bool_)}
    return layout._replace(
        persistent=layout.persistent | bookkeeping_buffers(options, env.params),
        pool=pool_buffers({name: schema.fields[name] for name in options.pool}),
        inputs=input_buffers((*schema.agents_shape, *schema.action.shape), schema.action.discrete),
        outputs=outputs,
    )


def _single_agent_layout(schema: SingleAgentSchema) -> Layout:
    """The buffers of the state and of a step's outputs."""
    floats = len(schema.float_fields)
    persistent = {"state": Buffer(np.float32, (floats,), wide=True)} if floats else {}
    persistent |= {f"state_{k}": Buffer(dtype) for k, dtype in schema.non_float_fields.items()}
    obs = Buffer(np.float32, (schema.num_features,), wide=True)
    outputs = {"obs": obs, "reward": Buffer(np.float32), "terminated": Buffer(np.bool_), "truncated": Buffer(np.bool_)}
    return Layout(persistent, {}, {}, {}, outputs)


def _multi_agent_layout(schema: MultiAgentSchema, options: KernelOptions, split: bool) -> Layout:
    """The buffers of the state, of what one kernel leaves for the next, and of a step's outputs."""
    arrays, shape = schema.array_fields, schema.agents_shape
    packed = {name: Buffer(arrays[k[0]].dtype, (len(k), *shape)) for name, k in schema.packed_fields.items()}
    separate = {k: b for k, b in arrays.items() if not any(k in names for names in schema.packed_fields.values())}
    scalars = {k: Buffer(dtype) for k, dtype in schema.scalar_fields.items()}
    persistent = packed | {f"state_{k}": b for k, b in separate.items() if k not in schema.search_fields}
    persistent |= {f"state_{k}": b for k, b in scalars.items()}
    persistent["last_time"] = Buffer(np.int32)  # steps of the last episode, while it awaits its reset
    scratch = {f"state_{k}": arrays[k] for k in schema.search_fields}
    if options.autoreset is AutoresetMode.SAME_STEP and split:
        scratch |= {f"final_{k}": b for k, b in (packed | separate).items()} | {f"final_{k}": b for k, b in scalars.items()}
    if options.reward != "agents":
        scratch["agent_reward"] = Buffer(np.float32, shape)
    outputs = {
        "obs": Buffer(np.float32, (*shape, schema.num_features), wide=schema.has_only_self_features),
        "reward": Buffer(np.float32, shape if options.reward == "agents" else ()),
        "terminated": Buffer(np.bool_),
        "truncated": Buffer(np.bool_),
        "agent_mask": Buffer(np.bool_, shape),
        "agent_terminated": Buffer(np.bool_, shape),
    }
    return Layout(persistent, scratch, {}, {}, outputs)


def feature_widths(env: MultiAgentEnv, schema: MultiAgentSchema) -> tuple[int, int]:
    """The numbers of features that `other_features` and `self_features` of `env` return, found by calling them as Python.

    Args:
        env: the environment.
        schema: what follows from its declaration.

    Raises:
        AuthoringError: they do not make up a row of D numbers.
    """
    p, observation = kernel_params(env), schema.observation
    zeros = {k: np.zeros(b.shape, b.dtype) for k, b in schema.array_fields.items()}
    s = env.state(**{k: zeros[k] if k in zeros else schema.scalar_fields[k](0) for k in env.state._fields})
    others = 0
    with np.errstate(all="ignore"):
        own = len(author_function(observation.self_features)(0, s, Time(0, 1), p))
        if observation.other_features is not None and observation.max_neighbors:
            others = len(author_function(observation.other_features)(0, 0, s, Time(0, 1), p))
    if others * observation.max_neighbors + own != schema.num_features:
        raise AuthoringError(
            f"an observation has {observation.max_neighbors} neighbors of {others} features and {own} own features, "
            f"{others * observation.max_neighbors + own} numbers; the observation space says {schema.num_features}."
        )
    return others, own
