"""A Numba target for functions that are linked into others, and for code that is written to an object file.

Numba's own target for the CPU generates the machine code of each function as soon as it is compiled, and its execution engine
retains the LLVM module of each function until the process ends. Functions of this target have LLVM modules alone, which are
freed with their dispatcher. Functions of either target can call them, Python cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from llvmlite.binding import create_new_module_pass_manager
from numba.core import typing
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler
from numba.core.cpu import CPUContext
from numba.core.registry import CPUDispatcher, CPUTarget, cpu_target

from gpuvec.engine.compiler.function_objects import function_object_class, is_function_object
from gpuvec.engine.compiler.llvm_passes import run_passes
from gpuvec.engine.compiler.numba_api import cpu_numba
from gpuvec.engine.compiler.operator_signatures import infer_operators_once
from gpuvec.engine.compiler.types import NumbaType


class LLVMLibrary(CPUCodeLibrary):  # type: ignore[misc]  # Numba has no types
    """The LLVM module of one function, which is linked with the functions that it calls when machine code is needed.

    Numba links and optimises the module of each function as soon as it is compiled, and again wherever it is linked. This class
    optimises once, after all modules are linked, which takes three quarters of the time.
    """

    def finalize(self) -> None:
        """Marks the library as complete, without the linking and the optimisation of the base class."""
        self._finalized = True  # Others link only a library that is.

    def _optimize_functions(self, ll_module: Any) -> None:
        """Does nothing, as the machine code of this function alone is not needed."""

    # Numba links a library by this method.
    def _get_module_for_linking(self) -> Any:
        """Returns the module that Numba's own libraries link: this function and all that it calls."""
        return self._link_callees(super()._get_module_for_linking())

    def _link_callees(self, module: Any) -> Any:
        """Returns a copy of this function's `module`, linked with the modules of all functions that it calls."""
        linked_module = module.clone()
        # LLVM links a function only if a function that is linked already calls it, so callers come first.
        for library in reversed(list(_callees_first(self, set()))[:-1]):
            base_library: Any = super(LLVMLibrary, library) if isinstance(library, LLVMLibrary) else library
            linked_module.link_in(base_library._get_module_for_linking(), preserve=True)
        return linked_module

    def optimized(self) -> bytes:
        """Returns the optimised LLVM bitcode of this function and all that it calls.

        Numba's own passes expect a simplified module, so the simplification comes first. LLVM cannot read the text of a module
        back if names are too long, as those of blocks are that come from a function with a state of many fields.
        """
        module = self._link_callees(self._final_module)  # The only module that exists before machine code does.
        # Numba's passes for this CPU, which no function outside of its code generation returns.
        cheap_passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=True, slp_vectorize=False, opt=3, cost="cheap"
        )
        simplification = create_new_module_pass_manager()
        simplification.add_always_inliner_pass()
        simplification.add_sroa_pass()
        simplification.add_simplify_cfg_pass()
        simplification.add_instruction_combine_pass()
        run_passes(simplification, module, builder)
        run_passes(cheap_passes, module, builder)
        all_passes, builder = self._codegen._module_pass_manager()
        run_passes(all_passes, module, builder)
        module.verify()
        bitcode: bytes = module.as_bitcode()
        return bitcode


def _callees_first(library: CPUCodeLibrary, visited: set[Any]) -> Iterator[CPUCodeLibrary]:
    """Yields the libraries that `library` calls, directly or not, each before its callers, and `library` last."""
    visited.add(library)
    # Numba's list of the libraries that a function needs, which `finalize` of the base class would link.
    for callee in library._linking_libraries if isinstance(library, LLVMLibrary) else ():
        if callee not in visited:
            yield from _callees_first(callee, visited)
    yield library


class LLVMCodegen(JITCPUCodegen):  # type: ignore[misc]  # Numba has no types
    """Numba's code generation for this CPU with libraries of this target, which the execution engine does not load."""

    _library_class = LLVMLibrary  # what `create_library` returns


class LLVMTargetContext(CPUContext):  # type: ignore[misc]  # Numba has no types
    """Numba's context for the CPU, with the same table of functions, which makes no machine code of compiled functions."""

    def __init__(self, base: CPUContext, typing_context: typing.Context) -> None:
        # `base.subtarget` copies the attributes in the same way, but cannot override a method.
        self.__dict__.update(base.__dict__)
        self.typing_context = typing_context
        self._internal_codegen = LLVMCodegen("gpuvec")  # what `codegen` returns

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        """Returns a key for the table of functions, in place of a function that Python can call.

        Args:
            library: the library of the compiled function; unused.
            fndesc: Numba's description of the function; unused.
            env: the function's constants; unused.
        """
        return object()


class LLVMTypingContext(typing.Context):  # type: ignore[misc]  # Numba has no types
    """Numba's typing context for the CPU, with the same tables of functions and types."""

    # The one place where Numba looks up the type of an operator.
    _lookup_global = infer_operators_once(cpu_numba(), typing.Context._lookup_global)

    def __init__(self, base: typing.Context) -> None:
        self.__dict__ = base.__dict__  # what one of them registers, both have

    def resolve_value_type(self, value: Any) -> NumbaType:
        """Returns the Numba type of a Python value that a function refers to."""
        return function_object_class(cpu_numba())(value) if is_function_object(value) else super().resolve_value_type(value)


class LLVMTarget(CPUTarget):  # type: ignore[misc]  # Numba has no types
    """The description of the target that Numba's dispatchers use."""

    # A CPUTarget has no other place for the context.
    @cached_property
    def _toplevel_target_context(self) -> LLVMTargetContext:
        return LLVMTargetContext(cpu_target.target_context, self.typing_context)

    @cached_property
    def typing_context(self) -> typing.Context:
        """The typing context of Numba's own target, so that types are the same for both targets."""
        return LLVMTypingContext(cpu_target.typing_context)


class LLVMDispatcher(CPUDispatcher):  # type: ignore[misc]  # Numba has no types
    """A Python function with its compiled versions by the types of their arguments."""

    targetdescr = LLVMTarget("cpu")

    def __init__(self, function: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=targetoptions, pipeline_class=Compiler)

    def add_overload(self, cres: Any) -> None:
        """Stores a compiled version, without the entry point for calls from Python.

        Args:
            cres: Numba's result of the compilation.
        """
        self.overloads[tuple(cres.signature.args)] = cres
