"""Parameters in composed code: constants, but for those stored per env and those that a reset gives anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function, params_as_scalars
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import SCALARS, KernelOptions, named_tuple
from gpuvec.spec import Environment, SingleAgentEnv

u32 = np.uint32


def kernel_params(env: Environment) -> Any:
    """What an environment's functions get as `p`: the parameters as kernels hold them, and the tables that follow from them."""
    p = params_as_scalars(env.params)
    if isinstance(env, SingleAgentEnv) or env.tables is None:
        return p
    tables = {name: np.ascontiguousarray(table) for name, table in env.tables(env.params).items()}
    for table in tables.values():
        table.flags.writeable = False
    return named_tuple(type(p).__name__, (*p._fields, *tables))(*p, *tables.values())


def request_class(env: Environment) -> Any:
    """The NamedTuple class of what a reset asks for: which rows, which seeds, and the environment's reset options."""
    return named_tuple("Request", ("masked", "seeding", "seed", "seed_high", *env.reset_options))


def request_dtypes(env: Environment) -> tuple[Any, ...]:
    """The dtypes of a request's members."""
    return (u32, u32, u32, u32, *(SCALARS[type(getattr(env.params, k))] for k in env.reset_options))


def make_param_readers(env: Environment, options: KernelOptions, ops: MemoryOps) -> tuple[Any, Any]:
    """`params(b, e)` and `reset_params(b, e, r)`, the latter with the values of request `r`."""
    p = kernel_params(env)
    scope = {"Params": type(p), "load": ops.load} | {f"c_{k}": v for k, v in p._asdict().items()}
    scope |= {f"t_{k}": SCALARS[type(v)] for k, v in env.params._asdict().items()}
    take = {k: f"load(b.param_{k}, e, t_{k})" if k in options.per_env else f"c_{k}" for k in p._fields}
    anew = take | {k: f"r.{k}" for k in env.reset_options}
    # A parameter that is stored per env and not given anew comes as nan.
    anew |= {k: f"(r.{k} if r.{k} == r.{k} else {take[k]})" for k in env.reset_options if k in options.per_env}
    source = f"def params(b, e):\n    return Params({', '.join(take[k] for k in p._fields)})\n"
    again = f"def reset_params(b, e, r):\n    return Params({', '.join(anew[k] for k in p._fields)})\n"
    return inline_function(generate_function("params", source, **scope)), inline_function(
        generate_function("reset_params", again, **scope)
    )
