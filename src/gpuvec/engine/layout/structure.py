"""The parts of an environment that follow from its parameters and are fixed once buffers exist: shapes and shared constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.observations import NearestNeighbors
from gpuvec.spec import Environment, MultiAgentEnv


def shape_differences(env: Environment, changed_env: Environment) -> list[str]:
    """Compares the shapes that two sets of parameters give to one environment.

    Buffers, spaces and a learner's networks are made for one number of agents, one size of every field and one number of
    observed neighbors. The bounds of a Box and the values of a table are not shapes.

    Args:
        env: the environment.
        changed_env: the same environment with other parameters.

    Returns:
        One line for each difference, as in "the number of agents is 5 instead of 4"; empty if there is none.

    Raises:
        Whatever the author's functions raise for the parameters of `changed_env`.
    """
    return [
        f"the {name} {'has shape' if isinstance(old, tuple) and isinstance(new, tuple) else 'is'} {new} instead of {old}"
        for name, old, new in _changes(_shapes(env), _shapes(changed_env))
    ]


def constant_differences(env: Environment, changed_env: Environment) -> list[str]:
    """Compares everything that kernels, spaces and observations have once for all rows, shapes included.

    Parameters stored per environment differ from row to row, but all rows share the spaces, the tables and the `Observation`,
    which are computed from the common parameters.

    Args:
        env: the environment with the common parameters.
        changed_env: the same environment with those of one row.

    Returns:
        One line for each difference; empty if there is none.

    Raises:
        Whatever the author's functions raise for the parameters of `changed_env`.
    """
    changes = _changes(_constants(env), _constants(changed_env))
    return shape_differences(env, changed_env) + [f"the {name} differ" for name, _, _ in changes]


def params_of_structure(env: Environment) -> frozenset[str]:
    """Returns the names of the parameters on which shapes and shared constants of `env` can depend.

    They are those that the author's functions read when they are called once more.

    Raises:
        Whatever the author's functions raise.
    """
    names_read: set[str] = set()
    fields = env.params._fields

    class Recorder(type(env.params)):  # type: ignore[misc]  # the class of the author's parameters
        """The same parameters, which record the names that are read."""

        def __getattribute__(self, name: str) -> Any:
            names_read.update({name} & set(fields))
            return super().__getattribute__(name)

        def __getitem__(self, index: Any) -> Any:
            names_read.update(fields)
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            names_read.update(fields)
            return super().__iter__()

    p = Recorder(*env.params)
    env.spaces(p)
    if isinstance(env, MultiAgentEnv):
        for function in (env.agents, env.observation, env.roles, env.sets, env.tables, env.masked_components):
            if function is not None:
                function(p)
    # What follows the type in `Annotated` fields of the state is the names of parameters, among others.
    hints = get_type_hints(env.state, include_extras=True).values()
    return frozenset(names_read.union(name for hint in hints for name in get_args(hint)[1:] if name in fields))


def _changes(old_values: dict[str, Any], new_values: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns (name, old value, new value) for each name whose values differ in two dicts; None stands for a missing value."""
    pairs = ((name, old_values.get(name), new_values.get(name)) for name in {**old_values, **new_values})
    return [(name, old, new) for name, old, new in pairs if old != new]


def _shapes(env: Environment) -> dict[str, Any]:
    """Returns {name: shape, number or kind}. Error messages show the names, and the values are comparable with `==`."""
    schema = make_schema(env)
    shapes: dict[str, Any] = {}
    if isinstance(schema, MultiAgentSchema):
        shapes |= {"number of agents": schema.num_agents, "mapping of roles": schema.roles}
        for part in schema.parts:
            shapes |= {f"number of observed neighbors{_of_role(part.role)}": part.observation.max_neighbors}
        kind = "search that fills" if schema.search else f"{schema.neighbors.kind} in" if schema.neighbors else ""
        neighbors = f"a {kind} {schema.neighbors.field!r}" if kind else "none"
        shapes |= {"search or reduction before an observation": neighbors}
        shapes |= {f"field {name!r}": b.shape for name, b in schema.array_fields.items()}
        for name, table in _tables(env).items():
            shapes |= {f"table {name!r}": table.shape, f"dtype of table {name!r}": table.dtype.name}
    for role, (observation, action) in _spaces_by_role(env).items():
        shapes[f"observation space{_of_role(role)}"] = observation.shape
        # The text of other spaces than a Box has their sizes.
        shapes[f"action space{_of_role(role)}"] = action.shape if isinstance(action, gym.spaces.Box) else str(action)
    return shapes


def _of_role(role: str) -> str:
    """The end of the name of what belongs to a role; empty for all agents."""
    return f" of role {role!r}" if role else ""


def _spaces_by_role(env: Environment) -> dict[str, tuple[gym.Space[Any], gym.Space[Any]]]:
    """{role: (observation space, action space)}, with the role "" if all agents have equal spaces."""
    spaces: Any = env.spaces(env.params)
    return dict(spaces) if isinstance(spaces, Mapping) else {"": spaces}


def _constants(env: Environment) -> dict[str, Any]:
    """Returns {name: value} of the constants that all rows share in addition to shapes; values are comparable with `==`."""
    constants: dict[str, Any] = {}
    for role, (observation_space, action_space) in _spaces_by_role(env).items():
        constants[f"bounds of the observation space{_of_role(role)}"] = _bounds(observation_space)
        constants[f"bounds of the action space{_of_role(role)}"] = _bounds(action_space)
    if isinstance(env, MultiAgentEnv):
        constants |= {f"values of table {name!r}": table.tobytes() for name, table in _tables(env).items()}
        observations: Any = env.observation(env.params)
        for role, observation in observations.items() if isinstance(observations, Mapping) else [("", observations)]:
            of_role, neighbors = _of_role(role), observation.neighbors
            functions = {f"`{k}` of the": getattr(observation, k) for k in ("self_features", "other_features", "pixel")}
            functions |= {f"of the features over {block.over!r} of the": block.function for block in observation.blocks}
            functions |= {f"`{name}` before an": getattr(neighbors, name, None) for name in ("distance", "mask", "of")}
            constants |= {f"function {name} observation{of_role}": _code(function) for name, function in functions.items()}
            if isinstance(neighbors, NearestNeighbors):
                position = f"position fields of the search before an observation{of_role}"
                constants |= {position: (neighbors.position, neighbors.squared)}
    return constants


def _tables(env: Environment) -> dict[str, np.ndarray[Any, Any]]:
    if not isinstance(env, MultiAgentEnv) or env.tables is None:
        return {}
    return {name: np.asarray(table) for name, table in env.tables(env.params).items()}


def _bounds(space: gym.Space[Any]) -> Any:
    return (space.low.tobytes(), space.high.tobytes()) if isinstance(space, gym.spaces.Box) else None


def _code(function: Callable[..., Any] | None) -> Any:
    """Returns the code of a function and the values that it uses.

    Two functions that the same line made from the same numbers and objects have equal code.
    """
    if function is None:
        return None
    cell_values = [cell.cell_contents for cell in function.__closure__ or ()]
    comparable_values = [value if isinstance(value, bool | int | float | str) else id(value) for value in cell_values]
    return function.__code__, function.__defaults__, comparable_values
