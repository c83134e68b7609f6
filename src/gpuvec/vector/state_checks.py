"""Checks of a state that comes from a user, before kernels read it.

Some fields index arrays in kernels, which do not check bounds. This module is the only place where they are checked.
Letters: E envs, A agents, N rows, which are environments or states of a reset pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import NO_FAULT, NO_STEP_LIMIT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.spec import Environment

DescribeAllowed = Callable[..., str]  # describe(row, agent): which values are allowed there; describe(row) for whole rows
MAX_VALUE_LENGTH = 200  # characters of a value in an error message


def has_roles(sim: Simulation) -> bool:
    """Returns whether the field `role` of the state is that of the engine; in other environments it is one of the author.

    Args:
        sim: the simulation.
    """
    return isinstance(sim.schema, MultiAgentSchema) and sim.schema.has_role_field


def refuse_wrong(name: str, values: Any, wrong: Any, describe_allowed: DescribeAllowed, unit: str = "row") -> None:
    """Refuses an array that has wrong elements.

    Args:
        name: how the message calls the array.
        values: the array, (N, ...).
        wrong: which elements are wrong, (N, ...) bool; (N,) for whole rows.
        describe_allowed: returns which values are allowed at an index.
        unit: how the message calls a row.

    Raises:
        StateError: an element is wrong; the message has the row, the agent and the value of the first one, and what is
            allowed.
    """
    if not bool(wrong.any()):
        return
    row, *agent = (int(k) for k in np.argwhere(to_numpy(wrong))[0])
    value = str(to_numpy(values)[(row, *agent)].tolist())
    value = value if len(value) < MAX_VALUE_LENGTH else f"{value[:MAX_VALUE_LENGTH]}..."
    place = f"{unit} {row}" + (f", agent {agent[0]}" if agent else "")
    raise StateError(f"{name}, {place}: given {value}, allowed {describe_allowed(row, *agent)}.")


def to_integer(name: str, values: Any, dtype: DType, unit: str) -> Any:
    """Returns the values of an integer field with its dtype.

    Args:
        name: the name of the field.
        values: an array (N, ...) or () of numbers.
        dtype: int32, int8 or uint8.
        unit: how an error message calls a row.

    Raises:
        StateError: a value that is not an integer of that type, which the conversion would change silently.
    """
    if values.dtype != dtype and values.dtype.kind in "iuf":
        limits = np.iinfo(dtype)
        rows = values.reshape(1) if values.ndim == 0 else values
        wrong = ~((rows >= limits.min) & (rows <= limits.max) & (rows == np.floor(rows)))
        refuse_wrong(f"state field {name!r}", rows, wrong, lambda *at: f"whole numbers from {limits.min} to {limits.max}", unit)
    return values.astype(dtype)


def check_fields(
    sim: Simulation, fields: Mapping[str, Any], stored: Mapping[str, Sequence[Any]], mask: Any = None, pool: bool = False
) -> None:
    """Refuses roles that the environment does not have, and values outside its `field_ranges`.

    Args:
        sim: the simulation.
        fields: {field: (N,) or (N, A) array of the device's module}.
        stored: {parameter: (E,) values} of the parameters that are stored per environment.
        mask: the rows to check, (N,) bool; None for all.
        pool: whether rows are states of a reset pool, which must be valid for every environment.

    Raises:
        StateError: a wrong value; the message has the field, the row, the value and what is allowed.
    """
    unit, xp = ("state of the pool" if pool else "row"), sim.device.arrays
    if "role" in fields and has_roles(sim):
        _check_roles(sim, fields["role"], mask)
    for name, (low, high) in _field_ranges(sim.env, stored).items():
        if name not in fields:
            continue
        if pool:
            low, high = low.max(keepdims=True), high.min(keepdims=True)  # noqa: PLW2901  # the range of all environments
        values = fields[name]
        column_shape = (-1, *(1,) * (values.ndim - 1))
        # Also NaN is outside of a range.
        wrong = ~((values >= xp.asarray(low).reshape(column_shape)) & (values <= xp.asarray(high).reshape(column_shape)))
        wrong = wrong if mask is None else wrong & mask.reshape(column_shape)
        row_low, row_high = (np.broadcast_to(limit, len(values)) for limit in (low, high))

        def describe_allowed(row: int, *agent: int, low: Any = row_low, high: Any = row_high) -> str:
            return f"{low[row]} to {high[row]}"

        refuse_wrong(f"state field {name!r}", values, wrong, describe_allowed, unit)


def _field_ranges(env: Environment, stored: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, Any]]:
    """{field: (lowest values, highest values)} that the environment declares, (E,) each; (1,) if all rows are equal."""
    if env.field_ranges is None:
        return {}
    rows = list(zip(*stored.values(), strict=True)) or [()]
    ranges = {row: env.field_ranges(env.params._replace(**dict(zip(stored, row, strict=True)))) for row in dict.fromkeys(rows)}

    def limits(name: str, k: int) -> Any:
        return np.array([ranges[row][name][k] for row in rows])

    return {name: (limits(name, 0), limits(name, 1)) for name in ranges[rows[0]]}


def _check_roles(sim: Simulation, role: Any, mask: Any) -> None:
    """Raises StateError for rows of `role`, (E, A), with an unknown role or another number of agents in a role."""
    assert isinstance(sim.schema, MultiAgentSchema), "only these have roles"
    counts = sim.schema.roles
    wrong = (role < 0) | (role >= len(counts))
    for number, count in enumerate(counts.values()):
        wrong |= ((role == number).sum(-1) != count)[:, None]
    wrong_rows = wrong.any(-1) if mask is None else wrong.any(-1) & mask
    allowed = ", ".join(f"{count} times {number} ({name})" for number, (name, count) in enumerate(counts.items()))
    refuse_wrong("state field 'role'", role, wrong_rows, lambda row: allowed)


def check_saved(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Refuses a saved state with which a kernel would index an array out of bounds, or an episode could not continue.

    Args:
        sim: the simulation.
        saved: {name: array of the device's module}, with the shapes and dtypes of `sim.buffers`, except that all blocks have
            one clock.

    Raises:
        StateError: a wrong value; the message has the field, the row, the value and what is allowed.
    """
    stored = {name: to_numpy(saved[f"param_{name}"]).tolist() for name in sim.options.per_env}
    fields = {name: sim.field_in(saved, name) for name in sim.schema.fields}
    check_fields(sim, fields, stored)
    if "role" in fields and has_roles(sim):
        expected = sim.sort_by_role(fields["role"])
        agents_by_role = sim.field_in(saved, "agents_by_role")
        host_expected = to_numpy(expected)
        refuse_wrong(
            "state field 'agents_by_role'",
            agents_by_role,
            agents_by_role != expected,
            lambda *at: f"{host_expected[at]}, the agents by role",
        )
    _check_times(sim, saved)
    faults = to_numpy(saved["faults"])
    rows = sim.num_envs * (sim.schema.agents_shape or (1,))[0]
    wrong = (faults != NO_FAULT) & (faults >> np.uint64(32) >= rows)
    refuse_wrong("'faults'", faults, wrong, lambda row: f"a fault of {rows} rows or agents, or {NO_FAULT}", "kind")


def _check_times(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Raises StateError for episodes that began in the future, or are longer than the environment's limit."""
    limit = sim.options.max_episode_steps or NO_STEP_LIMIT
    time = (saved["clock"] - saved["start"]).view(np.int32)  # -1 for an episode that awaits its reset
    lowest_time = 0 if sim.options.autoreset is AutoresetMode.SAME_STEP else -1
    note = " (-1 awaits its reset)" if lowest_time else ", as SAME_STEP has no episode that awaits its reset"
    allowed = f"{lowest_time} to {limit - 1} steps since the start of an episode{note}"
    refuse_wrong("'clock' less 'start'", time, (time < lowest_time) | (time >= limit), lambda row: allowed)
    if "last_time" in saved:
        last = saved["last_time"]
        refuse_wrong("'last_time'", last, (last < 0) | (last > limit), lambda row: f"0 to {limit} steps of an episode")
