"""Names for the arguments and results of compiled functions, for annotations.

Numba infers the types of a compiled function's arguments from its calls. The class of many arguments is generated from the
fields of an environment, so it does not exist when the function is written. Their names here are aliases of `Any`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

# A function that Numba compiles, as `inline_function` and `device_function` return it. Its definition shows its signature.
DeviceFunction: TypeAlias = Callable[..., Any]
# A NumPy scalar type. A call of it is a cast, also in compiled code.
DType: TypeAlias = Any

# NamedTuple of buffer addresses, and `n`, the number of envs E. `Layout.batch` generates its class for each environment.
Batch: TypeAlias = Any
# NamedTuple of the scalars of a reset. `params.request_class` generates its class for each environment.
ResetRequest: TypeAlias = Any
# State of one env: the author's NamedTuple. For multi-agent environments its fields are views of arrays.
EnvState: TypeAlias = Any
# NamedTuple of the author's parameters as 32-bit scalars, and of the tables that are computed from them.
EnvParams: TypeAlias = Any
# NamedTuple of arrays that the threads of a CUDA block share. `Program.work` generates its class for each environment.
Work: TypeAlias = Any
# An observation in registers: a tuple of D float32.
Row: TypeAlias = Any
# An action as an argument of the author's functions: an int32 or a float32, or a tuple of K of them.
Action: TypeAlias = Any
# The values of a random-number stream that are in registers. Each way to read a stream has a type of its own.
RngStream: TypeAlias = Any

# The source of a rollout's actions: RANDOM or ACTION_ARRAY of `rollout_options`, or `policy(obs, key, p) -> action`.
RolloutPolicy: TypeAlias = str | FunctionType

# The interface of intrinsics. Numba and numba-cuda each have their own classes for it, without annotations.
# A module such as `numba.types` or `numba.cuda.types`.
NumbaModule: TypeAlias = Any
# A type such as `numba.types.float32`.
NumbaType: TypeAlias = Any
# Infers types: `numba.core.typing.BaseContext`.
TypingContext: TypeAlias = Any
# Generates code: `numba.core.base.BaseContext`.
TargetContext: TypeAlias = Any
# The argument types and the return type of one call.
Signature: TypeAlias = Any
# The result of a function that `@intrinsic` decorates: the signature and the code generator.
Intrinsic: TypeAlias = tuple[Signature, Callable[..., Any]]
# An array in shared memory on a GPU, in memory of the thread on a CPU.
SharedArray: TypeAlias = Any
# The result of an author's observation function: a tuple of numbers, whose types Numba infers.
Features: TypeAlias = tuple[Any, ...]
