"""What differs between PyTorch, NumPy, CuPy and JAX, so that a wrapper is written once.

Nothing is imported here: whoever made an array has imported its framework.
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
    """An environment, a space or an array that a wrapper cannot serve."""


class Namespace:
    """The framework and the device of the array `like`.

    `xp` is its module; all four agree on `where`, `sqrt`, `clip`, `cumsum`, `searchsorted` and `sum(x, axis=...)`.

    Raises:
        WrapperError: `like` belongs to none of the four.
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
        """The names of framework and device: modules and handles of devices cannot be copied."""
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
            platform, number = saved[1]
            self.device = next(one for one in sys.modules["jax"].devices(platform) if one.id == number)

    def asarray(self, value: Any) -> Any:
        """`value` on this device; an array that lies there as it is, any other copied, its dtype kept."""
        if framework_of(value) != self.name:
            value = to_host(value)
        if self.name == "torch":
            tensor = value if isinstance(value, self.xp.Tensor) else self.xp.tensor(value)
            if self.device.type == "cuda" and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()  # so that the copy waits for nothing; torch frees the memory when it is made
            return tensor.to(self.device, non_blocking=True)
        current: AbstractContextManager[Any] = self.device if self.name == "cupy" else nullcontext()
        with current:
            return self.xp.asarray(value, **({"device": self.device} if self.name == "jax" else {}))

    def float32(self, value: Any) -> Any:
        """`value` with elements of float32."""
        return value.to(self.xp.float32) if self.name == "torch" else self.xp.asarray(value, dtype=np.float32)

    def sum_rows(self, rows: Any) -> Any:
        """The sum over the first axis. NumPy alone adds row by row there, so it needs a wider accumulator."""
        return self.xp.sum(rows, axis=0, **({"dtype": np.float64} if self.name == "numpy" else {}))

    def assign(self, target: Any, value: Any) -> Any:
        """`target` with `value` written into it, in place where the framework can, so that captured graphs stay true."""
        if self.name == "jax":
            return self.xp.asarray(value, dtype=target.dtype)
        target[...] = value
        return target

    def saved(self, array: Any) -> Any:
        """A copy on the host: a tensor from a tensor (`torch.load(weights_only=True)` reads it), else a NumPy array."""
        return array.detach().to("cpu", copy=True) if self.name == "torch" else np.array(to_host(array))
