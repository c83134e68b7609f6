"""LLVM passes, run by llvmlite without Numba."""

from __future__ import annotations

from typing import Any


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Runs passes on a module and frees them.

    llvmlite 0.50 does not free them: its pass managers inherit `_dispose` from two classes, and that of the first one does
    nothing. Each would occupy a hundred kilobytes to a megabyte until the process ends.

    Args:
        passes: a pass manager of llvmlite.
        module: the LLVM module.
        builder: the pass builder that `passes` was created with.
    """
    from llvmlite.binding.ffi import ObjectRef
    from llvmlite.binding.newpassmanagers import NewPassManager

    passes.run(module, builder)
    # The methods that free a manager, which `close` should call.
    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
    passes.close()
