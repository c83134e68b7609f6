"""Checks of environments: `check_env` raises an error that names a fault, its place and a remedy.

No check needs a GPU. If NUMBA_ENABLE_CUDASIM=1 is set before Python starts, `check_env` also runs the CUDA kernels in Numba's
simulator; otherwise it compiles them to machine code if NVIDIA's compiler libraries are installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuvec.testing.environment_check import Check, check_env

__all__ = ["Check", "check_env"]


# Worker processes of a check import modules of this package alone, and start in half of the time without those of all checks.
def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("gpuvec.testing.environment_check"), name)
    raise AttributeError(f"module 'gpuvec.testing' has no attribute {name!r}")
