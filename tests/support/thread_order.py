"""Threads and shared memory of the CUDA simulator in which a missing barrier changes results, and the same ones each time."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi
from numpy.typing import DTypeLike, NDArray


class OneOfManyThreads(kernel.BlockThread):
    """A thread of a block that runs only while its block lets it."""

    def __init__(self, function: Any, manager: kernel.BlockManager, block: tuple[int, ...], thread: tuple[int, ...]) -> None:
        super().__init__(function, manager, block, thread, debug=False)
        self.may_run, self.has_paused, self.has_ended = threading.Event(), threading.Event(), False

    def run(self) -> None:
        """Runs the thread to its end."""
        self.may_run.wait()
        try:
            if not self.abort:
                super().run()
        finally:
            self.has_ended = True
            self.has_paused.set()

    def syncthreads(self) -> None:
        """Waits at a barrier until all threads of the block have reached it."""
        self.may_run.clear()
        self.has_paused.set()
        self.may_run.wait()
        if self.abort:
            raise RuntimeError("another thread of the block has failed")

    def run_to_barrier(self) -> None:
        """Lets the thread run to its next barrier or its end."""
        self.has_paused.clear()
        self.may_run.set()
        self.has_paused.wait()


class ShuffledBlock(kernel.BlockManager):
    """A block whose threads run one after the other from barrier to barrier, in a random order that each test repeats."""

    generator = random.Random(0)

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        """Runs the block at `grid_point` with the arguments of the kernel."""

        def function() -> None:
            self._f(*args)

        threads = [OneOfManyThreads(function, self, grid_point, point) for point in np.ndindex(*self._block_dim)]
        for thread in threads:
            thread.start()
        running = threads
        while running:
            self.generator.shuffle(running)
            for thread in running:
                thread.run_to_barrier()
                if thread.exception is not None:
                    for other in threads:
                        other.abort = True
                        other.may_run.set()
                    raise thread.exception[0].with_traceback(thread.exception[1])
            running = [thread for thread in running if not thread.has_ended]


def shared_array(shared: kernelapi.FakeCUDAShared, name: str, shape: Any, dtype: DTypeLike) -> NDArray[Any]:
    """A shared array with a name; before a thread writes an element, it is nan, -1 or True."""
    if name not in shared._allocations:
        shared._allocations[name] = np.empty(shape, dtype)
        shared._allocations[name].view(np.uint8).fill(0xFF)
    return shared._allocations[name]
