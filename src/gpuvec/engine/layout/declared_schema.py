"""Derives the schema of an environment from its declaration, and checks the declaration before anything is compiled."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.functions import author_function, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import SCALARS, Buffer
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import (
    ENGINE_FIELDS,
    MAX_TUPLE_COMPONENTS,
    EnvSchema,
    MultiAgentSchema,
    ObservationLayout,
    SingleAgentSchema,
    as_multi_agent,
    make_action_layout,
    make_array_field,
    make_index_sets,
    make_observation_layout,
    mask_size,
)
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.observations import NearestNeighbors, Observation, Time
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, ByRole, Each, Reduction
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv

# Checks of the functions of a declaration before anything is compiled: their parameters, and the sets and fields of phases.


HAS_LINE = re.compile(r"^.+, line \d+, `")


@contextmanager
def with_line_of(function: Any) -> Iterator[None]:
    """Adds the file and the line of a function to an AuthoringError of the block that names none.

    Args:
        function: the author's function that returned what the block checks; None to add nothing.
    """
    try:
        yield
    except AuthoringError as error:
        function = inspect.unwrap(author_function(function)) if callable(function) else function
        if not isinstance(function, FunctionType) or HAS_LINE.match(str(error)):
            raise
        raise authoring_error(function, str(error).removesuffix(".")) from None


def check_parameters(function: Any, declared: str, parameters: str) -> None:
    """Checks the number of parameters of a function.

    Args:
        function: the function, or a `ByRole`; None and what is no plain function are not checked.
        declared: the declaration, for messages, such as "each('cells', ...)".
        parameters: the parameters that it must have, such as "index, s, key, p".

    Raises:
        AuthoringError: it has others.
    """
    if isinstance(function, ByRole):
        for part in function.functions:
            check_parameters(part, declared, parameters)
        return
    function = author_function(function)
    if not isinstance(function, FunctionType) or function.__code__.co_flags & inspect.CO_VARARGS:
        return
    required, count = parameters.count(",") + 1, function.__code__.co_argcount
    if not count - len(function.__defaults__ or ()) <= required <= count:
        problem = f"the function of {declared} has {count} parameters; it must be {function.__name__}({parameters})"
        raise authoring_error(function, problem)


def _check_functions(env: MultiAgentEnv, schema: MultiAgentSchema) -> None:
    """Raises AuthoringError if a function has other parameters, or a phase or features name what does not exist."""
    sets, scalars, acting_sets = schema.sets, schema.scalar_fields, tuple(schema.role_schemas) or (AGENTS, PAIRS)
    check_parameters(env.allowed, "allowed", "i, action, s, p")
    check_parameters(env.to_move, "to_move", "s, p")
    check_parameters(env.metrics, "metrics", "s, p")
    resets = env.reset if isinstance(env.reset, tuple) else ()
    # The functions of these sets receive an action in a step.
    for phase, sets_with_action in [*((phase, ()) for phase in resets), *((phase, acting_sets) for phase in env.phases)]:
        if isinstance(phase, Each):
            declared = f"each({phase.index_set!r}, ...)"
            if phase.index_set not in sets:
                problem = f"{declared} runs over a set that does not exist; there are {', '.join(map(repr, sets))}"
                raise authoring_error(author_function(phase.function), f"{problem}: name one of them, or declare it in sets(p)")
            is_agent = phase.index_set == AGENTS or phase.index_set in sets_with_action
            index = {WORLD: "", PAIRS: "pair, "}.get(phase.index_set, "i, " if is_agent else "index, ")
            action = "action, " if phase.index_set in sets_with_action else ""
            check_parameters(phase.function, declared, f"{index}s, {action}key, p")
        if isinstance(phase, Assign):
            for name in phase.fields:
                if name not in scalars:
                    problem = f"assign sets {name!r}, which is no float, int or bool of the state; there are "
                    problem += f"{', '.join(scalars)}: declare it, or write arrays in a phase each(...)"
                    raise authoring_error(author_function(phase.function), problem)
            parameters = "s, action, key, p" if phase.has_action else "s, key, p"
            check_parameters(phase.function, f"assign({phase.fields}, ...)", parameters)
        if isinstance(phase, Reduction):
            declared = f"{phase.kind}_of({phase.field!r}, ...)"
            check_parameters(phase.function, declared, "index, s, p")
            check_parameters(phase.at, f"{declared} with at", "index, s, p")
    for observation in (part.observation for part in schema.parts):
        check_parameters(observation.pixel, "Observation(pixel=...)", "i, cell, s, t, p")
        for block in observation.blocks:
            if block.over not in sets or block.over == WORLD:
                names = ", ".join(repr(name) for name in sets if name != WORLD)
                problem = f"Features({block.over!r}, ...) names no set of elements; there are {names}"
                problem += ": name one of them, or declare it in sets(p)"
                raise authoring_error(author_function(block.function), problem)
            check_parameters(block.function, f"Features({block.over!r}, ...)", "i, index, s, t, p")


# The order in which sums and extrema combine the elements of an index set, for kernels and for the reference in Python.


REDUCTION_SOURCES = {
    "sum": "t(x + y)",
    "min": "y if y < x else x",
    "max": "y if y > x else x",
}  # {kind: source of the combination}
FEW_LANES, MANY_LANES = 32, 256
MANY_ELEMENTS = 4096  # from which on a set has many lanes


def count_lanes(num_elements: int) -> int:
    """Returns the number of lanes L for a set of so many elements, a power of two.

    Args:
        num_elements: the size of the set.
    """
    lanes = MANY_LANES if num_elements >= MANY_ELEMENTS else FEW_LANES
    return min(lanes, 1 << (num_elements - 1).bit_length())


def result_of_none(kind: str, dtype: DType) -> int | float | bool:
    """Returns the result of a reduction of no elements.

    Args:
        kind: "count", "any", "all", "argmin", "sum", "min" or "max".
        dtype: the type of the result.
    """
    results = {"count": 0, "any": False, "all": True, "argmin": -1}
    return results[kind] if kind in results else identity_of(kind, dtype)


def identity_of(kind: str, dtype: DType) -> int | float:
    """Returns the number that a combination with another one does not change.

    Args:
        kind: "sum", "min" or "max".
        dtype: float32 or int32.
    """
    if kind == "sum":
        return 0
    if dtype is np.float32:
        return math.inf if kind == "min" else -math.inf
    limits = np.iinfo(np.int32)
    return limits.max if kind == "min" else limits.min


# The fields that reductions write: their types, and for reductions with `at` the sets that they belong to.


REDUCTION_TYPES: dict[str, tuple[DType, ...]] = {  # {kind: dtypes of the field}
    "count": (np.int32,),
    "argmin": (np.int32,),
    "any": (np.bool_,),
    "all": (np.bool_,),
    "sum": (np.float32, np.int32),
    "min": (np.float32, np.int32),
    "max": (np.float32, np.int32),
}
SCALAR_NAMES = {np.float32: "float", np.int32: "int", np.bool_: "bool"}
ARRAY_NAMES = {np.float32: "Floats", np.int32: "Ints", np.bool_: "Bools"}


def check_reductions(env: MultiAgentEnv, schema: MultiAgentSchema) -> None:
    """Checks the sets and the fields of all reductions of an environment.

    Raises:
        AuthoringError: a set or a field does not exist, or has another type than the reduction; the message names the line of
            the function of the reduction.
    """
    arrays = {k: b for k, b in schema.array_fields.items() if k not in (*schema.search_fields, *ENGINE_FIELDS)}
    reset = env.reset if isinstance(env.reset, tuple) else ()
    for phase in (*reset, *env.phases, schema.neighbors):
        if not isinstance(phase, Reduction):
            continue
        name, field, dtypes, problem = reduction_name(phase), phase.field, REDUCTION_TYPES[phase.kind], ""
        if not schema.sets.get(phase.over):
            known = ", ".join(repr(index_set) for index_set, shape in schema.sets.items() if shape)
            problem = f"runs over {phase.over!r}, which is no set of elements: there are {known}"
        elif phase.at is None:
            if schema.scalar_fields.get(field) not in dtypes:
                allowed = " or ".join(SCALAR_NAMES[dtype] for dtype in dtypes)
                problem = f"sets a field of the state that must be one {allowed} for the world"
                if field in arrays:
                    problem += "; for a field with several elements add at=..., the element to which each one contributes"
        elif phase is schema.neighbors:
            problem = "is `neighbors` of an observation, where a reduction has no at: make it the last phase"
        else:
            dtypes = tuple(dtype for dtype in dtypes if (phase.kind, dtype) != ("sum", np.float32))
            types = " or ".join(ARRAY_NAMES[dtype] for dtype in dtypes)
            rule = f"its field must be {types} of agents or another set, one number for each element, which the engine does "
            rule += "not write"
            buffer, index_set = arrays.get(field), schema.field_sets.get(field, WORLD)
            if buffer is None:
                problem = f"writes {field!r}, which is no such field of the state: {rule}"
            elif index_set == WORLD or buffer.shape != schema.sets[index_set]:
                problem = f"writes {field!r}, which has shape {buffer.shape} and belongs to {index_set!r}: {rule}"
            elif buffer.dtype not in dtypes:
                problem = f"writes {field!r}, which is {np.dtype(buffer.dtype)}: {rule}"
        if problem:
            raise authoring_error(phase.function, f"{name} {problem}")


def extrema_fields(env: Environment) -> frozenset[str]:
    """Returns the fields that `min_of` and `max_of` with `at` write, whose floats are infinite where no element contributes.

    Args:
        env: the environment.
    """
    if isinstance(env, SingleAgentEnv):
        return frozenset()
    phases = (*(env.reset if isinstance(env.reset, tuple) else ()), *env.phases)
    extrema = (p for p in phases if isinstance(p, Reduction) and p.at is not None and p.kind in ("min", "max"))
    return frozenset(phase.field for phase in extrema)


def reduction_name(phase: Reduction) -> str:
    """Returns the call that creates a reduction, for messages.

    Args:
        phase: the reduction.
    """
    return f"{phase.kind}_of({phase.field!r}, ...{'' if phase.at is None else ', at=...'})"


# Roles with spaces of their own: the checks of their declaration, and functions by role as one function of all agents.


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


# The components of an action that the author's function `allowed` restricts.


def masked_components(env: Environment, action_space: Any, role: str | None = None) -> tuple[int, ...] | None:
    """Returns the numbers of the components that have masks, () if there are no masks, or None if all components have one.

    Args:
        env: the environment.
        action_space: the action space of one agent.
        role: the role of the agent if spaces are by role; otherwise None.

    Raises:
        AuthoringError: `masked_components` without `allowed`, for another space than MultiDiscrete, or with wrong numbers.
    """
    has_masks = env.allowed is not None if role is None else role in _masked_roles(env)
    if env.masked_components is None:
        return None if has_masks else ()
    with with_line_of(env.masked_components):
        if env.allowed is None:
            raise AuthoringError("masked_components(p) names components that allowed(...) restricts, and there is no allowed.")
        components: Any = env.masked_components(env.params)
        place, roles = "", _masked_roles(env)
        if role is not None:
            if not isinstance(components, Mapping) or not components.keys() <= set(roles):
                raise AuthoringError(
                    f"masked_components(p) returned {components!r}; since spaces(p) is by role, it must return "
                    f"{{role: numbers of components}} for roles that have allowed: {', '.join(map(repr, roles))}."
                )
            if role not in components:
                return None if has_masks else ()
            components, place = components[role], f" for role {role!r}"
        if not isinstance(action_space, gym.spaces.MultiDiscrete):
            raise AuthoringError(
                f"masked_components(p) is for MultiDiscrete actions, and the action space{place} is {action_space}: remove it."
            )
        count = len(action_space.nvec)
        is_valid = isinstance(components, tuple) and all(type(k) is int and 0 <= k < count for k in components)
        if not is_valid or len(set(components)) < len(components):
            raise AuthoringError(
                f"masked_components(p) returned {components!r}{place}; it must return a tuple of different numbers of "
                f"components, 0 to {count - 1}, or () for no masks."
            )
        return tuple(sorted(components))


def has_action_masks(env: Environment) -> bool:
    """Returns whether the environment has masks with its parameters.

    Args:
        env: the environment.
    """
    if env.allowed is None or env.masked_components is None:
        return env.allowed is not None
    components = env.masked_components(env.params)
    if isinstance(components, Mapping):
        return any(components.get(role) != () for role in _masked_roles(env))
    return len(components) > 0


def _masked_roles(env: Environment) -> tuple[str, ...]:
    """The roles that have a function `allowed` of their own."""
    return tuple(env.allowed.roles) if isinstance(env.allowed, ByRole) else ()


# The metrics of an environment: what its function `metrics` returns, and how each is combined over an episode.


METRIC_KINDS = {  # {kind: source of the combination of `old`, that of the earlier steps, with the `value` of a step}
    "last": "value",
    "mean": "old + value",
    "sum": "old + value",
    "min": "value if value < old else old",
    "max": "value if value > old else old",
}


def metric_kinds(env: Environment) -> dict[str, str]:
    """Returns {name: kind} of the metrics of an environment; kinds are those of `METRIC_KINDS`, "last" without an annotation.

    Raises:
        AuthoringError: `metrics` does not declare a NamedTuple of floats as its result.
    """
    if env.metrics is None:
        return {}
    with with_line_of(env.metrics):
        metrics = author_function(env.metrics)
        # Only the result's, because a function that comes from another process has no names but those that its code reads.
        declaration = type("Declaration", (), {"__annotations__": {"result": metrics.__annotations__.get("return")}})
        try:
            result = get_type_hints(declaration, metrics.__globals__, include_extras=True)["result"]
        except NameError as error:
            raise AuthoringError(f"the annotation of metrics names {error.name!r}, which its module does not have.") from error
        if not (isinstance(result, type) and issubclass(result, tuple) and hasattr(result, "_fields")):
            raise AuthoringError(
                f"metrics(s, p) is annotated to return {result}; it must be a NamedTuple class: def metrics(s, p) -> Metrics."
            )
        hints, kinds = get_type_hints(result, include_extras=True), {}
        for name in result._fields:
            hint = hints[name]
            base, *arguments = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            kinds[name] = arguments[0] if arguments else "last"
            if base is not float or len(arguments) > 1 or kinds[name] not in METRIC_KINDS:
                raise AuthoringError(
                    f"metric {name!r} is {hint}; it must be float, or Annotated[float, kind] with a kind of "
                    f"{', '.join(METRIC_KINDS)}."
                )
        return kinds


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
        _check_functions(env, schema)
        return schema._replace(metrics=metrics, has_turns=env.to_move is not None)
    with with_line_of(env.spaces):
        observation_space, action_space = _spaces(env)
        obs = make_observation_layout(observation_space)
        check_parameters(env.allowed, "allowed", "action, s, p")
        check_parameters(env.metrics, "metrics", "s, p")
        if obs.is_image:
            check_parameters(env.observe, "an observation space of images", "cell, s, p")
        hints = get_type_hints(env.state, include_extras=True)
        # Threads of a block share an env with arrays, images, masks, metrics or a critic's observation.
        has_outputs = any(function is not None for function in (env.allowed, env.metrics, env.critic_observation))
        if obs.is_image or has_outputs or any(hint not in SCALARS for hint in hints.values()):
            return _multi_agent_schema(as_multi_agent(env))._replace(is_single_agent=True, metrics=metrics)
        float_fields = tuple(name for name, hint in hints.items() if hint is float)
        non_float_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint is not float}
        return SingleAgentSchema(float_fields, non_float_fields, obs, make_action_layout(action_space))


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
        for name in AGENT_FUNCTIONS:
            if isinstance(getattr(env, name), ByRole):
                raise AuthoringError(
                    f"{name} is by role, and spaces(p) is not: return {{role: (observation space, action space)}} there, or "
                    "give one function for all agents, which reads s.role[i]."
                )
    with with_line_of(env.sets):
        sets = make_index_sets(env, count, roles if by_role else {})
    fields = {name: make_array_field(env, sets, name, hint) for name, hint in hints.items() if hint not in SCALARS}
    array_fields, field_sets = {k: buffer for k, (_, buffer) in fields.items()}, {k: name for k, (name, _) in fields.items()}
    scalar_fields = {name: SCALARS[hint] for name, hint in hints.items() if hint in SCALARS}
    search_fields = tuple(name for name, hint in hints.items() if NearestNeighbors in get_args(hint))
    undefined: Any = None
    schema = MultiAgentSchema(
        sets, array_fields, field_sets, scalar_fields, undefined, undefined, count, undefined, roles, search_fields
    )  # fmt: skip
    for name in ENGINE_FIELDS:
        if by_role and name in array_fields:
            raise AuthoringError(
                f"spaces(p) is by role, so roles are fixed, and the state has no field {name!r}: remove it. Functions by role "
                "and phases each(role, ...) know the role of an agent."
            )
        has_field = name in array_fields
        if not by_role and (has_field != bool(roles) or (roles and array_fields[name] != Buffer(np.int32, (count,)))):
            raise AuthoringError(
                f"a state has Ints fields {' and '.join(ENGINE_FIELDS)} if and only if the environment has roles(p); "
                "here one is there without the other."
            )
    if by_role:
        schema = schema._replace(role_schemas=_make_role_schemas(env, schema, spaces))
    else:
        with with_line_of(env.spaces):
            components = masked_components(env, spaces[1])
            schema = _with_spaces(schema, spaces, env.observation(env.params), components)
    if (search := schema.search) is not None:
        if search.field not in search_fields or array_fields[search.field].dtype != np.int32:
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
        positions = [name for name, buffer in array_fields.items() if buffer == Buffer(np.float32, (count,))]
        for name in search.position:
            if name not in positions:
                raise AuthoringError(
                    f"the search has {name!r} in its position; it must be a Floats field with one element for each agent: "
                    f"{', '.join(positions)}."
                )
    check_reductions(env, schema)
    return schema


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


# The parts of a row of observations, in their order: the one list of the kinds of features.


class FeaturePart(NamedTuple):
    """The features of a row that one function of the author computes: the first of each element, the second of each, and so on.

    Attributes:
        name: of the field of `Observation` that has the function.
        function: the function.
        width: the number of features of an element.
        num_elements: the number of neighbors, or of elements of a set; 1 for an agent's own features.
        over: the set of a block, else "".
    """

    name: str
    function: Callable[..., Any]
    width: int
    num_elements: int
    over: str = ""


def feature_parts(env: MultiAgentEnv, schema: MultiAgentSchema) -> list[FeaturePart]:
    """Returns the parts of an observation of features, whose functions it calls in Python; none for images.

    Args:
        env: the environment.
        schema: its schema.

    Raises:
        AuthoringError: a block is over a set that does not exist, or an observation of these features does not have D numbers.
    """
    parts = _list_parts(env, schema)
    num_features = sum(part.width * part.num_elements for part in parts)
    if parts and num_features != schema.num_features:
        widths, observation = {part.name: part.width for part in parts}, schema.observation
        sizes = [str(part.width * part.num_elements) for part in parts if part.over]
        blocks = f", blocks of {' and '.join(sizes)} numbers" if sizes else ""
        raise AuthoringError(
            f"an observation has {observation.max_neighbors} neighbors of {widths.get('other_features', 0)} features{blocks} "
            f"and {widths['self_features']} own features, {num_features} numbers; the observation space says "
            f"{schema.num_features}."
        )
    return parts


def _list_parts(env: MultiAgentEnv, schema: MultiAgentSchema) -> list[FeaturePart]:
    """`feature_parts` without the check of the sum."""
    observation = schema.observation
    calls: list[tuple[str, Callable[..., Any], int, str, tuple[Any, ...]]] = []
    if observation.self_features is None:
        return []
    if observation.other_features is not None and observation.max_neighbors:
        calls.append(("other_features", observation.other_features, observation.max_neighbors, "", (0, 0)))
    for block in observation.blocks:
        shape = schema.sets.get(block.over)
        if not shape:
            known = ", ".join(repr(name) for name, axes in schema.sets.items() if axes)
            raise AuthoringError(f"observation(p) has features over {block.over!r}, which is no set of elements: use {known}.")
        index = 0 if len(shape) == 1 else (0,) * len(shape)
        calls.append(("blocks", block.function, math.prod(shape), block.over, (0, index)))
    calls.append(("self_features", observation.self_features, 1, "", (0,)))
    zeros = {k: np.zeros(b.shape, b.dtype) for k, b in schema.array_fields.items()}
    zeros |= {k: dtype(0) for k, dtype in schema.scalar_fields.items()}
    s, t, p = env.state(**{k: zeros[k] for k in env.state._fields}), Time(0, 1), kernel_params(env)
    with np.errstate(all="ignore"):
        return [
            FeaturePart(name, function, len(author_function(function)(*indices, s, t, p)), count, over)
            for name, function, count, over, indices in calls
        ]


# The observation of a critic, which an environment may declare beside that of its agents.


CRITIC_OUTPUT = "critic_obs"  # the name of the output, and of the info


def make_critic_schema(env: Environment, schema: EnvSchema) -> MultiAgentSchema | None:
    """Returns the schema of an environment with the critic's observation in place of that of the agents; None without one.

    Args:
        env: the environment.
        schema: its schema.

    Raises:
        AuthoringError: the function `critic_observation` returns what a critic cannot have.
    """
    if env.critic_observation is None:
        return None
    assert isinstance(schema, MultiAgentSchema), "threads of a block share the env of a critic"
    if schema.role_schemas:
        raise AuthoringError("critic_observation is for agents with equal spaces, and here spaces(p) is by role: remove it.")
    observation = env.critic_observation(env.params)
    if isinstance(observation, Observation) and observation.pixel is not None:
        raise AuthoringError(
            "critic_observation(p) returned an image; a critic observes features, also where agents observe images: return "
            "Observation(self_features, ...) without pixel."
        )
    if not isinstance(observation, Observation) or observation.self_features is None:
        raise AuthoringError(
            f"critic_observation(p) returned {type(observation).__name__}; it must return Observation(self_features, ...) with "
            "features of the agent that the value is of."
        )
    if observation.other_features is not None or observation.neighbors is not None:
        raise AuthoringError(
            "critic_observation(p) has other_features or neighbors; it may have self_features and blocks. Features of "
            'all agents are blocks=(Features("agents", function),).'
        )
    if observation.blocks and schema.is_single_agent:
        raise AuthoringError("critic_observation(p) has blocks, and there is one agent: return all features in self_features.")
    critic = schema._replace(observation=observation, mask_size=0)
    many_agents = as_multi_agent(env) if isinstance(env, SingleAgentEnv) else env
    sizes = (part.width * part.num_elements for part in _list_parts(many_agents, critic))
    return critic._replace(obs=ObservationLayout((sum(sizes),)))
