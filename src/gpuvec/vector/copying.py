"""Copies of a vector environment, by `copy` and `pickle`.

A copy is a new environment with the same arguments, into which the state of the original is loaded. Copying the attributes
one by one would not do: compiled kernels hold the addresses of buffers, so such an object would step the original.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import AuthoringError
from gpuvec.registration import find_import_path
from gpuvec.spec import Environment
from gpuvec.vector import env_state
from gpuvec.vector.native_arrays import on_stream
from gpuvec.vector.resets import Resets


class Copyable(Resets):
    """`__getstate__` and `__setstate__`: a copy has its own buffers on the same device, and continues as the original would.

    A copy does not include the arrays that steps returned, nor attributes that a user added to the object.
    """

    _constructor_arguments: dict[str, Any]  # those that no other attribute holds

    def __getstate__(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, and the state on the host, for which the host waits.

        Raises:
            gymnasium.error.ClosedEnvironmentError: the environment was closed.
        """
        self._check_usable(needs_reset=False)
        per_env = self.simulation.options.per_env
        arguments = {
            **self._constructor_arguments,
            "env": _import_path_or_env(self._constructor_arguments["env"]),
            "num_envs": self.num_envs,
            "device": str(self._device),
            "per_env": per_env,
            **self._env.params._asdict(),
            **{name: self._stored_values(name) for name in per_env},
        }
        with on_stream(self._device, self._stream()):
            simulation = _simulation_state(self.simulation, self._was_reset)
        random = deepcopy(self._np_random), self._np_random_seed  # `copy.copy` would share the generator
        return {"arguments": arguments, "simulation": simulation, "seed": self._seed, "random": random, "spec": self.spec}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["arguments"])  # type: ignore[misc]  # `copy` and `pickle` call this on a new, empty object
        with on_stream(self._device, self._stream()):
            _restore(self.simulation, saved["simulation"])
        self._was_reset, self._seed = saved["simulation"]["buffers"] is not None, saved["seed"]
        (self._np_random, self._np_random_seed), self.spec = saved["random"], saved["spec"]


def _simulation_state(sim: Simulation, was_reset: bool) -> dict[str, Any]:
    """The contents of the buffers that a copy needs, as NumPy arrays; before the first reset only the reset pool."""
    pool = {name: to_numpy(sim.pool_field(name)).copy() for name in sim.options.pool}
    buffers = {name: to_numpy(array) for name, array in env_state.state_dict(sim).items()} if was_reset else None
    return {"pool": pool, "buffers": buffers}


def _restore(sim: Simulation, saved: dict[str, Any]) -> None:
    """Loads the result of `_simulation_state` into a new simulation with the same arguments."""
    if saved["pool"]:
        sim.set_reset_pool(env_state.reset_pool(sim, saved["pool"]))
    if saved["buffers"] is not None:
        env_state.load_state_dict(sim, saved["buffers"])


def _import_path_or_env(env: Environment | str) -> Environment | str:
    """The import path of an environment, by which other processes find it; the object itself if it has none."""
    if isinstance(env, str):
        return env
    try:
        return find_import_path(env)
    except AuthoringError:
        return env
