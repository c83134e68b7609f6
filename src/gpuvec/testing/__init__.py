"""The gate for environments, a user's own included: `check_env` passes, or says what is wrong, where, and what to do.

Nothing in it needs a GPU. With NUMBA_ENABLE_CUDASIM=1 set before Python starts it also runs the CUDA kernels, in Numba's
simulator; without, it compiles them to machine code where NVIDIA's compiler libraries are installed.
"""

from gpuvec.testing.environment_check import Check, check_env

__all__ = ["Check", "check_env"]
