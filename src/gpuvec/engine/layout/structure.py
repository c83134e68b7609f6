"""What of an environment follows from its parameters and cannot change while its buffers stay: shapes, and shared constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.spec import Environment, MultiAgentEnv, NearestNeighbors, Observation, Reduction


def shape_differences(env: Environment, changed: Environment) -> list[str]:
    """Compares the shapes that two sets of parameters give to one environment.

    Buffers, spaces and a learner's networks are made for one number of agents, one size of every field and one number of
    observed neighbors. The bounds of a Box and the values of a table are no shapes.

    Args:
        env: the environment.
        changed: the same environment with other parameters.

    Returns:
        One line for each difference, as in "the number of agents is 5 instead of 4"; empty if there is none.

    Raises:
        Whatever the author's functions raise for the parameters of `changed`.
    """
    return _differences(_shapes(env), _shapes(changed))


def constant_differences(env: Environment, changed: Environment) -> list[str]:
    """Compares all that kernels, spaces and observations have once for all rows, shapes included.

    Parameters stored per environment differ from row to row, while all rows share one space, one set of tables and one
    `Observation`: those are what the common parameters say.

    Args:
        env: the environment with the common parameters.
        changed: the same environment with those of one row.

    Returns:
        One line for each difference; empty if there is none.

    Raises:
        Whatever the author's functions raise for the parameters of `changed`.
    """
    return shape_differences(env, changed) + _differences(_constants(env), _constants(changed), "differ")


def params_of_structure(env: Environment) -> frozenset[str]:
    """The names of the parameters on which shapes and shared constants can depend, found by reading them once more.

    Raises:
        Whatever the author's functions raise.
    """
    read: set[str] = set()
    fields = env.params._fields

    class Recorder(type(env.params)):  # type: ignore[misc]  # the class of the author's parameters
        """The same parameters, which record what is read of them."""

        def __getattribute__(self, name: str) -> Any:
            read.update({name} & set(fields))
            return super().__getattribute__(name)

        def __getitem__(self, index: Any) -> Any:
            read.update(fields)
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            read.update(fields)
            return super().__iter__()

    p = Recorder(*env.params)
    env.spaces(p)
    if isinstance(env, MultiAgentEnv):
        for function in (env.agents, env.observation, env.roles, env.tables):
            if function is not None:
                function(p)
        read |= {name for name in _field_parameters(env) if name in fields}
    return frozenset(read)


def _field_parameters(env: MultiAgentEnv) -> list[Any]:
    """What `Annotated` fields name as their numbers of elements."""
    return [one for hint in get_type_hints(env.state, include_extras=True).values() for one in get_args(hint)[1:]]


def _differences(own: dict[str, Any], other: dict[str, Any], said: str = "") -> list[str]:
    """One line for each key under which two dicts hold different things."""
    found = []
    for name in {**own, **other}:
        before, after = own.get(name), other.get(name)
        if before != after:
            verb = "has shape" if isinstance(before, tuple) and isinstance(after, tuple) else "is"
            found.append(f"the {name} {said or f'{verb} {after} instead of {before}'}")
    return found


def _shapes(env: Environment) -> dict[str, Any]:
    """{what: its shape, number or kind}; what is compared by `==` and read by users."""
    s = make_schema(env)
    observation, action = env.spaces(env.params)
    shapes: dict[str, Any] = {}
    if isinstance(s, MultiAgentSchema):
        look = s.observation.neighbors
        shapes |= {"number of agents": s.agents_shape[0], "mapping of roles": s.roles}
        shapes |= {"number of observed neighbors": s.observation.max_neighbors}
        shapes |= {"search or reduction before an observation": _look_of(look)}
        shapes |= {f"field {name!r}": b.shape for name, b in s.array_fields.items()}
        for name, table in _tables(env).items():
            shapes |= {f"table {name!r}": table.shape, f"dtype of table {name!r}": table.dtype.name}
    return shapes | {"observation space": observation.shape, "action space": _without_bounds(action)}


def _constants(env: Environment) -> dict[str, Any]:
    """{what: its values in a form that `==` compares}, of what all rows share beside shapes."""
    names = ("bounds of the observation space", "bounds of the action space")
    constants = {name: _bounds(space) for name, space in zip(names, env.spaces(env.params), strict=True)}
    if isinstance(env, MultiAgentEnv):
        constants |= {f"values of table {name!r}": table.tobytes() for name, table in _tables(env).items()}
        observation: Observation = env.observation(env.params)
        constants |= {
            f"function `{name}` of the observation": _code(getattr(observation, name))
            for name in ("self_features", "other_features")
        }
        look: Any = observation.neighbors
        for part in ("distance", "mask", "function"):
            constants |= {f"function `{part}` before an observation": _code(getattr(look, part, None))}
        if isinstance(look, NearestNeighbors):
            constants |= {"position fields of the search before an observation": (look.position, look.squared)}
    return constants


def _tables(env: Environment) -> dict[str, np.ndarray[Any, Any]]:
    if not isinstance(env, MultiAgentEnv) or env.tables is None:
        return {}
    return {name: np.asarray(table) for name, table in env.tables(env.params).items()}


def _look_of(look: Any) -> str:
    if isinstance(look, NearestNeighbors):
        return f"a search that fills {look.field!r}"
    return f"{look.kind}_of({look.field!r}, ...)" if isinstance(look, Reduction) else "none"


def _without_bounds(space: gym.Space[Any]) -> Any:
    """A Box by its shape, which bounds do not change; another space by what it prints, its numbers of choices."""
    return space.shape if isinstance(space, gym.spaces.Box) else str(space)


def _bounds(space: gym.Space[Any]) -> Any:
    return (space.low.tobytes(), space.high.tobytes()) if isinstance(space, gym.spaces.Box) else None


def _code(function: Callable[..., Any] | None) -> Any:
    """What a function does: one that is made again by the same line from the same numbers and objects does the same."""
    if function is None:
        return None
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held = [one if isinstance(one, bool | int | float | str) else id(one) for one in held]
    return function.__code__, function.__defaults__, held
