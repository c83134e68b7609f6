"""A Numba target for functions that other functions take in, and for code that is written to an object file.

Numba's own target for the CPU translates each function to machine code as soon as it is compiled, and its execution engine
keeps the LLVM module of each for as long as the process lives. Functions of this target have LLVM modules alone, which go
with their dispatcher. They can be called by functions of either target, but not from Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from llvmlite.binding import create_new_module_pass_manager
from numba.core import typing
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.cpu import CPUContext
from numba.core.registry import CPUDispatcher, CPUTarget, cpu_target

from gpuvec.engine.backends.cpu.object_code import run_passes


class Library(CPUCodeLibrary):  # type: ignore[misc]  # Numba has no types
    """The LLVM module of one function, which is linked with those that it calls where machine code is wanted.

    Numba links and optimises the module of each function as soon as that is compiled, and again wherever it is linked. Here all
    is optimised once, when it stands in one place: that takes three quarters of the time.
    """

    def finalize(self) -> None:
        """Ends the adding of functions, and does nothing else."""
        self._raise_if_finalized()
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def _get_module_for_linking(self) -> Any:
        """What Numba's own libraries take in: it and all that it calls."""
        return self._linked(super()._get_module_for_linking())

    def _linked(self, module: Any) -> Any:
        """A copy of its `module` with the modules of all that it calls."""
        linked = module.clone()
        for library in reversed(list(_callees_first(self, set()))[:-1]):  # LLVM takes in what is called by then
            own: Any = super(Library, library) if isinstance(library, Library) else library
            linked.link_in(own._get_module_for_linking(), preserve=True)
        return linked

    def optimized(self) -> str:
        """The assembly of it and all that it calls, simplified before the passes that Numba chooses, which expect that."""
        module = self._linked(self._final_module)
        simplify = create_new_module_pass_manager()
        simplify.add_always_inliner_pass()
        simplify.add_sroa_pass()
        simplify.add_simplify_cfg_pass()
        simplify.add_instruction_combine_pass()
        run_passes(simplify, module, self._codegen._pass_builder())
        rotate, builder = self._codegen._module_pass_manager(loop_vectorize=True, slp_vectorize=False, opt=3, cost="cheap")
        run_passes(rotate, module, builder)
        passes, builder = self._codegen._module_pass_manager()
        run_passes(passes, module, builder)
        module.verify()
        return str(module)


def _callees_first(library: CPUCodeLibrary, seen: set[Any]) -> Iterator[CPUCodeLibrary]:
    """All that `library` calls, directly or not, each before those that call it, and `library`."""
    seen.add(library)
    for callee in library._linking_libraries if isinstance(library, Library) else ():
        if callee not in seen:
            yield from _callees_first(callee, seen)
    yield library


class Codegen(JITCPUCodegen):  # type: ignore[misc]  # Numba has no types
    """Code for this CPU, as Numba's own, in libraries of this target. Its execution engine gets none of it."""

    _library_class = Library


class Context(CPUContext):  # type: ignore[misc]  # Numba has no types
    """Numba's context for the CPU, with the same table of functions, but for what becomes of a compiled one."""

    def __init__(self, base: CPUContext) -> None:
        self.__dict__.update(base.__dict__)  # as `base.subtarget` does, which cannot override a method
        self._internal_codegen = Codegen("gpuvec")

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        """Its key in the table of functions, in place of a function for Python to call."""
        return object()


class Target(CPUTarget):  # type: ignore[misc]  # Numba has no types
    """The description of it that Numba's dispatchers take."""

    @cached_property
    def _toplevel_target_context(self) -> Context:
        return Context(cpu_target.target_context)

    @property
    def typing_context(self) -> typing.Context:
        """That of Numba's own target: what has a type there has the same here."""
        return cpu_target.typing_context


class Dispatcher(CPUDispatcher):  # type: ignore[misc]  # Numba has no types
    """A function with its compiled versions, by the types of their arguments."""

    targetdescr = Target("cpu")

    def add_overload(self, cres: Any) -> None:
        """Keeps a compiled version, without the entry for calls from Python."""
        self.overloads[tuple(cres.signature.args)] = cres
