"""Where the agents of each role are."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.vector.framework import Framework


def agents_of_roles(sim: Simulation, framework: Framework) -> dict[str, Any]:
    """{role: slice, (n,) indices or (E, n) indices}; waits for the device, as roles are set but seldom."""
    if not isinstance(sim.schema, MultiAgentSchema) or not sim.schema.roles:
        return {}
    agents_by_role = sim.field("agents_by_role")
    alike = bool((agents_by_role == agents_by_role[:1]).all())
    order = agents_by_role[0] if isinstance(agents_by_role, np.ndarray) else agents_by_role[0].get()
    found: dict[str, Any] = {}
    begin = 0
    for name, count in sim.schema.roles.items():
        ids = order[begin : begin + count]
        if not alike:
            found[name] = framework.wrap(agents_by_role[:, begin : begin + count].astype(np.int64))
        elif (np.diff(ids) == 1).all():
            found[name] = slice(int(ids[0]), int(ids[0]) + count)
        else:
            found[name] = framework.wrap(sim.device.arrays.asarray(ids.astype(np.int64)))
        begin += count
    return found
