"""What the kernels of one agent and of many agents share: the record of a kernel, and device functions that both call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof

from gpuvec.engine.backends.cuda import linker, numba_cuda
from gpuvec.engine.backends.cuda.binary import Binary, Cubin, GridSize
from gpuvec.engine.backends.cuda.cpp.source import AuthorSource, compile_source
from gpuvec.engine.compiler.functions import bind, compile_for, generate_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, Signature
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.params import request_class, request_dtypes

u32 = np.uint32


class Kernel(NamedTuple):
    """A kernel before its compilation, and its launch configuration.

    Attributes:
        body: the Python function. A step takes (batch), a reset and a rollout take (batch, request).
        signature: the Numba types of its arguments; None in the simulator.
        threads: per block.
        grid_size: the number of blocks.
        min_blocks_per_sm: how many blocks should have enough registers on one multiprocessor.
        max_spill_bytes: how many bytes of registers a thread may spill for that.
        linked_source: functions in CUDA C++ that it is linked with.
    """

    body: Callable[..., None]
    signature: Signature
    threads: int
    grid_size: GridSize
    min_blocks_per_sm: int = 1
    max_spill_bytes: int = 0
    linked_source: AuthorSource | None = None

    def binary(self, cc: tuple[int, int]) -> Binary:
        """The machine code for compute capability `cc`, for fewer blocks per multiprocessor if too many bytes would spill."""
        return self.start(cc)()

    def start(self, cc: tuple[int, int]) -> Callable[[], Binary]:
        """Compiles the kernel and starts to link it in a thread.

        Args:
            cc: the compute capability.

        Returns:
            A function that waits for the linker and returns what `binary` does.
        """
        libraries = (compile_source(self.linked_source, cc),) if self.linked_source else ()

        def start_link(blocks_per_sm: int) -> Callable[[], Binary]:
            ltoir = numba_cuda.compile_kernel(self.body, self.signature, cc, "ltoir", self.threads, blocks_per_sm)
            return linker.start_link(ltoir, cc, blocks_per_sm > 1, libraries)

        wait = start_link(self.min_blocks_per_sm)

        def wait_for_binary() -> Binary:
            binary, blocks_per_sm = wait(), self.min_blocks_per_sm
            for fewer_blocks in (max(1, self.min_blocks_per_sm * 3 // 4), 1):
                if blocks_per_sm == 1 or binary.spill_bytes <= self.max_spill_bytes:
                    break
                binary, blocks_per_sm = start_link(fewer_blocks)(), fewer_blocks
            return binary

        return wait_for_binary

    def cubin_of(self, binary: Binary) -> Cubin:
        """Returns `binary`, which is this kernel's machine code, with the launch configuration."""
        return Cubin(binary.code, binary.name, self.threads, *self.grid_size)

    def cubin(self, cc: tuple[int, int]) -> Cubin:
        """The machine code for compute capability `cc` with the launch configuration."""
        return self.cubin_of(self.binary(cc))


def callable_from_kernel(function: DeviceFunction, *example_arguments: object) -> DeviceFunction:
    """The form of a device function that a kernel calls: itself on a GPU, its compilation for the CPU in the simulator.

    The simulator interprets a kernel, and a float32 that passes through Python returns as a double. Therefore the functions
    that a kernel calls are compiled. They are compiled in advance, as that takes far longer in a simulated thread.

    Args:
        function: the device function.
        example_arguments: values of the types that the kernel calls it with.
    """
    if not numba_cuda.SIMULATED:
        return function
    names = ", ".join(f"x{k}" for k in range(len(example_arguments)))
    call = generate_function("call", f"def call({names}):\n    return function({names})\n", function=function)
    compiled: DeviceFunction = njit(call, error_model="numpy")
    compile_for(compiled, tuple(map(typeof, example_arguments)))
    return compiled


def example_arguments(spec: KernelSpec) -> tuple[Batch, ResetRequest]:
    """(batch, request) with the types of a kernel's arguments in the simulator.

    Args:
        spec: what the kernel is compiled from.
    """
    return spec.batch(*(0,) * len(spec.batch._fields)), request_class(spec.env)(
        *(dtype(0) for dtype in request_dtypes(spec.env))
    )


def make_clock_functions(ops: MemoryOps, example_batch: Batch) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles `read_clock(b, block)` -> uint32 and `advance_clock(b, block, steps)`.

    Each block has a clock of its own: a block that starts late could read a common clock after another block advanced it.

    Args:
        ops: the operations on buffers.
        example_batch: a batch with the types of a kernel's argument.
    """

    functions = bind(read_clock, ops=ops), bind(advance_clock, ops=ops)
    return callable_from_kernel(functions[0], example_batch, 0), callable_from_kernel(functions[1], example_batch, 0, u32(0))


ops: Any = None  # what the functions below read: the operations on buffers


def read_clock(b: Batch, block: int) -> int:
    """Returns the clock of a block, uint32."""
    return ops.load(b.clock, block, u32)  # type: ignore[no-any-return]  # uint32


def advance_clock(b: Batch, block: int, steps: int) -> None:
    """Adds a number of steps to the clock of a block."""
    # Storing the sum of what `read_clock` returned and `steps` would delay all later loads until that value arrives.
    ops.atomic_add(b.clock, block, u32(steps))
