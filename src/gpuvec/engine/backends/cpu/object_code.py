"""Machine code of this CPU: made of LLVM's language, loaded, and called without Numba, so that it can be kept on disk."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpuvec.errors import AuthoringError

# What code may call that any process has: memory, and mathematics as C names it.
MATHEMATICS = (
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt hypot "
    "fmod floor ceil trunc round rint nearbyint fabs fmin fmax fma copysign ldexp erf erfc"
)
KNOWN = {"memcpy", "memmove", "memset", *(name + suffix for name in MATHEMATICS.split() for suffix in ("", "f"))}


class ObjectCode(NamedTuple):
    """A function as machine code. It takes numbers of 64 bits."""

    code: bytes  # an object file
    name: str
    arguments: int
    scratch_bytes: int  # memory of each thread, whose address is its second argument
    needs: str  # what it calls beside what is `KNOWN`


def is_cacheable(native: ObjectCode) -> bool:
    """Whether another process has all that it needs."""
    return not native.needs


@cache
def target_description() -> str:
    """The CPU that object files are compiled for, with its features."""
    binding = _binding()
    return f"{platform.machine()} {binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


@cache
def _binding() -> Any:
    """LLVM, ready for this CPU."""
    from llvmlite import binding

    for begin in (binding.initialize_native_target, binding.initialize_native_asmprinter):
        begin()
    return binding


def _target() -> Any:
    binding = _binding()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
    )


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Runs LLVM's `passes` on `module` and frees them.

    llvmlite 0.50 does not: its managers of passes inherit `_dispose` from two classes, and the first one's does nothing, so
    that what each computed, a hundred kilobytes to a megabyte, is kept for as long as the process lives.
    """
    from llvmlite.binding.ffi import ObjectRef
    from llvmlite.binding.newpassmanagers import NewPassManager

    passes.run(module, builder)
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
    passes.close()


def compile_object(source: str, name: str, arguments: int, scratch_bytes: int) -> ObjectCode:
    """The function `name` of LLVM assembly, which takes two addresses of Numba's, of a result and of an exception, and so many
    numbers.
    """
    binding, target = _binding(), _target()
    module = binding.parse_assembly(source)
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    run_passes(passes, module, binding.create_pass_builder(target, binding.create_pipeline_tuning_options()))
    used = {x.name for x in (*module.functions, *module.global_variables) if x.is_declaration}
    needs = sorted(name for name in used - KNOWN if not name.startswith("llvm."))
    return ObjectCode(target.emit_object(module), name, arguments, scratch_bytes, " ".join(needs))


def load_object(made: ObjectCode) -> Callable[..., None]:
    """`call(*numbers)`, which lets other threads of Python run meanwhile.

    Raises:
        AuthoringError: by the call, if code of the environment raised something.
    """
    binding = _binding()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target())  # one for each: their names may be the same
    engine.add_object_file(binding.ObjectFileRef.from_data(made.code))
    engine.finalize_object()
    numbers = [ctypes.c_int64] * made.arguments
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *numbers)(engine.get_function_address(made.name))
    answers = np.zeros(2, np.int64)
    result, exception = answers.ctypes.data, answers.ctypes.data + 8

    def call(*numbers: int, keep: Any = (engine, answers)) -> None:
        if function(result, exception, *numbers):
            raise AuthoringError("code of the environment raised an error, which a GPU cannot: take out its raise or assert.")

    return call
