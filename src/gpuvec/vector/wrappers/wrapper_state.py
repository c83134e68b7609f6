"""The arrays that a wrapper keeps between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.errors import StateError
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers.namespace import Namespace


class WrapperState:
    """Named arrays on the host, which move once to the framework and device of the environment's arrays.

    From then on `buffers[name] = value` writes in place, so that a captured graph reads and writes the same memory. JAX
    arrays cannot be written; they are replaced.

    Args:
        initial: {name: array (...)}.

    Attributes:
        ns: the namespace of the arrays.
    """

    def __init__(self, **initial: np.ndarray[Any, Any]) -> None:
        self._arrays: dict[str, Any] = initial
        self._placed, self.ns = False, Namespace(np.zeros(()))

    def place(self, like: Any) -> None:
        """Moves the arrays to the framework and device of an array; later calls do nothing.

        Args:
            like: that array, (...).
        """
        if not self._placed:
            self.ns = Namespace(like)
            self._arrays = {name: self.ns.asarray(array) for name, array in self._arrays.items()}
            self._placed = True

    def __getstate__(self) -> dict[str, Any]:
        """Returns copies on the host; in a copy of the wrapper, `place` moves them again."""
        return {name: np.array(to_host(array)) for name, array in self._arrays.items()}

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self.__init__(**arrays)  # type: ignore[misc]  # `copy` and `pickle` call this on a new, empty object

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._arrays[name] = self.ns.assign(self._arrays[name], value)

    def clear(self, mask: Any, *names: str) -> None:
        """Sets rows of some arrays to zero.

        Args:
            mask: the rows, (E,) bool; None for all.
            names: the names of the arrays, which are (E,).
        """
        for name in names:
            zeros = self.ns.xp.zeros_like(self[name])
            self[name] = zeros if mask is None else self.ns.xp.where(mask, zeros, self[name])

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all arrays on the host."""
        return {name: self.ns.host_copy(array) for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Writes the result of `state_dict` to the arrays.

        Args:
            state: {name: array}.

        Raises:
            StateError: other names or shapes.
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
