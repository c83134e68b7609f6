"""Early launches: a kernel may begin before the one ahead of it has ended, and waits for it before it looks at memory.

What a launch takes, and what a kernel does before its first instruction, then passes while the kernel ahead still runs:
programmatic dependent launch, of compute capability 9.0 on. A kernel that is launched early has to wait; with that it comes
after everything that it would have come after otherwise, as the kernel ahead has itself waited. Kernels of others are launched
as ever, and begin when those ahead have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

MIN_COMPUTE_CAPABILITY = (9, 0)  # compute capability
WAIT = "griddepcontrol.wait;"  # until the kernel ahead has ended, and what it wrote can be read
NEXT = "griddepcontrol.launch_dependents;"  # the next kernel may be launched, once all blocks of this one have begun
OPENING = (NEXT, WAIT)  # the next one waits for all of this one, so it may come as soon as there is room for it


def is_supported(cc: tuple[int, int]) -> bool:
    """Whether GPUs of compute capability `cc` launch kernels early."""
    return cc >= MIN_COMPUTE_CAPABILITY


def wait_for_previous(extending: Any, types: Any, capability: Callable[[], tuple[int, int]]) -> Any:
    """`wait_for_previous()`, the first that a kernel does.

    Args:
        extending: `numba.cuda.extending`.
        types: the type module of the same Numba.
        capability: gives the compute capability for which code is being made.
    """

    @extending.intrinsic
    def wait_for_previous(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            kind = ir.FunctionType(ir.VoidType(), [])
            for instruction in OPENING if is_supported(capability()) else ():  # no access to memory is moved across it
                builder.call(ir.InlineAsm(kind, instruction, "~{memory}", side_effect=True), [])

        return types.void(), codegen

    return wait_for_previous


def launch_attributes(grid: tuple[int, ...], threads: int, shared: int = 0, *, early: bool) -> Any:
    """What `cuLaunchKernelEx` is told of a launch, all but the stream: so many blocks of so many threads."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config
