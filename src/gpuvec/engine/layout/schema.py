"""What follows from an environment's declaration: widths, types, and the buffers that its kernels take."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.buffers import (
    SCALARS,
    ActionLayout,
    Buffer,
    KernelOptions,
    Layout,
    bookkeeping_buffers,
    input_buffers,
    make_action_layout,
    observation_features,
    pool_buffers,
)
from gpuvec.engine.layout.params import kernel_params
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.spec import Bools, Environment, Floats, Ints, MultiAgentEnv, NearestNeighbors, Observation, SingleAgentEnv, Time

ARRAYS: dict[Any, Any] = {Floats: np.float32, Ints: np.int32, Bools: np.bool_}
SHARED = {np.float32: "floats", np.int32: "ints", np.bool_: "bools"}  # names of buffers
MAX_AGENTS = 1 << 24  # agents of one environment: each one's number is exact as a float32
ENGINE_FIELDS = ("role", "agents_by_role")  # fields that the engine writes


class SingleAgentSchema(NamedTuple):
    """What the kernels of a `SingleAgentEnv` need to know."""

    floats: tuple[str, ...]  # float fields of the state, stored together as (E, len(floats))
    others: dict[str, Any]  # the other fields and their dtypes, one buffer each
    features: int  # D
    actions: ActionLayout
    agents: tuple[int, ...] = ()  # the shape of what there is one of for each agent

    @property
    def fields(self) -> dict[str, Buffer]:
        """What a user sees of the state."""
        return {k: Buffer(np.float32) for k in self.floats} | {k: Buffer(dtype) for k, dtype in self.others.items()}


class MultiAgentSchema(NamedTuple):
    """What the kernels of a `MultiAgentEnv` need to know."""

    arrays: dict[str, Buffer]  # fields of the state with elements for each agent
    scalars: dict[str, Any]  # fields that are one for the env, and their dtypes
    features: int  # D
    actions: ActionLayout
    agents: tuple[int]
    observation: Observation
    roles: dict[str, int]  # {name: number of agents}
    found: tuple[str, ...]  # fields for searches to fill

    @property
    def shared(self) -> dict[str, tuple[str, ...]]:
        """{buffer: fields}: those with one element for each agent lie side by side, env by env, in a buffer for each type: a
        kernel computes one address for all of an agent's fields.
        """
        plain = {k: b.dtype for k, b in self.arrays.items() if b.shape == self.agents}
        return {name: found for t, name in SHARED.items() if (found := tuple(k for k, d in plain.items() if d is t))}

    @property
    def search(self) -> NearestNeighbors | None:
        """The search that fills one."""
        return self.observation.neighbors if isinstance(self.observation.neighbors, NearestNeighbors) else None

    @property
    def alone(self) -> bool:
        """Whether an observation is an agent's own features and nothing else."""
        return self.observation.other_features is None or self.observation.max_neighbors == 0

    @property
    def fields(self) -> dict[str, Buffer]:
        """What a user sees of the state."""
        arrays = {k: b for k, b in self.arrays.items() if k not in self.found and k != "agents_by_role"}
        return arrays | {k: Buffer(dtype) for k, dtype in self.scalars.items()}


def make_schema(env: Environment) -> SingleAgentSchema | MultiAgentSchema:
    """What the kernels of `env` need to know.

    Raises:
        AuthoringError: a field, a space or a number of agents of a kind that kernels cannot hold.
    """
    count = count_agents(env) if isinstance(env, MultiAgentEnv) else 1
    observation_space, action_space = _spaces(env)
    shared = {"features": observation_features(observation_space), "actions": make_action_layout(action_space)}
    hints = get_type_hints(env.state, include_extras=True)
    if isinstance(env, SingleAgentEnv):
        for name, hint in hints.items():
            if hint not in SCALARS:
                raise AuthoringError(f"{env.state.__module__}.State.{name} is a {hint}; a state field is float, int or bool.")
        others = {k: SCALARS[h] for k, h in hints.items() if h is not float}
        return SingleAgentSchema(tuple(k for k in hints if hints[k] is float), others, **shared)  # type: ignore[arg-type]  # as named
    arrays = {k: _array(env, k, hint, count) for k, hint in hints.items() if hint not in SCALARS}
    scalars = {k: SCALARS[h] for k, h in hints.items() if h in SCALARS}
    roles = dict(env.roles(env.params)) if env.roles is not None else {}
    if roles and sum(roles.values()) != count:
        raise AuthoringError(f"roles(p) is {roles}, which sums up to {sum(roles.values())}; agents(p) is {count}.")
    for name in ENGINE_FIELDS:
        if (name in arrays) != bool(roles) or (roles and arrays[name] != Buffer(np.int32, (count,))):
            raise AuthoringError(
                f"a state with Ints fields {' and '.join(ENGINE_FIELDS)} goes with roles(p); one is there without the other."
            )
    for name, dtype in scalars.items():
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
    look = observation.neighbors
    found = tuple(k for k, hint in hints.items() if NearestNeighbors in get_args(hint))
    if isinstance(look, NearestNeighbors) and (look.field not in found or arrays[look.field].dtype != np.int32):
        raise AuthoringError(
            f"the search fills {look.field!r}, which must be an Annotated[Ints, 'parameter', NearestNeighbors] field."
        )
    return MultiAgentSchema(arrays, scalars, agents=(count,), observation=observation, roles=roles, found=found, **shared)  # type: ignore[arg-type]  # as named


