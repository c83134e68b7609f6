"""Programmatic dependent launch: a kernel may start before the previous one in its stream has ended.

The cost of a launch, and what a kernel does before its first instruction, then overlap with the previous kernel. Such
a kernel executes `griddepcontrol.wait` before its first access to memory. As all kernels of this package do so, all kernels
before the previous one have ended too. Other kernels in the stream are launched as usual. Devices of compute capability 9.0
and later have programmatic dependent launch.

Source: "Programmatic Dependent Launch and Synchronization" in the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from typing import Any

MIN_COMPUTE_CAPABILITY = (9, 0)
# Permits the launch of the next kernel once all blocks of this one have started. The next kernel waits for the end of this one.
LAUNCH_DEPENDENTS = "griddepcontrol.launch_dependents;"
# Waits until the previous kernel has ended and its writes are visible.
WAIT = "griddepcontrol.wait;"


def is_supported(cc: tuple[int, int]) -> bool:
    """Whether devices of compute capability `cc` have programmatic dependent launch."""
    return cc >= MIN_COMPUTE_CAPABILITY


def driver_launch_config(grid: tuple[int, ...], threads: int, shared_bytes: int = 0, *, dependent: bool) -> Any:
    """The `CUlaunchConfig` of a launch, without its stream.

    Args:
        grid: number of blocks in one to three dimensions.
        threads: per block.
        shared_bytes: dynamic shared memory per block.
        dependent: whether the kernel may start before the previous one has ended.
    """
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    if dependent:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config
