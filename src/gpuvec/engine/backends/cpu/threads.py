"""The kernels of an environment on the CPU: its envs shared among threads where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from gpuvec.engine.backends.cache.key import fingerprint, frozen_environment
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode, is_cacheable, load_object, machine
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.layout.arguments import make_packer, pack_arguments
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.layout.schema import make_layout, make_schema
from gpuvec.spec import Environment, SingleAgentEnv

AGENTS_PER_THREAD = 8192  # below, handing work to another thread (about 50 us) costs more than it saves


@lru_cache(maxsize=64)  # a loop serves any number of envs, so one of the same environment is made once in a process
def _loop(what: str, env: Environment, options: KernelOptions, text: str, *policy: Any) -> ObjectCode:
    """A "reset", a "step" or a "rollout" of `host_loops`; `text` is what it is made from beside Python."""

    def make() -> list[ObjectCode]:
        from gpuvec.engine.backends.cpu import loops

        made = [getattr(loops, f"{what}_loop")(_functions(env, options), options, *policy)]
        check_source_text(env, options.cuda_c, text)
        return made

    return load_or_compile(partial(fingerprint, env, options, what, *policy, machine(), text), make, ObjectCode, is_cacheable)[
        0
    ]


def _functions(env: Environment, options: KernelOptions) -> Environment:
    """`env` as loops are composed of it: with the author's functions in CUDA C++ if the variant has these."""
    if not options.cuda_c:
        return env
    from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
    from gpuvec.engine.backends.cuda.cpp.host_library import host_call, load_library

    composed, source = substitute_cuda_functions(env, options, host_call)
    assert source is not None, "the variant has functions in CUDA C++"
    load_library(source)
    return composed


def _rooms(made: ObjectCode, threads: int) -> list[Any]:
    """The memory that each thread lends."""
    return [np.zeros(made.room + 1, np.uint8) for _ in range(threads)]


class CpuKernels:
    """The kernels of an env on the CPU; the same calls as `launch.CudaKernels`, whose stream they ignore."""

    blocks, split = 1, False

    def __init__(self, env: Environment, num_envs: int) -> None:
        self._env, self._num_envs = frozen_environment(env), num_envs
        (agents,) = make_schema(env).agents_shape or (1,)
        threads = min(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            num_envs * agents // AGENTS_PER_THREAD,
            num_envs,
        )
        edges = [num_envs * k // max(threads, 1) for k in range(max(threads, 1) + 1)]
        self._first, *self._others = list(pairwise(edges))
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def reset(self, options: KernelOptions) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        kinds = request_dtypes(self._env)
        made, pack = _loop("reset", self._env, options, self._text(options)), make_packer(kinds)
        block, count = self._block(options, len(kinds))
        run, (room,) = load_object(made), _rooms(made, 1)

        def call(stream: int, *arguments: Any) -> None:
            block[:count] = arguments[:count]
            pack(block, 8 * count, *arguments[count:])
            run(block.ctypes.data, room.ctypes.data)

        return call

    def step(self, options: KernelOptions, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        block, _ = self._block(options)
        play = self._playing(_loop("step", self._env, options, self._text(options)), block)
        words, octets, at, places = pack_arguments(block, kept, self._num_envs)

        def call(stream: int, action: int, outputs: bytes) -> None:
            words[at] = action
            octets[places] = outputs
            play()

        return call

    def rollout(self, options: KernelOptions, policy: Any, kept: tuple[int, ...]) -> Callable[[int, int, bytes, int], None]:
        """`launch(stream, action, outputs, steps)`, likewise."""
        assert isinstance(self._env, SingleAgentEnv), "games have no rollouts"
        block, _ = self._block(options)
        play = self._playing(_loop("rollout", self._env, options, self._text(options), policy), block)
        words, octets, at, places = pack_arguments(block, kept, self._num_envs)

        def call(stream: int, action: int, outputs: bytes, steps: int) -> None:
            words[at] = action
            octets[places] = outputs
            play(steps)

        return call

    def _text(self, options: KernelOptions) -> str:
        return source_text(self._env, options.cuda_c)

    def _block(self, options: KernelOptions, asked: int = 0) -> tuple[Any, int]:
        """(memory for the members of a batch and so many of a request, how many the former are)."""
        count = len(make_layout(self._env, options).batch._fields)
        return np.zeros(count + asked, np.uint64), count

    def _playing(self, made: ObjectCode, block: Any) -> Callable[..., None]:
        """play(*numbers): runs it for all rows, of which each thread has some."""
        run, rooms = load_object(made), _rooms(made, 1 + len(self._others))
        place, (own, *others) = block.ctypes.data, [room.ctypes.data for room in rooms]
        first, last = self._first

        def alone(*numbers: int, keep: Any = (block, rooms)) -> None:
            run(place, own, *numbers, first, last, 1)

        def together(*numbers: int, keep: Any = (block, rooms)) -> None:
            pool, shares = self._threads(), zip(others, self._others, strict=True)
            parts = [pool.submit(run, place, room, *numbers, *rows, 0) for room, rows in shares]
            run(place, own, *numbers, first, last, 0)
            for part in parts:
                part.result()
            run(place, own, *numbers, 0, 0, 1)  # when all rows have read the clock

        return together if others else alone

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or os.getpid() != self._pid:  # threads do not survive a fork
            self._pool, self._pid = ThreadPoolExecutor(len(self._others), "gpuvec"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown()
        self._pool = None
