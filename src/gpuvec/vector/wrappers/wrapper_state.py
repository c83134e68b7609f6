"""The arrays that a wrapper keeps between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.declaration_checks import describe_value, is_numeric
from gpuvec.engine.backends.device import Device
from gpuvec.errors import StateError
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.native_arrays import read_array
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

    def read_state(self, state: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the arrays in the result of `state_dict`, which `write_state` takes.

        Args:
            state: {name: array}.

        Raises:
            StateError: other names, shapes or types, or numbers that these arrays cannot hold.
            TypeError: an object that is no array.
        """
        if state.keys() != self._arrays.keys():
            raise StateError(
                f"the state holds {list(state)}, this wrapper keeps {list(self._arrays)}: load the state of an equal one."
            )
        arrays = {name: read_array(Device("cpu"), value) for name, value in state.items()}
        for name, own in self.__getstate__().items():
            array = arrays[name]
            if array.shape != own.shape:
                raise StateError(
                    f"{name!r} has shape {array.shape} in the state and {own.shape} here: load it into a wrapper of equal "
                    "num_envs, spaces and arguments."
                )
            is_number = is_numeric(array.dtype) and np.can_cast(array.dtype, own.dtype, "same_kind")
            with np.errstate(over="ignore"):
                arrays[name] = array.astype(own.dtype) if is_number else own
            same = np.isfinite if own.dtype.kind == "f" else np.asarray
            if not is_number or not np.array_equal(same(array), same(arrays[name])):
                raise StateError(f"{name!r} must hold numbers of {own.dtype}, got {describe_value(state[name])}.")
        return arrays

    def write_state(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Writes what `read_state` returned to the arrays.

        Args:
            arrays: {name: array}.
        """
        for name, array in arrays.items():
            self[name] = self.ns.asarray(array)
