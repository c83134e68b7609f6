"""Reading and writing the state of an environment's rows, and all of it for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.framework import as_native
from gpuvec.vector.state_checks import check_fields, check_saved, whole_numbers


def get_state(sim: Simulation) -> dict[str, Any]:
    """{field: (E,) or (E, A) array of the device's module}: a copy of the physical state."""
    return {name: sim.field(name).copy() for name in sim.env.state._fields if name in sim.schema.fields}


def host_row(sim: Simulation, row: int) -> Any:
    """The State of one row as plain Python functions take it: arrays of NumPy, (A,), and numbers of the environment.

    Fields that a search fills are None. The host waits for the device.
    """
    s = sim.schema
    found = s.search_fields if isinstance(s, MultiAgentSchema) else ()
    known = {name: to_numpy(sim.field(name)[row])[()] for name in sim.env.state._fields if name not in found}
    return sim.env.state(**{name: known.get(name) for name in sim.env.state._fields})


def _checked(sim: Simulation, fields: Mapping[str, Any], rows: int, pool: bool = False) -> dict[str, Any]:
    """The fields as arrays of the device, (rows, ...)."""
    unit = "state of the pool" if pool else "row"
    known = sim.schema.fields
    unknown = fields.keys() - known.keys()
    if unknown or not fields:
        raise StateError(f"unknown state field(s) {sorted(unknown)}; the state of this environment has {', '.join(known)}.")
    arrays = {}
    for name, given in fields.items():
        number = known[name].dtype is np.int32
        values = given if hasattr(given, "shape") else np.asarray(given)
        if isinstance(values, np.ndarray) and values.dtype.kind not in "biuf":
            raise StateError(f"state field {name!r} must hold numbers, got an array of dtype {values.dtype}.")
        array = as_native(sim.device, values, None if number else known[name].dtype)
        allowed = [(rows, *known[name].shape), *([] if pool else [known[name].shape, ()])]
        if array.shape not in allowed:
            agents = ", one value per agent" if known[name].shape else ""
            per_row = "state of the pool" if pool else "value per environment"
            raise StateError(f"state field {name!r} must have shape {allowed[0]}, one {per_row}{agents}, got {array.shape}.")
        array = sim.device.arrays.broadcast_to(array, allowed[0])
        arrays[name] = whole_numbers(name, array, unit) if number else array
    return arrays


def _stored(sim: Simulation) -> dict[str, Any]:
    """{parameter: (E,) values} of those stored per environment."""
    return {name: sim.buffers[f"param_{name}"].tolist() for name in sim.options.per_env}


def set_state(sim: Simulation, fields: Mapping[str, Any], mask: Any) -> None:
    """Writes the given fields of the rows in `mask` (all without one). Such a row no longer awaits an automatic reset.

    Raises:
        StateError: an unknown field, a wrong shape, roles of other numbers of agents, a number outside the environment's
            `field_ranges`, or no field; nothing is written then.
    """
    n, xp = sim.num_envs, sim.device.arrays
    arrays = _checked(sim, fields, n)
    rows = xp.ones(n, bool) if mask is None else mask
    check_fields(sim, arrays, _stored(sim) if sim.env.field_ranges is not None else {}, rows)
    for name, values in arrays.items():
        target = sim.field(name)
        chosen = rows.reshape(n, *(1,) * (target.ndim - 1))
        if name == "role":
            sim.set_roles(xp.where(chosen, values, target))
        else:
            target[:] = xp.where(chosen, values, target)
    start, clock = sim.buffers["start"], sim.buffers["clock"][:1]
    start[:] = xp.where(rows & (start == clock + np.uint32(1)), clock, start)


def reset_pool(sim: Simulation, states: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """The states of a reset pool as {field: (P, ...) array of the device's module}.

    Raises:
        StateError: unknown fields, fields that no reset writes, arrays that do not have the same number of states, or numbers
            outside the environment's `field_ranges`.
    """
    if states is None:
        return {}
    if isinstance(states, str | Path):
        with np.load(states, allow_pickle=False) as file:
            states = dict(file)
    sizes = {name: len(values) for name, values in states.items()}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise StateError(f"the fields of a reset pool must hold the same number of states, at least 1; they hold {sizes}.")
    s = sim.schema
    fixed = {"role", *s.scalar_fields} if isinstance(s, MultiAgentSchema) else set()
    if fixed & states.keys():
        raise StateError(f"a reset pool cannot hold {sorted(fixed & states.keys())}, which no reset writes.")
    arrays = _checked(sim, states, next(iter(sizes.values()), 0), pool=True)
    check_fields(sim, arrays, _stored(sim), pool=True)
    return arrays


def state_dict(sim: Simulation) -> dict[str, Any]:
    """Copies of all that the next step depends on; the clock, one per block, is stored once."""
    return {name: _saved(name, sim.buffers[name]).copy() for name in sim.layout.persistent}


def _saved(name: str, array: Any) -> Any:
    """A view of what is saved of a buffer, unsigned integers as int32, which every framework holds bit for bit."""
    array = array[:1] if name == "clock" else array
    return array.view(np.int32) if array.dtype.kind == "u" else array


def load_state_dict(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Restores what `state_dict` returned.

    Raises:
        StateError: other buffers, shapes or dtypes than this environment's, or numbers that it cannot have, as roles of other
            numbers of agents; nothing is written then.
    """
    if not isinstance(saved, Mapping):
        raise StateError(f"this is no state of {sim.env.state.__module__}, but {type(saved).__name__}.")
    kept = sim.layout.persistent
    if saved.keys() != kept.keys():
        missing, extra = sorted(kept.keys() - saved.keys()), sorted(saved.keys() - kept.keys())
        raise StateError(f"this is no state of {sim.env.state.__module__}: missing {missing}, not known {extra}.")
    arrays = {name: as_native(sim.device, values) for name, values in saved.items()}
    for name, array in arrays.items():
        own = _saved(name, sim.buffers[name])
        if array.shape != own.shape or array.dtype != own.dtype:
            raise StateError(
                f"{name!r} must have shape {own.shape} and dtype {own.dtype}, got {array.shape} and {array.dtype}."
            )
    arrays = {name: array.view(sim.buffers[name].dtype) for name, array in arrays.items()}
    _check_parameters(sim, arrays)
    check_saved(sim, arrays)
    for name, array in arrays.items():
        sim.buffers[name][:] = array


def _check_parameters(sim: Simulation, arrays: Mapping[str, Any]) -> None:
    """Refuses parameters of rows that the environment would refuse at its construction."""
    names = sim.options.per_env
    try:
        apply_params(sim.env, {name: arrays[f"param_{name}"].tolist() for name in names}, names, sim.num_envs)
    except (TypeError, ValueError) as error:
        raise StateError(f"the parameters of rows in this state do not fit: {error}") from error
