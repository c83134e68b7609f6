"""The state of an environment's rows: reading and writing fields, reset pools, checkpoints and copies, with all checks.

Some fields index arrays in kernels, which do not check bounds: `check_fields` and `check_saved` are the only places where they
are checked.

Letters: E envs, A agents, P states of a reset pool, N rows, which are environments or states of a reset pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value, is_numeric
from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.buffers import NO_FAULT, NO_STEP_LIMIT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.framework import Framework
from gpuvec.vector.native_arrays import read_array

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
        assert isinstance(sim.schema, MultiAgentSchema), "only these have roles"
        role, counts = fields["role"], sim.schema.roles
        wrong = (role < 0) | (role >= len(counts))
        for number, count in enumerate(counts.values()):
            wrong |= ((role == number).sum(-1) != count)[:, None]
        wrong_rows = wrong.any(-1) if mask is None else wrong.any(-1) & mask
        allowed = ", ".join(f"{count} times {number} ({name})" for number, (name, count) in enumerate(counts.items()))
        refuse_wrong("state field 'role'", role, wrong_rows, lambda row: allowed)
    env = sim.env
    if env.field_ranges is None:
        return
    rows = list(zip(*stored.values(), strict=True)) or [()]
    ranges = {row: env.field_ranges(env.params._replace(**dict(zip(stored, row, strict=True)))) for row in dict.fromkeys(rows)}
    for name in (name for name in ranges[rows[0]] if name in fields):
        values = fields[name]
        low, high = (np.array([ranges[row][name][k] for row in rows]) for k in range(2))  # (E,), or (1,) if all rows are equal
        if pool:
            low, high = low.max(keepdims=True), high.min(keepdims=True)  # the range of all environments
        column_shape = (-1, *(1,) * (values.ndim - 1))
        # Also NaN is outside of a range.
        wrong = ~((values >= xp.asarray(low).reshape(column_shape)) & (values <= xp.asarray(high).reshape(column_shape)))
        wrong = wrong if mask is None else wrong & mask.reshape(column_shape)
        row_low, row_high = (np.broadcast_to(limit, len(values)) for limit in (low, high))

        def describe_allowed(row: int, *agent: int, low: Any = row_low, high: Any = row_high) -> str:
            return f"{low[row]} to {high[row]}"

        refuse_wrong(f"state field {name!r}", values, wrong, describe_allowed, unit)


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
    limit = sim.options.max_episode_steps or NO_STEP_LIMIT
    time = (saved["clock"] - saved["start"]).view(np.int32)  # -1 for an episode that awaits its reset
    lowest_time = 0 if sim.options.autoreset is AutoresetMode.SAME_STEP else -1
    note = " (-1 awaits its reset)" if lowest_time else ", as SAME_STEP has no episode that awaits its reset"
    allowed = f"{lowest_time} to {limit - 1} steps since the start of an episode{note}"
    refuse_wrong("'clock' less 'start'", time, (time < lowest_time) | (time >= limit), lambda row: allowed)
    if "last_time" in saved:
        last = saved["last_time"]
        refuse_wrong("'last_time'", last, (last < 0) | (last > limit), lambda row: f"0 to {limit} steps of an episode")
    faults = to_numpy(saved["faults"])
    rows = sim.num_envs * (sim.schema.agents_shape or (1,))[0]
    wrong = (faults != NO_FAULT) & (faults >> np.uint64(32) >= rows)
    refuse_wrong("'faults'", faults, wrong, lambda row: f"a fault of {rows} rows or agents, or {NO_FAULT}", "kind")


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

    Outside a pool, one state or number for all rows is allowed too.

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
    unit, xp, arrays = ("state of the pool" if pool else "row"), sim.device.arrays, dict[str, Any]()
    for name, values in fields.items():
        buffer = known[name]
        array, is_integer = _read_numbers(sim, name, values), np.dtype(buffer.dtype).kind in "iu"
        array = array if is_integer else array.astype(buffer.dtype, copy=False)
        shape = (num_rows, *buffer.shape)
        if array.shape not in ([shape] if pool else [shape, buffer.shape, ()]):
            per_agent = ", one value per agent" if buffer.shape else ""
            per_row = "state of the pool" if pool else "value per environment"
            raise StateError(f"state field {name!r} must have shape {shape}, one {per_row}{per_agent}, got {array.shape}.")
        array = xp.broadcast_to(array, shape)
        if is_integer and array.dtype != buffer.dtype and array.dtype.kind in "iuf":  # the conversion changes other numbers
            limits = np.iinfo(buffer.dtype)
            wrong = ~((array >= limits.min) & (array <= limits.max) & (array == np.floor(array)))
            allowed = f"whole numbers from {limits.min} to {limits.max}"
            refuse_wrong(f"state field {name!r}", array, wrong, lambda *at, allowed=allowed: allowed, unit)
        arrays[name] = array.astype(buffer.dtype) if is_integer else array
    return arrays


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
    xp = sim.device.arrays
    arrays = _parse_fields(sim, fields, sim.num_envs)
    rows = xp.ones(sim.num_envs, bool) if mask is None else mask
    check_fields(sim, arrays, _per_env_values(sim) if sim.env.field_ranges is not None else {}, rows)
    for name, values in arrays.items():
        field = sim.field(name)
        new_values = xp.where(rows.reshape(sim.num_envs, *(1,) * (field.ndim - 1)), values, field)
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
        path = Path(states)
        try:
            with np.load(path, allow_pickle=False) as file:
                states = dict(file)
        except Exception as error:  # a damaged file may raise anything
            raise StateError(f"{path} is no .npz file of arrays that can be read ({error}); numpy.savez writes one.") from error
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
    names = sim.options.per_env
    try:
        apply_params(sim.env, {name: arrays[f"param_{name}"].tolist() for name in names}, names, sim.num_envs)
    except (TypeError, ValueError) as error:
        raise StateError(f"the parameters of rows in this state do not fit: {error}") from error
    check_saved(sim, arrays)
    for name, array in arrays.items():
        sim.buffers[name][:] = array


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
