"""Values by role as one array with a row for each agent, padded with zeros, if roles have spaces of their own.

The checks treat all environments alike: an array has an axis of agents, and the rows of other roles may be longer.

Letters: A agents, n agents of a role, K the largest number of components of an action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.engine.layout.space_layout import ActionLayout


def has_role_spaces(schema: EnvSchema) -> bool:
    """Returns whether the roles of an environment have spaces of their own.

    Args:
        schema: the schema of the environment.
    """
    return isinstance(schema, MultiAgentSchema) and bool(schema.role_schemas)


def join_roles(values: Any, schema: EnvSchema) -> Any:
    """Returns observations or masks by role as one array (..., A, D), with zeros for missing roles and after shorter rows.

    Args:
        values: {role: (E, n, ...)}; an array is returned as it is.
        schema: the schema of the environment.
    """
    if not isinstance(values, Mapping):
        return values
    assert isinstance(schema, MultiAgentSchema), "roles are of many agents"
    first = next(iter(values.values()))
    width = max(math.prod(rows.shape[2:]) for rows in values.values())
    joined = np.zeros((len(first), schema.num_agents, width), np.result_type(*values.values()))
    for role, rows in values.items():
        part = schema.role_schemas[role]
        agents = slice(part.first_agent, part.first_agent + part.num_agents)
        joined[:, agents, : math.prod(rows.shape[2:])] = rows.reshape(*rows.shape[:2], -1)
    return joined


def split_actions(actions: NDArray[Any], schema: EnvSchema) -> Any:
    """Returns actions as an environment takes them: {role: (..., n) or (..., n, K)} if the roles have spaces of their own.

    Args:
        actions: (..., A, K) actions as `random_actions` draws them; those of other environments are returned as they are.
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema) or not schema.role_schemas:
        return actions
    by_role = {}
    for part in schema.parts:
        rows = actions[..., part.first_agent : part.first_agent + part.num_agents, :]
        rows = rows[..., : part.action.components] if part.action.components else rows[..., 0]
        by_role[part.role] = np.ascontiguousarray(rows, np.int64 if part.action.discrete else np.float32)
    return by_role


def action_dtypes(actions: NDArray[Any], schema: EnvSchema) -> Any:
    """Returns the dtype of actions as `Simulation.step_launcher` takes it: one, or a tuple with that of each role.

    Args:
        actions: actions as `random_actions` draws them.
        schema: the schema of the environment.
    """
    by_role = split_actions(actions, schema)
    return tuple(rows.dtype.type for rows in by_role.values()) if isinstance(by_role, dict) else actions.dtype.type


def author_action_of(layout: ActionLayout, values: NDArray[Any]) -> Any:
    """Returns the argument of author functions for an agent's action: a number, or a tuple of numbers.

    Args:
        layout: the layout of the agent's actions.
        values: (K,) numbers, of which those beyond the agent's components are ignored.
    """
    numbers = [int(x) if layout.discrete else float(np.float32(x)) for x in values[: max(1, layout.components)].tolist()]
    return tuple(numbers) if layout.components else numbers[0]
