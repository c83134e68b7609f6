"""Names for what compiled functions take and return, for annotations.

Numba infers the types of a compiled function's arguments from its calls. Many of them have no class that exists before an
environment is known, since their fields follow the author's fields: such a name is an alias of `Any`, and says what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

# A function that Numba compiles: `inline_function` and `device_function` return it. Its signature is written where it is made.
DeviceFunction: TypeAlias = Callable[..., Any]
# A NumPy scalar type: calling it casts, also in compiled code.
DType: TypeAlias = Any

# NamedTuple of buffer addresses, and `n`, the number of envs E. `Layout.batch` is its class, made for each environment.
Batch: TypeAlias = Any
# NamedTuple of a reset's scalars. `params.request_class` makes its class for each environment.
ResetRequest: TypeAlias = Any
# State of one env: the author's NamedTuple, for many agents one whose fields are views of arrays.
EnvState: TypeAlias = Any
# NamedTuple of the author's parameters as scalars of 32 bits, and of the tables that follow from them.
EnvParams: TypeAlias = Any
# NamedTuple of arrays that the threads of a CUDA block share. `Program.work` is its class, made for each environment.
Work: TypeAlias = Any
# An observation in registers: tuple of D float32.
Row: TypeAlias = Any
# An action as the author's functions take it: int32 or float32, or a tuple of K of them.
Action: TypeAlias = Any
# What is kept in registers of a row's random-number stream; each of the ways to read it has a type of its own.
RngStream: TypeAlias = Any

# Who chooses the actions of a rollout: RANDOM or GIVEN of `rollout_options`, or `policy(obs, key, p) -> action`.
RolloutPolicy: TypeAlias = str | FunctionType

# The interface of intrinsics, for which Numba and numba-cuda each have classes of their own, without annotations.
NumbaModule: TypeAlias = Any  # such as `numba.types` or `numba.cuda.types`
NumbaType: TypeAlias = Any  # such as `numba.types.float32`
TypingContext: TypeAlias = Any  # infers types
TargetContext: TypeAlias = Any  # generates code: `numba.core.base.BaseContext`
Signature: TypeAlias = Any  # argument types and return type of one call
Intrinsic: TypeAlias = tuple[Signature, Callable[..., Any]]  # what `@intrinsic` expects: the signature and the code generator
# Array in shared memory on a GPU, in memory of the thread on a CPU.
SharedArray: TypeAlias = Any
# What an author's function returns of an observation: a tuple of numbers, of types that Numba infers.
Features: TypeAlias = tuple[Any, ...]
