"""Checks of environments: `check_env` raises an error that names a fault, its place and a remedy.

No check needs a GPU. If NUMBA_ENABLE_CUDASIM=1 is set before Python starts, `check_env` also runs the CUDA kernels in Numba's
simulator; otherwise it compiles them to machine code if NVIDIA's compiler libraries are installed.
"""

from gpuvec.testing.environment_check import Check, check_env

__all__ = ["Check", "check_env"]
