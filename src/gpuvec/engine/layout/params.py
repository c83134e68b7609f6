"""Parameters in kernel code: constants, except those that are stored per env and those that a reset passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.dtypes import u32
from gpuvec.engine.compiler.functions import call_source, generate_function, inline_function, params_as_scalars
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, DType, EnvParams
from gpuvec.engine.layout.buffers import SCALARS, KernelOptions, named_tuple
from gpuvec.spec import Environment, SingleAgentEnv


def kernel_params(env: Environment) -> EnvParams:
    """Returns the argument `p` of the functions of `env`: the parameters as 32-bit scalars, and the tables of `env.tables`."""
    p = params_as_scalars(env.params)
    if isinstance(env, SingleAgentEnv) or env.tables is None:
        return p
    tables = {name: np.ascontiguousarray(table) for name, table in env.tables(env.params).items()}
    for table in tables.values():
        table.flags.writeable = False
    return named_tuple(type(p).__name__, (*p._fields, *tables))(*p, *tables.values())


def request_class(env: Environment) -> Any:
    """Returns the NamedTuple class of the scalars of a reset: the rows, the seeds, and the reset options of `env`."""
    return named_tuple("Request", ("masked", "seeding", "seed", "seed_high", *env.reset_options))


def request_dtypes(env: Environment) -> tuple[DType, ...]:
    """Returns the dtypes of the members of `request_class(env)`."""
    return (u32, u32, u32, u32, *(SCALARS[type(getattr(env.params, k))] for k in env.reset_options))


def make_param_readers(
    env: Environment, options: KernelOptions, ops: MemoryOps, array_ops: ArrayOps | None = None
) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles the functions that return the parameters of an env.

    Args:
        env: the environment.
        options: the options of the kernels, of which `per_env` counts.
        ops: the operations on buffers.
        array_ops: the operations on arrays, for an environment with tables.

    Returns:
        `params(b, e)`, which returns the parameters of env e, and `reset_params(b, e, r)`, which returns them with the values
        of reset request r.
    """
    p = kernel_params(env)
    scope = {"Params": type(p), "load": ops.load} | {f"constant_{k}": v for k, v in p._asdict().items()}
    scope |= {f"dtype_{k}": SCALARS[type(v)] for k, v in env.params._asdict().items()}
    values = {k: f"load(b.param_{k}, e, dtype_{k})" if k in options.per_env else f"constant_{k}" for k in p._fields}
    for name, table in p._asdict().items():
        if array_ops is not None and isinstance(table, np.ndarray):
            scope[f"table_{name}"] = array_ops.subarray(table.shape)
            values[name] = f"table_{name}(constant_{name}, 0)"
    params_source = f"def params(b, e):\n    return {call_source('Params', [values[k] for k in p._fields])}\n"
    params = inline_function(generate_function("params", params_source, **scope))
    # A request has nan for a parameter that is stored per env and that the user did not pass.
    requested = {k: f"(r.{k} if r.{k} == r.{k} else p.{k})" if k in options.per_env else f"r.{k}" for k in env.reset_options}
    result = call_source("Params", [requested.get(k, f"p.{k}") for k in p._fields]) if requested else "p"
    reset_params_source = f"def reset_params(b, e, r):\n    p = params(b, e)\n    return {result}\n"
    reset_params = generate_function("reset_params", reset_params_source, Params=type(p), params=params)
    return params, inline_function(reset_params)
