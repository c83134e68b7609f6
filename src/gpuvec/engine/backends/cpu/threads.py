"""The kernels of an environment on the CPU, whose envs are distributed over threads if there is enough work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cache.key import fingerprint, frozen_spec
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode, is_cacheable, load_object, target_description
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.backends.kernel_set import KernelSet
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec

AGENTS_PER_THREAD = 8192  # with fewer, submitting work to another thread (about 50 us) costs more than it saves


@lru_cache(maxsize=64)  # one loop serves any number of envs
def load_or_compile_loop(kind: str, spec: KernelSpec, source: str, *policy: RolloutPolicy) -> ObjectCode:
    """The loop of a reset, a step or a rollout, from disk if it was compiled before.

    Args:
        kind: "reset", "step" or "rollout".
        spec: what the loop is compiled from.
        source: the text of the author's CUDA C++ files, or "".
        policy: of a rollout.

    Raises:
        AuthoringError: functions that do not compile.
    """

    def compile_all() -> list[ObjectCode]:
        from gpuvec.engine.backends.cpu.loops import compile_loop

        loop = compile_loop(kind, spec, *policy)
        check_source_text(spec.env, spec.options.cuda_c, source)
        return [loop]

    key = partial(fingerprint, spec.env, spec.options, kind, *policy, target_description(), source)
    (loop,) = load_or_compile(key, compile_all, ObjectCode, is_cacheable)
    return loop


class CpuKernels(KernelSet):
    """The kernels of an environment on the CPU.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.
    """

    def __init__(self, spec: KernelSpec, num_envs: int) -> None:
        super().__init__(frozen_spec(spec), num_envs, blocks=1)
        agents = spec.schema.num_agents
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.num_threads = max(1, min(cores, num_envs * agents // AGENTS_PER_THREAD, num_envs))
        bounds = [num_envs * k // self.num_threads for k in range(self.num_threads + 1)]
        self._rows = list(pairwise(bounds))  # (first, end) of each thread
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def load(self, kind: str, spec: KernelSpec, arguments: NDArray[np.uint64], *policy: RolloutPolicy) -> Callable[[int], None]:
        """Loads or compiles a loop. All threads run that of a step or a rollout, and one thread that of a reset."""
        loop = load_or_compile_loop(kind, spec, source_text(spec.env, spec.options.cuda_c), *policy)
        run, address = load_object(loop), arguments.ctypes.data
        scratch = [np.zeros(loop.scratch_bytes + 1, np.uint8) for _ in range(1 if kind == "reset" else self.num_threads)]
        own_scratch, *other_scratch = [memory.ctypes.data for memory in scratch]
        (first, end), *other_rows = self._rows
        # The number of steps of a rollout is the last of its arguments.
        steps: memoryview | tuple[()] = memoryview(arguments)[-1:] if kind == "rollout" else ()

        # The loop has only the addresses of what `keep` holds.
        def launch_reset(stream: int, keep: tuple[object, ...] = (arguments, scratch)) -> None:
            run(address, own_scratch)

        def launch_on_one_thread(stream: int, keep: tuple[object, ...] = (arguments, scratch)) -> None:
            run(address, own_scratch, *steps, first, end, 1)

        def launch_on_threads(stream: int, keep: tuple[object, ...] = (arguments, scratch)) -> None:
            # The other threads are started on first use and, as threads do not survive a fork, in a forked process.
            if self._pool is None or os.getpid() != self._pid:
                self._pool, self._pid = ThreadPoolExecutor(self.num_threads - 1, "gpuvec"), os.getpid()
            pool, other_threads = self._pool, zip(other_scratch, other_rows, strict=True)
            futures = [pool.submit(run, address, memory, *steps, *rows, 0) for memory, rows in other_threads]
            run(address, own_scratch, *steps, first, end, 0)
            for future in futures:
                future.result()
            # A call without rows advances the clock, which all threads have read by now.
            run(address, own_scratch, *steps, 0, 0, 1)

        if kind == "reset":
            return launch_reset
        return launch_on_threads if other_rows else launch_on_one_thread

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown()
        self._pool = None