def _spaces(env: Environment) -> tuple[Any, Any]:
    """(observation, action): the spaces of one agent."""
    try:
        found = env.spaces(env.params)
    except MemoryError as error:
        raise OutOfMemoryError(f"the spaces of {env.params} do not fit into this machine's memory: make it smaller.") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise AuthoringError(f"spaces(p) returned {found}; it must return two spaces, (observation, action).")
    return found


def check_fits_memory(env: Environment) -> None:
    """Refuses an environment that is too large for the machine, before anything else is made of its parameters.

    Raises:
        AuthoringError: `agents(p)` gives no number, or `spaces(p)` no two spaces.
        OutOfMemoryError: it gives more agents than an environment can hold, or spaces that do not fit into memory.
    """
    if isinstance(env, MultiAgentEnv):
        count_agents(env)
    _spaces(env)


def count_agents(env: MultiAgentEnv) -> int:
    """A, found without anything else of the environment's.

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
    """The buffers that `env` needs as `options`; `split` if one kernel plays and another writes the observations."""
    s = make_schema(env)
    same_step = options.autoreset is AutoresetMode.SAME_STEP
    scratch: dict[str, Buffer] = {}
    if isinstance(s, SingleAgentSchema):
        kept = {"state": Buffer(np.float32, (len(s.floats),), wide=True)} if s.floats else {}
        kept |= {f"state_{k}": Buffer(dtype) for k, dtype in s.others.items()}
        obs, flags = Buffer(np.float32, (s.features,), wide=True), {}
        reward = Buffer(np.float32)
    else:
        shared = {name: Buffer(s.arrays[k[0]].dtype, (len(k), *s.agents)) for name, k in s.shared.items()}
        apart = {k: b for k, b in s.arrays.items() if not any(k in names for names in s.shared.values())}
        kept = shared | {f"state_{k}": b for k, b in apart.items() if k not in s.found}
        kept |= {f"state_{k}": Buffer(dtype) for k, dtype in s.scalars.items()}
        kept["last_time"] = Buffer(np.int32)  # steps of the last episode, while it awaits its reset
        scratch = {f"state_{k}": s.arrays[k] for k in s.found}
        if same_step and split:
            scratch |= {f"final_{k}": b for k, b in (shared | apart).items()}
            scratch |= {f"final_{k}": Buffer(dtype) for k, dtype in s.scalars.items()}
        if options.reward != "agents":
            scratch["agent_reward"] = Buffer(np.float32, s.agents)
        obs = Buffer(np.float32, (*s.agents, s.features), wide=s.alone)
        flags = {"agent_mask": Buffer(np.bool_, s.agents), "agent_terminated": Buffer(np.bool_, s.agents)}
        reward = Buffer(np.float32, s.agents if options.reward == "agents" else ())
    returned = {"obs": obs, "reward": reward, "terminated": Buffer(np.bool_), "truncated": Buffer(np.bool_), **flags}
    if same_step:
        returned |= {"final_obs": obs, "final_mask": Buffer(np.bool_)}
    return Layout(
        kept=kept | bookkeeping_buffers(options, env.params),
        scratch=scratch,
        pool=pool_buffers({name: s.fields[name] for name in options.pool}),
        given=input_buffers((*s.agents, *s.actions.shape), s.actions.discrete),
        returned=returned,
    )


def feature_widths(env: MultiAgentEnv, schema: MultiAgentSchema) -> tuple[int, int]:
    """(F, own features): how many numbers `other_features` and `self_features` give, found by calling them as plain Python.

    Raises:
        AuthoringError: they do not make up a row of D numbers.
    """
    p, observation = kernel_params(env), schema.observation
    zeros = {k: np.zeros(b.shape, b.dtype) for k, b in schema.arrays.items()}
    s = env.state(**{k: zeros[k] if k in zeros else schema.scalars[k](0) for k in env.state._fields})
    with np.errstate(all="ignore"):
        own = len(author_function(observation.self_features)(0, s, Time(0, 1), p))
        seen = (
            len(author_function(observation.other_features)(0, 0, s, Time(0, 1), p))
            if observation.other_features is not None and observation.max_neighbors
            else 0
        )
    if seen * observation.max_neighbors + own != schema.features:
        raise AuthoringError(
            f"an observation has {observation.max_neighbors} neighbors of {seen} features and {own} own features, "
            f"{seen * observation.max_neighbors + own} numbers; the observation space says {schema.features}."
        )
    return seen, own
