"""The functions of a one-agent environment for kernels in CUDA C++ that play it: loaded from disk, or compiled from Python.

`extern_functions` compiles them and imports Numba; a process that finds them on disk imports no compiler.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from gpuvec.engine.backends.cache.key import fingerprint, frozen_environment
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.layout.buffer_layout import make_layout
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import SingleAgentSchema, make_schema
from gpuvec.spec import SingleAgentEnv


class LinkedFunctions(NamedTuple):
    """What a kernel is linked with, and what its source must know of it."""

    code: tuple[bytes, ...]  # LTO-IR
    members: tuple[str, ...]  # of the batch
    constants: dict[str, int | str]  # numbers of fields of the state that are floats, and of others


def link_env_functions(env: SingleAgentEnv, options: KernelOptions, cc: tuple[int, int]) -> LinkedFunctions:
    """`env_load`, `env_observe`, `env_step` and `env_store` for compute capability `cc`."""
    return _linked(frozen_environment(env), options, cc, source_text(env, options.cuda_c))


@lru_cache(maxsize=8)
def _linked(env: SingleAgentEnv, options: KernelOptions, cc: tuple[int, int], source: str) -> LinkedFunctions:
    """As `link_env_functions`; `source` is what the functions are made from beside Python."""

    def make() -> list[Binary]:
        from gpuvec.engine.backends.cuda.extern_functions import extern_functions

        made = [Binary(code, name) for name, code in extern_functions(env, options, cc).items()]
        check_source_text(env, options.cuda_c, source)
        return made

    s = make_schema(env)
    assert isinstance(s, SingleAgentSchema), "of a SingleAgentEnv"
    functions = load_or_compile(partial(fingerprint, env, options, "extern functions", cc, source), make, Binary)
    constants: dict[str, int | str] = {"NUMBERS": len(s.float_fields), "WORDS": len(s.non_float_fields)}
    return LinkedFunctions(tuple(one.code for one in functions), make_layout(env, options).batch._fields, constants)
