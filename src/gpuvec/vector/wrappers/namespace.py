"""One interface to PyTorch, NumPy, CuPy and JAX, so that a wrapper is written once for all of them.

This module imports none of the frameworks: an array exists only if its framework has been imported.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gpuvec.errors import GpuvecError
from gpuvec.vector.host_copies import MODULES, framework_of, to_host


class WrapperError(GpuvecError, TypeError):
    """An environment, a space or an array that a wrapper does not support."""


class Namespace:
    """The framework and the device of an array.

    Args:
        like: the array, (...).

    Attributes:
        name: the name of the framework.
        xp: its module; the four modules agree on `where`, `sqrt`, `clip`, `cumsum`, `searchsorted` and `sum(x, axis=...)`.
        device: the framework's object for the device.

    Raises:
        WrapperError: `like` is no array of these frameworks.
    """

    def __init__(self, like: Any) -> None:
        self.name = framework_of(like)
        if not self.name:
            raise WrapperError(
                f"wrappers compute on arrays of PyTorch, NumPy, CuPy or JAX, got {type(like).__name__}: "
                "make the environment with output='torch', 'numpy', 'cupy' or 'jax'."
            )
        self.xp: Any = sys.modules[MODULES[self.name]]
        self.device: Any = getattr(like, "device", None)

    def __getstate__(self) -> tuple[str | None, Any]:
        """Returns the names of framework and device, since modules and device objects cannot be copied."""
        device: Any = self.device
        if self.name == "cupy":
            device = device.id
        elif self.name == "jax":
            device = device.platform, device.id
        return self.name, device

    def __setstate__(self, saved: tuple[str, Any]) -> None:
        self.name, self.device = saved
        self.xp = importlib.import_module(MODULES[saved[0]])
        if self.name == "cupy":
            self.device = self.xp.cuda.Device(self.device)
        elif self.name == "jax":
            platform, device_id = saved[1]
            self.device = next(device for device in sys.modules["jax"].devices(platform) if device.id == device_id)

    def asarray(self, value: Any) -> Any:
        """Returns an array of this framework on this device, with the dtype of `value`.

        Args:
            value: an array of any framework and shape (...), or a number; copied unless it is one on this device already.
        """
        if framework_of(value) != self.name:
            value = to_host(value)
        if self.name == "torch":
            with self.xp.inference_mode(False):  # since a tensor that is made in inference mode cannot be written outside of it
                tensor = value if isinstance(value, self.xp.Tensor) else self.xp.tensor(value)
                if self.device.type == "cuda" and tensor.device.type == "cpu":
                    # The copy from pinned memory is asynchronous, and torch frees that memory after the copy.
                    tensor = tensor.pin_memory()
                return tensor.to(self.device, non_blocking=True)
        current: AbstractContextManager[Any] = self.device if self.name == "cupy" else nullcontext()
        with current:
            return self.xp.asarray(value, **({"device": self.device} if self.name == "jax" else {}))

    def float32(self, value: Any) -> Any:
        """Returns an array converted to float32.

        Args:
            value: an array (...) of this framework.
        """
        return value.to(self.xp.float32) if self.name == "torch" else self.xp.asarray(value, dtype=np.float32)

    def sum_rows(self, rows: Any) -> Any:
        """Returns the sum over the first axis; NumPy adds one row after the other, which needs float64.

        Args:
            rows: an array (N, ...) of this framework.
        """
        return self.xp.sum(rows, axis=0, **({"dtype": np.float64} if self.name == "numpy" else {}))

    def assign(self, target: Any, value: Any) -> Any:
        """Writes a value to an array in place, so that captured graphs keep using its memory; in JAX creates a new array.

        Args:
            target: an array (...) of this framework.
            value: an array or number that can be broadcast to it.

        Returns:
            `target`, or in JAX the new array.
        """
        if self.name == "jax":
            return self.xp.asarray(value, dtype=target.dtype)
        target[...] = value
        return target

    def host_copy(self, array: Any) -> Any:
        """Returns a copy on the host: a NumPy array, or for torch a tensor, which `torch.load(weights_only=True)` can read.

        Args:
            array: an array (...) of this framework.
        """
        return array.detach().to("cpu", copy=True) if self.name == "torch" else np.array(to_host(array))
