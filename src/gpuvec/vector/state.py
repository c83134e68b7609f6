"""Reading and writing the state of an environment's rows, and all of it for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.engine.signature import Crowd
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.vector.framework import as_native


def get_state(sim: Simulation) -> dict[str, Any]:
    """{field: (E,) or (E, A) array of the device's module}: a copy of the physical state."""
    return {name: sim.field(name).copy() for name in sim.env.state._fields if name in sim.signature.fields}


def _checked(sim: Simulation, fields: Mapping[str, Any], rows: int, per_row: str, one_for_all: bool) -> dict[str, Any]:
    """The fields as arrays of the device, (rows, ...)."""
    known = sim.signature.fields
    unknown = fields.keys() - known.keys()
    if unknown or not fields:
        raise StateError(f"unknown state field(s) {sorted(unknown)}; the state of this environment has {', '.join(known)}.")
    arrays = {}
    for name, values in fields.items():
        arrays[name] = array = as_native(sim.device, values, known[name].dtype)
        allowed = [(rows, *known[name].shape), *([known[name].shape, ()] if one_for_all else [])]
        if array.shape not in allowed:
            agents = ", one value per agent" if known[name].shape else ""
            raise StateError(f"state field {name!r} must have shape {allowed[0]}, one {per_row}{agents}, got {array.shape}.")
    return arrays


def set_state(sim: Simulation, fields: Mapping[str, Any], mask: Any) -> None:
    """Writes the given fields of the rows in `mask` (all without one). Such a row no longer awaits an automatic reset.

    Raises:
        StateError: an unknown field, a wrong shape, roles of other numbers of agents, or no field; nothing is written then.
    """
    n, xp = sim.num_envs, sim.device.arrays
    arrays = _checked(sim, fields, n, "value per environment", one_for_all=True)
    rows = xp.ones(n, bool) if mask is None else mask
    if "role" in arrays:
        arrays["role"] = _roles(sim, arrays["role"])
    for name, values in arrays.items():
        target = sim.field(name)
        chosen = rows.reshape(n, *(1,) * (target.ndim - 1))
        if name == "role":
            sim.set_roles(xp.where(chosen, values, target))
        else:
            target[:] = xp.where(chosen, values, target)
    start, clock = sim.buffers["start"], sim.buffers["clock"][:1]
    start[:] = xp.where(rows & (start == clock + np.uint32(1)), clock, start)


def _roles(sim: Simulation, role: Any) -> Any:
    """The roles, if each has its number of agents."""
    assert isinstance(sim.signature, Crowd), "only these have roles"
    counts = sim.signature.roles
    for number, (name, count) in enumerate(counts.items()):
        given = (role == number).sum(-1)
        if not bool((given == count).all()):
            raise StateError(
                f"roles must hold {', '.join(f'{c} times {k} ({n})' for k, (n, c) in enumerate(counts.items()))}; "
                f"an environment was given another number of {name}."
            )
    return role


def reset_pool(sim: Simulation, states: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """The states of a reset pool as {field: (P, ...) array of the device's module}.

    Raises:
        StateError: unknown fields, fields that no reset writes, or arrays that do not have the same number of states.
    """
    if states is None:
        return {}
    if isinstance(states, str | Path):
        with np.load(states, allow_pickle=False) as file:
            states = dict(file)
    sizes = {name: len(values) for name, values in states.items()}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise StateError(f"the fields of a reset pool must hold the same number of states, at least 1; they hold {sizes}.")
    s = sim.signature
    fixed = {"role", *s.scalars} if isinstance(s, Crowd) else set()
    if fixed & states.keys():
        raise StateError(f"a reset pool cannot hold {sorted(fixed & states.keys())}, which no reset writes.")
    return _checked(sim, states, next(iter(sizes.values()), 0), "state of the pool", one_for_all=False)


def state_dict(sim: Simulation) -> dict[str, Any]:
    """Copies of all that the next step depends on; the clock, one per block, is stored once."""
    return {name: _saved(name, sim.buffers[name]).copy() for name in sim.layout.kept}


def _saved(name: str, array: Any) -> Any:
    """A view of what is saved of a buffer, unsigned integers as int32, which every framework holds bit for bit."""
    array = array[:1] if name == "clock" else array
    return array.view(np.int32) if array.dtype.kind == "u" else array


def load_state_dict(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Restores what `state_dict` returned.

    Raises:
        StateError: other buffers, shapes or dtypes than this environment's; nothing is written then.
    """
    if not isinstance(saved, Mapping):
        raise StateError(f"this is no state of {sim.env.state.__module__}, but {type(saved).__name__}.")
    kept = sim.layout.kept
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
    for name, array in arrays.items():
        sim.buffers[name][:] = array.view(sim.buffers[name].dtype)
