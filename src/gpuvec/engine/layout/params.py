"""Parameters in composed code: constants, but for those stored per env and those that a reset gives anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import constants, generated, inline
from gpuvec.engine.compiler.memory_ops import Access
from gpuvec.engine.layout.buffers import SCALARS, KernelOptions, named_tuple
from gpuvec.spec import Environment, SingleAgentEnv

u32 = np.uint32


def known(env: Environment) -> Any:
    """What an environment's functions get as `p`: the parameters as kernels hold them, and the tables that follow from them."""
    p = constants(env.params)
    if isinstance(env, SingleAgentEnv) or env.tables is None:
        return p
    tables = {name: np.ascontiguousarray(table) for name, table in env.tables(env.params).items()}
    for table in tables.values():
        table.flags.writeable = False
    return named_tuple(type(p).__name__, (*p._fields, *tables))(*p, *tables.values())


def request(env: Environment) -> Any:
    """The NamedTuple class of what a reset asks for: which rows, which seeds, and the environment's reset options."""
    return named_tuple("Request", ("masked", "seeding", "seed", "seed_high", *env.reset_options))


def request_dtypes(env: Environment) -> tuple[Any, ...]:
    """The dtypes of a request's members."""
    return (u32, u32, u32, u32, *(SCALARS[type(getattr(env.params, k))] for k in env.reset_options))


def parameters(env: Environment, variant: KernelOptions, access: Access) -> tuple[Any, Any]:
    """`params(b, e)` and `reset_params(b, e, r)`, the latter with the values of request `r`."""
    p = known(env)
    scope = {"Params": type(p), "load": access.load} | {f"c_{k}": v for k, v in p._asdict().items()}
    scope |= {f"t_{k}": SCALARS[type(v)] for k, v in env.params._asdict().items()}
    take = {k: f"load(b.param_{k}, e, t_{k})" if k in variant.per_env else f"c_{k}" for k in p._fields}
    anew = take | {k: f"r.{k}" for k in env.reset_options}
    # A parameter that is stored per env and not given anew comes as nan.
    anew |= {k: f"(r.{k} if r.{k} == r.{k} else {take[k]})" for k in env.reset_options if k in variant.per_env}
    source = f"def params(b, e):\n    return Params({', '.join(take[k] for k in p._fields)})\n"
    again = f"def reset_params(b, e, r):\n    return Params({', '.join(anew[k] for k in p._fields)})\n"
    return inline(generated("params", source, **scope)), inline(generated("reset_params", again, **scope))
