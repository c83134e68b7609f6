"""Changes of numba-cuda's classes, by which a function is compiled once and passed to NVVM once.

`numba_cuda`, which alone imports numba-cuda, applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuvec.engine.compiler.functions import is_inline, without_literals
from gpuvec.engine.compiler.types import NumbaType


def widen_literals(dispatcher_class: type) -> None:
    """Compiles inlined functions once for all literal arguments of a type, as `inline_function` does on a CPU.

    Args:
        dispatcher_class: the class into which numba-cuda wraps functions that Numba has compiled for the CPU.
    """
    template = dispatcher_class.get_call_template  # type: ignore[attr-defined]  # numba-cuda has no annotations

    def get_call_template(self: Any, args: Sequence[NumbaType], kws: dict[str, NumbaType]) -> Any:
        return template(self, *(without_literals(args, kws) if is_inline(self.py_func) else (args, kws)))

    dispatcher_class.get_call_template = get_call_template  # type: ignore[attr-defined]  # numba-cuda has no annotations


def link_modules_once(library_class: type) -> None:
    """Passes each LLVM module to NVVM once, and not once for each chain of calls that leads to its function.

    Args:
        library_class: numba-cuda's class of a function's LLVM module with the libraries that it calls.
    """

    def modules(self: Any) -> list[Any]:
        unique_libraries: dict[Any, None] = {}
        pending = [self]
        while pending:
            library = pending.pop()
            if library not in unique_libraries:
                unique_libraries[library] = None
                pending += getattr(library, "_linking_libraries", ())  # Libraries of external code have none.
        return [library._module for library in unique_libraries if hasattr(library, "_module")]

    library_class.modules = property(modules)  # type: ignore[attr-defined]  # numba-cuda has no annotations
