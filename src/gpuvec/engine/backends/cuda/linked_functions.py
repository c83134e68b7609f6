"""The functions of an environment with one agent for kernels in CUDA C++, from disk or compiled from Python.

`kernels.extern_functions` compiles them and imports Numba. A process that loads them from disk imports no compiler.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from gpuvec.engine.backends.cache.key import fingerprint, frozen_spec
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.schema import SingleAgentSchema


class LinkedFunctions(NamedTuple):
    """The functions that a kernel is linked with, and what its source needs for calling them.

    Attributes:
        code: their LTO-IR.
        members: names of the members of the environment's batch.
        constants: the macros NUM_FLOAT_FIELDS and NUM_INT_FIELDS, which count the fields of the state.
    """

    code: tuple[bytes, ...]
    members: tuple[str, ...]
    constants: dict[str, int | str]


def link_env_functions(spec: KernelSpec, cc: tuple[int, int], has_shared_envs: bool = False) -> LinkedFunctions:
    """Loads or compiles `env_load`, `env_observe`, `env_step` and `env_store`, which `kernels` describes.

    Args:
        spec: what they are compiled from.
        cc: the compute capability.
        has_shared_envs: whether several lanes of a warp step the same env. A final observation is then stored without a vote
            of the lanes whose rows are in the same sector of memory, which is for lanes of successive envs.
    """
    source = source_text(spec.env, spec.options.cuda_c)
    return _load_or_compile_functions(frozen_spec(spec), cc, has_shared_envs, source)


@lru_cache(maxsize=8)
def _load_or_compile_functions(spec: KernelSpec, cc: tuple[int, int], has_shared_envs: bool, source: str) -> LinkedFunctions:
    """As `link_env_functions`, where `source` is the text of the author's CUDA C++ files, or ""."""

    def compile_all() -> list[Binary]:
        from gpuvec.engine.backends.cuda.kernels import extern_functions

        binaries = [Binary(code, name) for name, code in extern_functions(spec, cc, has_shared_envs).items()]
        check_source_text(spec.env, spec.options.cuda_c, source)
        return binaries

    schema = spec.schema
    assert isinstance(schema, SingleAgentSchema), "of a SingleAgentEnv"
    key = partial(fingerprint, spec.env, spec.options, "extern functions", cc, has_shared_envs, source)
    binaries = load_or_compile(key, compile_all, Binary)
    num_float_fields, num_int_fields = len(schema.float_fields), len(schema.non_float_fields)
    constants: dict[str, int | str] = {"NUM_FLOAT_FIELDS": num_float_fields, "NUM_INT_FIELDS": num_int_fields}
    return LinkedFunctions(tuple(binary.code for binary in binaries), spec.batch._fields, constants)
