"""Finds where two results differ: floats by more than a tolerance, flags and integers by any amount."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.phases import AGENTS, PAIRS

STATE, ENGINE = "state ", "engine "  # precede the names of fields of the state and of the engine's buffers among results


class ResultLayout(NamedTuple):
    """The owners of the elements of results, {name: (E, ...) array}.

    Attributes:
        has_agents: whether rewards, observations and infos of agents have an axis of agents after that of environments.
        set_axes: {field of the state: the number of axes after the first that are those of its index set}.
        first_agents: {field whose second axis is that of agents or of a role: the agent of its first element}.
    """

    has_agents: bool
    set_axes: Mapping[str, int]
    first_agents: Mapping[str, int]

    def num_set_axes(self, name: str, num_axes: int) -> int:
        """Returns how many axes after that of environments are those of an index set; 0 if values belong to the environment.

        Args:
            name: the name of a result, such as "observation" or "state x".
            num_axes: the number of its axes.
        """
        if name.startswith(STATE):
            return self.set_axes.get(name.removeprefix(STATE), 0)
        return int(self.has_agents and num_axes > 1 and not name.startswith(ENGINE))

    def agent(self, name: str, element: tuple[int, ...]) -> int | None:
        """Returns the agent to which an element of a result belongs, None if it belongs to no single agent.

        Args:
            name: the name of the result.
            element: the index of the element, the environment first.
        """
        if name.startswith(STATE):
            first = self.first_agents.get(name.removeprefix(STATE))
            return None if first is None else first + element[1]
        return element[1] if self.num_set_axes(name, len(element)) else None

    def index_of_agent(self, field: str, agent: int, size: int) -> int | None:
        """Returns the index of an agent on the second axis of a field of the state, None if the field has no element of it.

        Args:
            field: the name of the field.
            agent: the agent.
            size: the length of that axis.
        """
        first = self.first_agents.get(field)
        return agent - first if first is not None and 0 <= agent - first < size else None


def make_result_layout(schema: EnvSchema) -> ResultLayout:
    """Returns the owners of the elements of the results of an environment.

    Args:
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema):
        return ResultLayout(False, {}, {})
    set_axes = {field: len(schema.sets[index_set]) for field, index_set in schema.field_sets.items()}
    if schema.is_single_agent:
        return ResultLayout(False, set_axes, {})
    first_agents = {AGENTS: 0, PAIRS: 0} | {role: part.first_agent for role, part in schema.role_schemas.items()}
    owners = {field: first_agents[name] for field, name in schema.field_sets.items() if name in first_agents}
    return ResultLayout(True, set_axes, owners)


TOLERANCE = 1e-5  # of floats, absolute up to 1 and relative above


class Difference(NamedTuple):
    """The first element in which the results of an environment differ."""

    name: str  # the name of the array, such as "observation" or "state x"
    element: tuple[int, ...]  # the index in the array, the environment first; empty if the shapes or the dtypes differ
    expected: str
    actual: str

    def place(self, layout: ResultLayout) -> str:
        """Describes the element, such as "environment 3, agent 2, observation[5]".

        Args:
            layout: the owners of the elements of results.
        """
        agent = layout.agent(self.name, self.element) if self.element else None
        owners = [f"environment {k}" for k in self.element[:1]] + ([] if agent is None else [f"agent {agent}"])
        return ", ".join([*owners, self.name + "".join(f"[{k}]" for k in self.element[len(owners) :])])


def exceeds_tolerance(expected: ArrayLike, actual: ArrayLike, tolerance: float = TOLERANCE) -> NDArray[np.bool_]:
    """Returns which elements differ: floats by more than tolerance * max(1, |expected|), others by any amount; nan equals nan.

    Args:
        expected: (...,) array or a scalar.
        actual: an array of the same shape, whose dtype determines the rule.
        tolerance: of floats.

    Returns:
        (...,) bool.
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    is_unequal = np.asarray(expected != actual)
    if actual.dtype.kind != "f":
        return is_unequal
    # Most elements of large arrays are equal, so that the tolerance is computed for few of them.
    a, b = expected[is_unequal].astype(np.float64), actual[is_unequal].astype(np.float64)
    is_finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):  # of infinity minus infinity
        is_close = is_finite & (np.abs(b - a) <= tolerance * np.maximum(1.0, np.abs(a)))
    is_unequal[is_unequal] = ~(is_close | (np.isnan(a) & np.isnan(b)))
    return is_unequal


def differs_in_bits(expected: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which elements are not bit-identical. For example, -0.0 differs from 0.0.

    Args:
        expected: (...,) array.
        actual: an array of the same shape and dtype.

    Returns:
        (...,) bool.
    """
    unsigned = f"u{expected.dtype.itemsize}"
    return np.asarray(np.ascontiguousarray(expected).view(unsigned) != np.ascontiguousarray(actual).view(unsigned))


def differences(
    expected: Mapping[str, NDArray[Any]],
    actual: Mapping[str, NDArray[Any]],
    unequal: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]] = exceeds_tolerance,
) -> list[Difference]:
    """Returns the first difference of each environment that has one, ordered by environment.

    Args:
        expected: {name: (E, ...) array}. For each environment the first name with a difference is reported.
        actual: the arrays to compare with them.
        unequal: returns which elements of two arrays differ.
    """
    if expected.keys() != actual.keys():
        return [Difference("names of the results", (), ", ".join(expected), ", ".join(actual))]
    first: dict[int, Difference] = {}
    for name, a in expected.items():
        b = actual[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return [Difference(name, (), f"{a.dtype}{list(a.shape)}", f"{b.dtype}{list(b.shape)}")]
        is_unequal = unequal(a, b)
        for env in np.flatnonzero(is_unequal.reshape(len(a), -1).any(1)).tolist() if is_unequal.any() else ():
            if env not in first:
                element = (env, *map(int, np.unravel_index(is_unequal[env].argmax(), a.shape[1:])))
                first[env] = Difference(name, element, str(a[element]), str(b[element]))
    return [first[env] for env in sorted(first)]
