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
from gpuvec.engine.backends.launchers import (
    ResetLauncher,
    RolloutLauncher,
    StepLauncher,
    make_reset_launcher,
    make_step_launcher,
)
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions, pack_arguments
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.spec import SingleAgentEnv

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

    def compile_loop() -> list[ObjectCode]:
        from gpuvec.engine.backends.cpu import loops

        compile_kind = {
            "reset": loops.compile_reset_loop,
            "step": loops.compile_step_loop,
            "rollout": loops.compile_rollout_loop,
        }[kind]
        loop: ObjectCode = compile_kind(_with_cuda_functions(spec), *policy)  # type: ignore[operator]  # by kind
        check_source_text(spec.env, spec.options.cuda_c, source)
        return [loop]

    key = partial(fingerprint, spec.env, spec.options, kind, *policy, target_description(), source)
    (loop,) = load_or_compile(key, compile_loop, ObjectCode, is_cacheable)
    return loop


def _with_cuda_functions(spec: KernelSpec) -> KernelSpec:
    """`spec` with the author's functions in CUDA C++ in place of those in Python, if its options select them."""
    if not spec.options.cuda_c:
        return spec
    from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
    from gpuvec.engine.backends.cuda.cpp.host_library import cpu_extern_call, load_library

    substituted, source = substitute_cuda_functions(spec, cpu_extern_call)
    assert source is not None, "options.cuda_c has a source"
    load_library(source)
    return substituted


class CpuKernels:
    """The kernels of an environment on the CPU: a `KernelSet`.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.
    """

    blocks = 1

    def __init__(self, spec: KernelSpec, num_envs: int) -> None:
        self.spec, self._num_envs = frozen_spec(spec), num_envs
        agents = spec.schema.num_agents
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.num_threads = max(1, min(cores, num_envs * agents // AGENTS_PER_THREAD, num_envs))
        bounds = [num_envs * k // self.num_threads for k in range(self.num_threads + 1)]
        self._rows = list(pairwise(bounds))  # (first, end) of each thread
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def reset(self, options: KernelOptions) -> ResetLauncher:
        """Makes the launcher of a reset with a loop for `options`."""
        dtypes = request_dtypes(self.spec.env)
        arguments = self._arguments(options, len(dtypes))
        loop = self._loop("reset", options)
        run, (scratch,) = load_object(loop), _allocate_scratch(loop, 1)

        def launch(stream: int) -> None:
            run(arguments.ctypes.data, scratch.ctypes.data)

        return make_reset_launcher(arguments, dtypes, launch)

    def step(self, options: KernelOptions, addresses: tuple[int, ...]) -> StepLauncher:
        """Makes the launcher of a step with a loop for `options` over the buffers at `addresses`."""
        arguments = self._arguments(options)
        loop = self._loop("step", options)
        return make_step_launcher(arguments, addresses, self._num_envs, self._threaded(loop, arguments))

    def rollout(self, options: KernelOptions, policy: RolloutPolicy, addresses: tuple[int, ...]) -> RolloutLauncher:
        """Makes the launcher of a rollout of a `policy` with a loop for `options` over the buffers at `addresses`."""
        assert isinstance(self.spec.env, SingleAgentEnv), "only a SingleAgentEnv has rollouts"
        arguments = self._arguments(options)
        loop = self._loop("rollout", options, policy)
        launch = self._threaded(loop, arguments)
        words, octets, action_index, output_bytes = pack_arguments(arguments, addresses, self._num_envs)

        def launch_rollout(stream: int, action: int, outputs: bytes, steps: int) -> None:
            words[action_index] = action
            octets[output_bytes] = outputs
            launch(stream, steps)

        return launch_rollout

    def _loop(self, kind: str, options: KernelOptions, *policy: RolloutPolicy) -> ObjectCode:
        """The loop of a reset, a step or a rollout."""
        source = source_text(self.spec.env, options.cuda_c)
        return load_or_compile_loop(kind, self.spec.with_options(options), source, *policy)

    def _arguments(self, options: KernelOptions, num_request_scalars: int = 0) -> NDArray[np.uint64]:
        """Memory for the arguments of a loop: the members of the batch, then the scalars of a request."""
        return np.zeros(len(self.spec.with_options(options).batch._fields) + num_request_scalars, np.uint64)

    def _threaded(self, loop: ObjectCode, arguments: NDArray[np.uint64]) -> Callable[..., None]:
        """`launch(stream, *numbers)`, which runs the loop over all rows on all threads; `numbers` are a rollout's steps."""
        run, scratch = load_object(loop), _allocate_scratch(loop, self.num_threads)
        address, (own_scratch, *other_scratch) = arguments.ctypes.data, [memory.ctypes.data for memory in scratch]
        (first, end), *other_rows = self._rows

        # The loop has only the addresses of what `keep` holds.
        def launch_on_one_thread(stream: int, *numbers: int, keep: tuple[object, ...] = (arguments, scratch)) -> None:
            run(address, own_scratch, *numbers, first, end, 1)

        def launch_on_threads(stream: int, *numbers: int, keep: tuple[object, ...] = (arguments, scratch)) -> None:
            pool, other_threads = self._threads(), zip(other_scratch, other_rows, strict=True)
            futures = [pool.submit(run, address, memory, *numbers, *rows, 0) for memory, rows in other_threads]
            run(address, own_scratch, *numbers, first, end, 0)
            for future in futures:
                future.result()
            # A call without rows advances the clock, which all threads have read by now.
            run(address, own_scratch, *numbers, 0, 0, 1)

        return launch_on_threads if other_rows else launch_on_one_thread

    def _threads(self) -> ThreadPoolExecutor:
        """The other threads, which are started on first use and, as threads do not survive a fork, in a forked process."""
        if self._pool is None or os.getpid() != self._pid:
            self._pool, self._pid = ThreadPoolExecutor(self.num_threads - 1, "gpuvec"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown()
        self._pool = None


def _allocate_scratch(loop: ObjectCode, num_threads: int) -> list[NDArray[np.uint8]]:
    """The scratch memory of each thread."""
    return [np.zeros(loop.scratch_bytes + 1, np.uint8) for _ in range(num_threads)]
