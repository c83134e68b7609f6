"""What a state must hold before kernels read it: numbers that index arrays, checked where they come in and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.buffers import NO_FAULT, NO_STEP_LIMIT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import StateError
from gpuvec.spec import Environment

Allowed = Callable[..., str]  # allowed(row, agent): what may be there, in words; of whole rows allowed(row)
LONGEST = 200  # characters of what was given


def refuse_wrong(name: str, values: Any, wrong: Any, allowed: Allowed, unit: str = "row") -> None:
    """Refuses an array for its first element that is wrong.

    Args:
        name: what the array is called.
        values: the array, (N, ...).
        wrong: which elements are wrong, (N, ...) bool; (N,) for whole rows.
        allowed: what may be there, in words.
        unit: what a row is called.

    Raises:
        StateError: there is one; the message names it, its row and agent, what was given and what is allowed.
    """
    if not bool(wrong.any()):
        return
    row, *others = (int(k) for k in np.argwhere(to_numpy(wrong))[0])
    given = str(to_numpy(values)[(row, *others)].tolist())
    given = given if len(given) < LONGEST else f"{given[:LONGEST]}..."
    where = f"{unit} {row}" + (f", agent {others[0]}" if others else "")
    raise StateError(f"{name}, {where}: given {given}, allowed {allowed(row, *others)}.")


def whole_numbers(name: str, values: Any, unit: str) -> Any:
    """The values of an int field as int32.

    Raises:
        StateError: a value that is no whole number of 32 bits, which a conversion would change without a word.
    """
    if values.dtype != np.int32 and values.dtype.kind in "iuf":
        limits = np.iinfo(np.int32)
        rows = values.reshape(1) if values.ndim == 0 else values
        wrong = ~((rows >= limits.min) & (rows <= limits.max) & (rows == np.floor(rows)))
        refuse_wrong(f"state field {name!r}", rows, wrong, lambda *at: f"whole numbers from {limits.min} to {limits.max}", unit)
    return values.astype(np.int32)


def check_fields(
    sim: Simulation, fields: Mapping[str, Any], stored: Mapping[str, Sequence[Any]], mask: Any = None, pool: bool = False
) -> None:
    """Refuses roles that the environment has not, and fields outside what its `field_ranges` allow.

    Args:
        sim: the environment's buffers.
        fields: {field: (N,) or (N, A) array of the device's module}.
        stored: {parameter: (E,) values} of those stored per environment.
        mask: which rows count, (N,) bool; None for all.
        pool: whether rows are states that any environment may begin with.

    Raises:
        StateError: as said; with the field, the row, what is given and what is allowed.
    """
    unit, xp = ("state of the pool" if pool else "row"), sim.device.arrays
    if "role" in fields and isinstance(sim.schema, MultiAgentSchema):
        _check_roles(sim, fields["role"], mask)
    for name, (low, high) in _limits(sim.env, stored).items():
        if name not in fields:
            continue
        least, most = (low.max(keepdims=True), high.min(keepdims=True)) if pool else (low, high)
        values = fields[name]
        shape = (-1, *(1,) * (values.ndim - 1))
        wrong = (values < xp.asarray(least).reshape(shape)) | (values > xp.asarray(most).reshape(shape))
        wrong = wrong if mask is None else wrong & mask.reshape(shape)
        least, most = (np.broadcast_to(one, len(values)) for one in (least, most))

        def allowed(row: int, *agent: int, least: Any = least, most: Any = most) -> str:
            return f"{least[row]} to {most[row]}"

        refuse_wrong(f"state field {name!r}", values, wrong, allowed, unit)


def _limits(env: Environment, stored: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, Any]]:
    """{field: (the least values, the largest)} that the environment declares, (E,) int64; (1,) if all rows have the same."""
    if env.field_ranges is None:
        return {}
    rows = list(zip(*stored.values(), strict=True)) or [()]
    known = {row: env.field_ranges(env.params._replace(**dict(zip(stored, row, strict=True)))) for row in dict.fromkeys(rows)}
    return {name: tuple(np.array([known[row][name][k] for row in rows]) for k in (0, 1)) for name in known[rows[0]]}  # type: ignore[misc]  # two arrays


def _check_roles(sim: Simulation, role: Any, mask: Any) -> None:
    """Refuses roles, (E, A), of which one does not exist or has another number of agents."""
    assert isinstance(sim.schema, MultiAgentSchema), "only these have roles"
    counts = sim.schema.roles
    wrong = (role < 0) | (role >= len(counts))
    for number, count in enumerate(counts.values()):
        wrong |= ((role == number).sum(-1) != count)[:, None]
    rows = wrong.any(-1) if mask is None else wrong.any(-1) & mask
    said = ", ".join(f"{count} times {number} ({name})" for number, (name, count) in enumerate(counts.items()))
    refuse_wrong("state field 'role'", role, rows, lambda row: said)


def check_saved(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Refuses buffers of a saved state with which a kernel would index an array outside, or an episode could not go on.

    Args:
        sim: the environment's buffers.
        saved: {name: array of the device's module}, of the shapes and dtypes of `sim.buffers`, but for one clock of all blocks.

    Raises:
        StateError: as said; with the field, the row, what is given and what is allowed.
    """
    stored = {name: to_numpy(saved[f"param_{name}"]).tolist() for name in sim.options.per_env}
    fields = {name: sim.field_in(saved, name) for name in sim.schema.fields}
    check_fields(sim, fields, stored)
    if "role" in fields and isinstance(sim.schema, MultiAgentSchema):
        expected = sim.sort_by_role(fields["role"])
        agents_by_role = sim.field_in(saved, "agents_by_role")
        known = to_numpy(expected)
        refuse_wrong(
            "state field 'agents_by_role'",
            agents_by_role,
            agents_by_role != expected,
            lambda *at: f"{known[at]}, the agents by role",
        )
    _check_times(sim, saved)
    faults = to_numpy(saved["faults"])
    rows = sim.num_envs * (sim.schema.agents_shape or (1,))[0]
    wrong = (faults != NO_FAULT) & (faults >> np.uint64(32) >= rows)
    refuse_wrong("'faults'", faults, wrong, lambda row: f"a fault of {rows} rows or agents, or {NO_FAULT}", "kind")


def _check_times(sim: Simulation, saved: Mapping[str, Any]) -> None:
    """Refuses episodes that began in the future, or are older than the environment's limit."""
    limit = sim.options.max_episode_steps or NO_STEP_LIMIT
    time = (saved["clock"] - saved["start"]).view(np.int32)  # -1 awaits its reset
    least = 0 if sim.options.autoreset is AutoresetMode.SAME_STEP else -1
    waits = " (-1 awaits its reset)" if least else ", as SAME_STEP has no episode that awaits its reset"
    said = f"{least} to {limit - 1} steps since the start of an episode{waits}"
    refuse_wrong("'clock' less 'start'", time, (time < least) | (time >= limit), lambda row: said)
    if "last_time" in saved:
        last = saved["last_time"]
        refuse_wrong("'last_time'", last, (last < 0) | (last > limit), lambda row: f"0 to {limit} steps of an episode")
