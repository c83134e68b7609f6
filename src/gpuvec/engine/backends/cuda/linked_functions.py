"""The functions of a one-agent environment for kernels in CUDA C++ that play it: loaded from disk, or compiled from Python.

`extern_functions` compiles them and imports Numba; a process that finds them on disk imports no compiler.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from gpuvec.engine.backends.cache.key import fingerprint, frozen_environment
from gpuvec.engine.backends.cache.store import kept
from gpuvec.engine.backends.cuda.binary import Loadable
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import Signature, layout, signature
from gpuvec.spec import SingleAgentEnv


class Linked(NamedTuple):
    """What a kernel is linked with, and what its source must know of it."""

    code: tuple[bytes, ...]  # LTO-IR
    members: tuple[str, ...]  # of the batch
    constants: dict[str, int | str]  # numbers of fields of the state that are floats, and of others


def linked(env: SingleAgentEnv, variant: KernelOptions, cc: tuple[int, int]) -> Linked:
    """`game_open`, `game_look`, `game_turn` and `game_close` for compute capability `cc`."""
    return _linked(frozen_environment(env), variant, cc, source_text(env, variant.cuda_c))


@lru_cache(maxsize=8)
def _linked(env: SingleAgentEnv, variant: KernelOptions, cc: tuple[int, int], source: str) -> Linked:
    """As `linked`; `source` is what the functions are made from beside Python."""

    def make() -> list[Loadable]:
        from gpuvec.engine.backends.cuda.extern_functions import extern_functions

        made = [Loadable(code, name) for name, code in extern_functions(env, variant, cc).items()]
        check_source_text(env, variant.cuda_c, source)
        return made

    s = signature(env)
    assert isinstance(s, Signature), "of a SingleAgentEnv"
    functions = kept(partial(fingerprint, env, variant, "extern functions", cc, source), make, Loadable)
    constants: dict[str, int | str] = {"NUMBERS": len(s.floats), "WORDS": len(s.others)}
    return Linked(tuple(one.code for one in functions), layout(env, variant).batch._fields, constants)
