"""NumPy outside, the device inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuvec.vector.host_copies import copies_on_host, framework_of
from gpuvec.vector.wrappers.base import Out, Step, Wrapper, write_to_out
from gpuvec.vector.wrappers.namespace import Namespace


class ToNumpy(Wrapper):
    """Takes NumPy actions and returns NumPy arrays, in infos at any depth too, for code made for Gymnasium's own environments.

    Every step waits for the device and copies from it; arrays of a CPU are views. What is no array stays as it is. Wrappers
    that compute on the device belong inside this one. Arrays of `out` are NumPy arrays here, and are copied to.
    """

    output = "numpy"
    _inner: Namespace | None = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets."""
        obs, info = super().reset(seed=seed, options=options)
        return self._to_numpy(obs), self._to_numpy(info)

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps with the actions brought to the device."""
        if self._inner is not None and framework_of(actions) is not None:
            actions = self._inner.asarray(actions)
        obs, reward, terminated, truncated, info = self._to_numpy(super().step(actions))
        for name in ("final_obs", "_final_obs"):
            if name in info:
                info[name] = write_to_out(info[name], name, out)
        return (
            write_to_out(obs, "obs", out),
            write_to_out(reward, "reward", out),
            write_to_out(terminated, "terminated", out),
            write_to_out(truncated, "truncated", out),
            info,
        )

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """The environment's state as NumPy arrays."""
        state: dict[str, np.ndarray[Any, Any]] = self._to_numpy(self.env.get_state())  # type: ignore[attr-defined]  # gpuvec's have it
        return state

    def _to_numpy(self, value: Any) -> Any:
        """`value` with all its arrays brought to the host, by one wait."""
        arrays: list[Any] = []
        _replace_arrays(value, arrays.append)
        if arrays:
            self._inner = self._inner or Namespace(arrays[0])
        copies = iter(copies_on_host(arrays))
        return _replace_arrays(value, lambda array: next(copies))


def _replace_arrays(value: Any, replace: Callable[[Any], Any]) -> Any:
    """`value` with `replace(array)` for each array within its mappings and tuples, in their order."""
    if isinstance(value, Mapping):
        return {name: _replace_arrays(one, replace) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_replace_arrays(one, replace) for one in value)
    return value if framework_of(value) is None else replace(value)
