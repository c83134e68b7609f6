"""Copies of a vector environment, by `copy` and `pickle`.

A copy is a new environment with the same arguments, into which the state of the original is loaded. Copying the attributes
one by one would not do: compiled kernels hold the addresses of buffers, so such an object would step the original.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import AuthoringError
from gpuvec.registration import find_import_path
from gpuvec.spec import Environment
from gpuvec.vector import env_state


def simulation_state(sim: Simulation, was_reset: bool) -> dict[str, Any]:
    """The contents of the buffers that a copy needs, as NumPy arrays; before the first reset only the reset pool."""
    pool = {name: to_numpy(sim.pool_field(name)).copy() for name in sim.options.pool}
    buffers = {name: to_numpy(array) for name, array in env_state.state_dict(sim).items()} if was_reset else None
    return {"pool": pool, "buffers": buffers}


def restore(sim: Simulation, saved: dict[str, Any]) -> None:
    """Loads the result of `simulation_state` into a new simulation with the same arguments."""
    if saved["pool"]:
        sim.set_reset_pool(env_state.reset_pool(sim, saved["pool"]))
    if saved["buffers"] is not None:
        env_state.load_state_dict(sim, saved["buffers"])


def import_path_or_env(env: Environment | str) -> Environment | str:
    """The import path of an environment, by which other processes find it; the object itself if it has none."""
    if isinstance(env, str):
        return env
    try:
        return find_import_path(env)
    except AuthoringError:
        return env
