"""`ToNumpy`: an environment on any device with NumPy actions and NumPy results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuvec.vector.host_copies import copies_on_host, framework_of
from gpuvec.vector.wrappers.base import Namespace, Out, Step, Wrapper, write_to_out


class ToNumpy(Wrapper):
    """Takes NumPy actions and returns NumPy arrays, also inside infos, for code made for Gymnasium's own environments.

    Every step waits for the device and copies from it; arrays of a CPU are returned as views. Values that are no arrays stay
    as they are. Wrappers that compute on the device belong inside this one. The arrays of `out` are NumPy arrays.
    """

    output = "numpy"
    _namespace: Namespace | None = None  # of the environment's arrays; None until the first reset

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options.
        """
        obs, info = super().reset(seed=seed, options=options)
        return self._to_numpy(obs), self._to_numpy(info)

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment with the actions, which are moved to the device.

        Args:
            actions: the actions of all rows, usually a NumPy array.
            out: NumPy arrays to which the results are copied.
        """
        if self._namespace is not None:
            actions = _replace_arrays(actions, self._namespace.asarray)
        obs, reward, terminated, truncated, info = self._to_numpy(super().step(actions))
        if "final_obs" in info:
            info["final_obs"] = write_to_out(info["final_obs"], "final_obs", out)
            info["_final_obs"] = write_to_out(info["_final_obs"], "final_mask", out)
        return (
            write_to_out(obs, "obs", out),
            write_to_out(reward, "reward", out),
            write_to_out(terminated, "terminated", out),
            write_to_out(truncated, "truncated", out),
            info,
        )

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the environment's state as NumPy arrays, {field: (E,) or (E, A)}."""
        state: dict[str, np.ndarray[Any, Any]] = self._to_numpy(self.env.get_state())  # type: ignore[attr-defined]  # gpuvec's have it
        return state

    def _to_numpy(self, value: Any) -> Any:
        """`value` with all its arrays copied to the host; waits for the device once."""
        arrays: list[Any] = []
        _replace_arrays(value, arrays.append)
        if arrays:
            self._namespace = self._namespace or Namespace(arrays[0])
        copies = iter(copies_on_host(arrays))
        return _replace_arrays(value, lambda array: next(copies))


def _replace_arrays(value: Any, replace: Callable[[Any], Any]) -> Any:
    """`value` with `replace(array)` for each array in its mappings and tuples, in their order."""
    if isinstance(value, Mapping):
        return {name: _replace_arrays(element, replace) for name, element in value.items()}
    if isinstance(value, tuple):
        return tuple(_replace_arrays(element, replace) for element in value)
    return value if framework_of(value) is None else replace(value)
