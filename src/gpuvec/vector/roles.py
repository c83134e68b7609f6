"""The positions of each role's agents on the agent axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.vector.framework import Framework


def agents_by_role(sim: Simulation, framework: Framework) -> dict[str, Any]:
    """Returns the positions of each role's agents on the agent axis; the host waits for the device.

    Args:
        sim: the simulation.
        framework: the framework of the arrays that are returned.

    Returns:
        {role: a slice of n positions, (n,) int64 indices, or (E, n) int64 indices}: the simplest that describes the role;
        empty for an environment without roles.
    """
    if not isinstance(sim.schema, MultiAgentSchema) or not sim.schema.roles:
        return {}
    if sim.schema.role_schemas:
        return {part.role: slice(part.first_agent, part.first_agent + part.num_agents) for part in sim.schema.parts}
    order = sim.field("agents_by_role")  # (E, A): the agents of the first role, then those of the second, ...
    all_envs_equal = bool((order == order[:1]).all())
    first_env = to_numpy(order[0])
    positions: dict[str, Any] = {}
    begin = 0
    for role, count in sim.schema.roles.items():
        end = begin + count
        agents = first_env[begin:end]
        if not all_envs_equal:
            positions[role] = framework.wrap(order[:, begin:end].astype(np.int64))
        elif (np.diff(agents) == 1).all():
            positions[role] = slice(int(agents[0]), int(agents[0]) + count)
        else:
            positions[role] = framework.wrap(sim.device.arrays.asarray(agents.astype(np.int64)))
        begin = end
    return positions
