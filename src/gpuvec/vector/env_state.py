"""The state of an environment's rows: reading and writing fields, reset pools, and complete states for checkpoints.

Letters: E envs, A agents, P states of a reset pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value, is_numeric
from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.native_arrays import read_array
from gpuvec.vector.state_checks import check_fields, check_saved, has_roles, to_integer


def get_state(sim: Simulation) -> dict[str, Any]:
    """Returns a copy of the physical state, {field: (E,) or (E, A) array of the device's module}.

    Args:
        sim: the simulation.
    """
    return {name: sim.field(name).copy() for name in sim.env.state._fields if name in sim.schema.fields}


def host_row(sim: Simulation, row: int) -> Any:
    """Returns the State of one row with NumPy arrays (A,) and scalars, for plain Python functions; waits for the device.

    Args:
        sim: the simulation.
        row: the index of the row; fields that a neighbor search fills are None.
    """
    search_fields = sim.schema.search_fields if isinstance(sim.schema, MultiAgentSchema) else ()
    stored_fields = (name for name in sim.env.state._fields if name not in search_fields)
    values = {name: to_numpy(sim.field(name)[row])[()] for name in stored_fields}
    return sim.env.state(**{name: values.get(name) for name in sim.env.state._fields})


def _parse_fields(sim: Simulation, fields: Mapping[str, Any], num_rows: int, pool: bool = False) -> dict[str, Any]:
    """Fields from a user as arrays of the device with the dtypes and shapes of the state, (num_rows, ...).

    Raises:
        StateError: no field, an unknown one, or values of a wrong shape or type.
    """
    known = sim.schema.fields
    if not isinstance(fields, Mapping):
        raise StateError(
            f"states must be a dict {{field: array}} with fields of {', '.join(known)}; got {describe_value(fields)}."
        )
    unknown = [name for name in fields if name not in known]
    if "role" in unknown and isinstance(sim.schema, MultiAgentSchema) and sim.schema.role_schemas:
        raise StateError(
            "the roles of this environment are fixed, as each has spaces of its own: the agents of a role are consecutive, in "
            f"the order {', '.join(sim.schema.roles)}. Remove 'role'; parameters determine the number of agents of each role."
        )
    if unknown or not fields:
        raise StateError(
            f"unknown state field(s) {sorted(map(str, unknown))}; the state of this environment has {', '.join(known)}."
        )
    return {name: _parse_field(sim, name, values, num_rows, pool) for name, values in fields.items()}


def _read_numbers(sim: Simulation, name: str, values: Any) -> Any:
    """Returns the numbers of a field as an array of the device.

    Raises:
        TypeError: they cannot be read, or are none that NumPy and CuPy both have.
    """
    try:
        array = read_array(sim.device, values)
    except TypeError as error:
        raise TypeError(f"state field {name!r}: {error}") from error
    if not is_numeric(array.dtype) or array.dtype.itemsize > 8:
        raise TypeError(
            f"state field {name!r}: it must hold bool, integers or floats of at most 64 bits, got an array "
            f"of dtype {array.dtype}"
        )
    return sim.device.arrays.asarray(array, order="C")


def _parse_field(sim: Simulation, name: str, values: Any, num_rows: int, pool: bool) -> Any:
    """One field of `_parse_fields`; outside a pool, one state or number for all rows is allowed too."""
    buffer = sim.schema.fields[name]
    is_integer = np.dtype(buffer.dtype).kind in "iu"
    array = _read_numbers(sim, name, values)
    array = array if is_integer else array.astype(buffer.dtype, copy=False)
    shape = (num_rows, *buffer.shape)
    if array.shape not in ([shape] if pool else [shape, buffer.shape, ()]):
        per_agent = ", one value per agent" if buffer.shape else ""
        per_row = "state of the pool" if pool else "value per environment"
        raise StateError(f"state field {name!r} must have shape {shape}, one {per_row}{per_agent}, got {array.shape}.")
    array = sim.device.arrays.broadcast_to(array, shape)
    return to_integer(name, array, buffer.dtype, "state of the pool" if pool else "row") if is_integer else array


def _read_pool(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file.

    Raises:
        StateError: there is no such file, or it is no .npz file of arrays without pickles.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # a damaged file may raise anything
        raise StateError(f"{path} is no .npz file of arrays that can be read ({error}); numpy.savez writes one.") from error


def _per_env_values(sim: Simulation) -> dict[str, Any]:
    """{parameter: (E,) values} of the parameters that are stored per environment."""
    return {name: sim.buffers[f"param_{name}"].tolist() for name in sim.options.per_env}


def set_state(sim: Simulation, fields: Mapping[str, Any], mask: Any) -> None:
    """Writes fields of the physical state; a row that awaits its automatic reset continues its episode instead.

    Args:
        sim: the simulation.
        fields: {field: (E,) or (E, A) array, or one value for all rows}.
        mask: the rows to write, (E,) bool on the device; None for all.

    Raises:
        StateError: no field, an unknown one, a wrong shape, roles with other numbers of agents, or a number outside the
            environment's `field_ranges`; nothing is written then.
    """
    num_envs, xp = sim.num_envs, sim.device.arrays
    arrays = _parse_fields(sim, fields, num_envs)
    rows = xp.ones(num_envs, bool) if mask is None else mask
    check_fields(sim, arrays, _per_env_values(sim) if sim.env.field_ranges is not None else {}, rows)
    for name, values in arrays.items():
        field = sim.field(name)
        new_values = xp.where(rows.reshape(num_envs, *(1,) * (field.ndim - 1)), values, field)
        if name == "role" and has_roles(sim):
            sim.set_roles(new_values)
        else:
            field[:] = new_values
    start, clock = sim.buffers["start"], sim.buffers["clock"][:1]
    awaits_reset = start == clock + np.uint32(1)
    start[:] = xp.where(rows & awaits_reset, clock, start)


def reset_pool(sim: Simulation, states: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """Returns the states of a reset pool as {field: (P, ...) array of the device's module}.

    Args:
        sim: the simulation.
        states: {field: (P,) or (P, A) array}, the path of an .npz file with such arrays, or None for no pool.

    Raises:
        StateError: unknown fields, fields that no reset writes, arrays with different numbers of states, or numbers outside
            the environment's `field_ranges`.
    """
    if states is None:
        return {}
    if isinstance(states, str | Path):
        states = _read_pool(Path(states))
    if not isinstance(states, Mapping):
        raise StateError(
            f"a reset pool must be a dict {{field: array}}, the path of an .npz file, or None; got {describe_value(states)}."
        )
    shapes = {name: _read_numbers(sim, name, values).shape for name, values in states.items()}
    sizes = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise StateError(f"the fields of a reset pool must hold the same number of states, at least 1; they hold {sizes}.")
    if "role" in states and has_roles(sim):
        raise StateError("a reset pool cannot hold ['role'], which no reset writes.")
    arrays = _parse_fields(sim, states, next(iter(sizes.values()), 0), pool=True)
    check_fields(sim, arrays, _per_env_values(sim), pool=True)
    return arrays


def set_row_streams(sim: Simulation, words: NDArray[np.uint32]) -> None:
    """Makes the next reset of all rows without a seed begin the first episode of new random-number streams.

    Args:
        sim: the simulation.
        words: (E, 3): the lower and the upper word of the seed of each row, and the number of the row in its stream.
    """
    xp, rng_streams = sim.device.arrays, sim.buffers["rng_streams"]
    seed_low, seed_high, row = xp.asarray(words).T
    # A reset without a seed decrements the origin, and the episode is the clock minus the origin.
    for column, values in enumerate((seed_low, seed_high, row, sim.buffers["clock"][:1] + np.uint32(1))):
        rng_streams[:, column] = values
    sim.buffers["shared"][:] = 0  # the rows have no stream in common


def state_dict(sim: Simulation) -> dict[str, Any]:
    """Returns copies of all buffers that the next step depends on, {name: array of the device's module}.

    Args:
        sim: the simulation.
    """
    return {name: _saved_view(name, sim.buffers[name]).copy() for name in sim.layout.persistent}


def _saved_view(name: str, array: Any) -> Any:
    """The part of a buffer that is saved, with large unsigned integers as int32, which every framework supports."""
    array = array[:1] if name == "clock" else array  # every block has a copy of the clock
    return array.view(np.int32) if array.dtype.kind == "u" and array.itemsize > 1 else array


def load_state_dict(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Restores the buffers from the result of `state_dict`.

    Args:
        sim: the simulation.
        saved: {name: array of any framework}.

    Raises:
        StateError: other buffers, shapes or dtypes than this environment's, or numbers that it cannot have, such as roles with
            other numbers of agents; nothing is written then.
    """
    if not isinstance(saved, Mapping):
        raise StateError(f"the state of {sim.env.state.__module__} must be a mapping, got {type(saved).__name__}.")
    persistent = sim.layout.persistent
    if saved.keys() != persistent.keys():
        missing, extra = sorted(persistent.keys() - saved.keys()), sorted(map(str, saved.keys() - persistent.keys()))
        raise StateError(f"the buffers are no state of {sim.env.state.__module__}: missing {missing}, not known {extra}.")
    arrays = {name: _read_numbers(sim, name, values) for name, values in saved.items()}
    for name, array in arrays.items():
        expected = _saved_view(name, sim.buffers[name])
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise StateError(
                f"{name!r} must have shape {expected.shape} and dtype {expected.dtype}, got {array.shape} and {array.dtype}."
            )
    arrays = {name: array.view(sim.buffers[name].dtype) for name, array in arrays.items()}
    _check_parameters(sim, arrays)
    check_saved(sim, arrays)
    for name, array in arrays.items():
        sim.buffers[name][:] = array


def _check_parameters(sim: Simulation, arrays: Mapping[str, Any]) -> None:
    """Raises StateError for stored parameter values that the environment would refuse at its construction."""
    names = sim.options.per_env
    try:
        apply_params(sim.env, {name: arrays[f"param_{name}"].tolist() for name in names}, names, sim.num_envs)
    except (TypeError, ValueError) as error:
        raise StateError(f"the parameters of rows in this state do not fit: {error}") from error
