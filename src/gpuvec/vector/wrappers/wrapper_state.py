"""The arrays that a wrapper keeps between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.errors import StateError
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers.namespace import Namespace


class WrapperState:
    """Named arrays that begin on the host and move to the framework and device of the first array that is seen.

    From then on they stay where they are: `buffers[name] = value` writes in place, so a captured graph keeps reading and
    writing the same memory. (JAX arrays cannot be written; they are replaced.)
    """

    def __init__(self, **initial: np.ndarray[Any, Any]) -> None:
        self._arrays: dict[str, Any] = initial
        self._placed, self.ns = False, Namespace(np.zeros(()))

    def place(self, like: Any) -> None:
        """Moves the arrays to where `like` lies, once."""
        if not self._placed:
            self.ns = Namespace(like)
            self._arrays = {name: self.ns.asarray(array) for name, array in self._arrays.items()}
            self._placed = True

    def __getstate__(self) -> dict[str, Any]:
        """Copies on the host, which move to the first array that a copy of the wrapper sees."""
        return {name: np.array(to_host(array)) for name, array in self._arrays.items()}

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self.__init__(**arrays)  # type: ignore[misc]  # a new object is being filled

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._arrays[name] = self.ns.assign(self._arrays[name], value)

    def clear(self, mask: Any, *names: str) -> None:
        """Zeroes the arrays in the rows of `mask`, (E,) bool, or in all rows if it is None."""
        for name in names:
            zeros = self.ns.xp.zeros_like(self[name])
            self[name] = zeros if mask is None else self.ns.xp.where(mask, zeros, self[name])

    def state_dict(self) -> dict[str, Any]:
        """Copies of all arrays on the host."""
        return {name: self.ns.saved(array) for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Writes the arrays of `state` over these.

        Raises:
            StateError: names or shapes differ.
        """
        if state.keys() != self._arrays.keys():
            raise StateError(
                f"the state holds {sorted(state)}, this wrapper keeps {sorted(self._arrays)}: load the state of an equal one."
            )
        for name, array in self._arrays.items():
            if tuple(np.shape(state[name])) != tuple(array.shape):
                raise StateError(
                    f"{name!r} has shape {tuple(np.shape(state[name]))} in the state and {tuple(array.shape)} here: "
                    "load it into a wrapper of equal num_envs, spaces and arguments."
                )
        for name in self._arrays:
            self[name] = self.ns.asarray(state[name])
