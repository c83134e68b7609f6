"""Copies of a vector environment, by `copy` and `pickle`: constructed again, then given the state of the original.

Compiled kernels hold addresses of buffers, so an object whose attributes are copied one by one would step the original's.
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
from gpuvec.vector.framework import on_stream
from gpuvec.vector.stored_rollouts import Rollouts


class Copyable(Rollouts):
    """`__getstate__` and `__setstate__`: a copy has buffers of its own on the same device, and continues as the original would.

    What steps returned is not part of it, nor what a user has added to the object.
    """

    _constructor_arguments: dict[str, Any]  # arguments of the construction that no other attribute holds

    def __getstate__(self) -> dict[str, Any]:
        """How to construct it, and its state on the host, for which the host waits.

        Raises:
            gymnasium.error.ClosedEnvironmentError: it was closed.
        """
        self._check_usable(needs_reset=False)
        per_env = self.simulation.options.per_env
        made_of = {
            **self._constructor_arguments,
            "env": _place_or_env(self._constructor_arguments["env"]),
            "num_envs": self.num_envs,
            "device": str(self._device),
            "per_env": per_env,
            **self._env.params._asdict(),
            **{name: self._stored(name) for name in per_env},
        }
        with on_stream(self._device, self._stream()):
            simulation = _saved(self.simulation, self._was_reset)
        random = deepcopy(self._np_random), self._np_random_seed  # `copy.copy` would share the generator
        return {"made_of": made_of, "simulation": simulation, "seed": self._seed, "random": random, "spec": self.spec}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["made_of"])  # type: ignore[misc]  # a new object is being filled
        with on_stream(self._device, self._stream()):
            _restore(self.simulation, saved["simulation"])
        self._was_reset, self._seed = saved["simulation"]["buffers"] is not None, saved["seed"]
        (self._np_random, self._np_random_seed), self.spec = saved["random"], saved["spec"]


def _saved(sim: Simulation, begun: bool) -> dict[str, Any]:
    """What a copy takes over of the buffers, as NumPy arrays; before the first reset, which is `begun`, the pool alone."""
    pool = {name: to_numpy(sim.pool_field(name)).copy() for name in sim.options.pool}
    buffers = {name: to_numpy(array) for name, array in env_state.state_dict(sim).items()} if begun else None
    return {"pool": pool, "buffers": buffers}


def _restore(sim: Simulation, saved: dict[str, Any]) -> None:
    """Gives a new simulation of the same construction what `_saved` took."""
    if saved["pool"]:
        sim.set_reset_pool(env_state.reset_pool(sim, saved["pool"]))
    if saved["buffers"] is not None:
        env_state.load_state_dict(sim, saved["buffers"])


def _place_or_env(env: Environment | str) -> Environment | str:
    """The place of an environment as "module:NAME", by which every process finds it; itself where it is bound to no name."""
    if isinstance(env, str):
        return env
    try:
        return find_import_path(env)
    except AuthoringError:
        return env
