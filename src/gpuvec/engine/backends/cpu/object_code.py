"""Machine code for this CPU, which is compiled from LLVM assembly, stored on disk, loaded, and called without Numba."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.llvm_passes import run_passes
from gpuvec.errors import AuthoringError

# Functions of the C library, which every process has
MATH_FUNCTIONS = (
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt hypot "
    "fmod floor ceil trunc round rint nearbyint fabs fmin fmax fma copysign ldexp erf erfc"
)
C_FUNCTIONS = {"memcpy", "memmove", "memset", *(name + suffix for name in MATH_FUNCTIONS.split() for suffix in ("", "f"))}


class ObjectCode(NamedTuple):
    """A function as machine code, whose arguments are integers of 64 bits.

    Attributes:
        code: an object file.
        name: the symbol.
        num_arguments: how many arguments it takes.
        scratch_bytes: the size of the scratch memory that each thread passes, by its address, as second argument.
        external_symbols: what it calls beside `C_FUNCTIONS`, separated by spaces.
    """

    code: bytes
    name: str
    num_arguments: int
    scratch_bytes: int
    external_symbols: str


def is_cacheable(object_code: ObjectCode) -> bool:
    """Whether `object_code` runs in any process: a helper function of Numba's exists only where Numba is imported."""
    return not object_code.external_symbols


@cache
def target_description() -> str:
    """The CPU that object files are compiled for, with its features."""
    binding = _llvm()
    return f"{platform.machine()} {binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


@cache
def _llvm() -> Any:
    """The module `llvmlite.binding`, initialized for this CPU."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _target_machine() -> Any:
    """LLVM's code generator for this CPU."""
    binding = _llvm()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
    )


def compile_object(bitcode: bytes, name: str, num_arguments: int, scratch_bytes: int) -> ObjectCode:
    """Compiles a function that Numba translated to LLVM bitcode.

    Args:
        bitcode: the module.
        name: the symbol of the function. It takes the addresses of a result and of an exception, then the arguments.
        num_arguments: how many arguments it takes, which are integers of 64 bits.
        scratch_bytes: the size of the scratch memory whose address is its second argument.
    """
    binding, target_machine = _llvm(), _target_machine()
    module = binding.parse_bitcode(bitcode)
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    run_passes(passes, module, binding.create_pass_builder(target_machine, binding.create_pipeline_tuning_options()))
    declarations = {x.name for x in (*module.functions, *module.global_variables) if x.is_declaration}
    external = sorted(name for name in declarations - C_FUNCTIONS if not name.startswith("llvm."))
    return ObjectCode(target_machine.emit_object(module), name, num_arguments, scratch_bytes, " ".join(external))


def load_object(object_code: ObjectCode) -> Callable[..., None]:
    """`call(*arguments)`, which calls the function and releases Python's global interpreter lock while it runs.

    Args:
        object_code: the function as machine code.

    Raises:
        AuthoringError: by the call, if code of the environment raised an exception.
    """
    binding = _llvm()
    # Each function has an execution engine of its own, as symbols of two object files may have the same name.
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(object_code.code))
    engine.finalize_object()
    argument_types = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * object_code.num_arguments
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *argument_types)(engine.get_function_address(object_code.name))
    result_and_exception = np.zeros(2, np.int64)
    result, exception = result_and_exception.ctypes.data, result_and_exception.ctypes.data + 8

    # The function has only the addresses of what `keep` holds.
    def call(*arguments: int, keep: tuple[object, ...] = (engine, result_and_exception)) -> None:
        if function(result, exception, *arguments):
            raise AuthoringError("code of the environment raised an error, which a GPU cannot: take out its raise or assert.")

    return call
