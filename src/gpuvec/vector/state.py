"""Reading and writing the state of an environment's rows, and all of it for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.vector.framework import as_native


def get_state(sim: Simulation) -> dict[str, Any]:
    """{field: (E,) array of the device's module}: a copy of the physical state."""
    floats = {name: sim.buffers["state"][:, k].copy() for k, name in enumerate(sim.signature.floats)}
    others = {name: sim.buffers[f"state_{name}"].copy() for name in sim.signature.others}
    return {name: (floats | others)[name] for name in sim.env.state._fields}


def set_state(sim: Simulation, fields: Mapping[str, Any], mask: Any) -> None:
    """Writes the given fields of the rows in `mask` (all without one). Such a row no longer awaits an automatic reset.

    Raises:
        StateError: an unknown field, a wrong shape, or no field at all; nothing is written then.
    """
    names, n, xp = sim.env.state._fields, sim.num_envs, sim.device.arrays
    unknown = fields.keys() - set(names)
    if unknown or not fields:
        raise StateError(f"unknown state field(s) {sorted(unknown)}; the state of this environment has {', '.join(names)}.")
    arrays = {}
    for name, values in fields.items():
        dtype = sim.signature.others.get(name, np.float32)
        arrays[name] = as_native(sim.device, values, dtype)
        if arrays[name].shape not in ((n,), ()):
            raise StateError(
                f"state field {name!r} must have shape ({n},), one value per environment, got {arrays[name].shape}."
            )
    rows = xp.ones(n, bool) if mask is None else mask
    for name, values in arrays.items():
        if name in sim.signature.others:
            target = sim.buffers[f"state_{name}"]
        else:
            target = sim.buffers["state"][:, sim.signature.floats.index(name)]
        target[:] = xp.where(rows, values, target)
    start, clock = sim.buffers["start"], sim.buffers["clock"][:1]
    start[:] = xp.where(rows & (start == clock + np.uint32(1)), clock, start)


def state_dict(sim: Simulation) -> dict[str, Any]:
    """Copies of all that the next step depends on; the clock, one per block, is stored once."""
    return {name: _saved(name, array).copy() for name, array in sim.buffers.items()}


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
    if saved.keys() != sim.buffers.keys():
        missing, extra = sorted(sim.buffers.keys() - saved.keys()), sorted(saved.keys() - sim.buffers.keys())
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
