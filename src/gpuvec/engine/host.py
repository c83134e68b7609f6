"""Kernels for the CPU: the composed functions in a loop over the envs, shared among threads where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from gpuvec.engine.batch import Variant, layout
from gpuvec.engine.memory import host_memory
from gpuvec.engine.single import compose, request
from gpuvec.spec import Single

ENVS_PER_THREAD = 8192  # below, handing work to another thread (about 50 us) costs more than it saves


# Compiled code is called with plain tuples: Numba takes 120 us to recognise a NamedTuple unless its class is the first
# of the process.


@lru_cache(maxsize=64)  # a kernel serves any number of envs, so one of the same environment is compiled once in a process
def _reset_loop(env: Single, variant: Variant) -> tuple[Any, int]:
    access = host_memory()
    begin, _ = compose(env, variant, access)
    load, batch, request_ = access.load, layout(env, variant).batch, request(env)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, asked: Any) -> None:
        b, r = batch(*addresses), request_(*asked)
        clock = load(b.clock, 0, np.uint32)
        for e in range(b.n):
            begin(b, e, clock, r)

    return loop, len(batch._fields)


@lru_cache(maxsize=64)
def _step_loop(env: Single, variant: Variant) -> Any:
    access = host_memory()
    _, advance = compose(env, variant, access)
    load, store, batch = access.load, access.store, layout(env, variant).batch

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, first: int, last: int, tick: bool) -> None:
        b = batch(*addresses)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, last):
            advance(b, e, clock)
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return loop


class HostKernels:
    """The kernels of an env on the CPU; the same calls as `launch.CudaKernels`, whose stream they ignore."""

    blocks = 1

    def __init__(self, env: Single, num_envs: int) -> None:
        self._env = env
        threads = min(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            num_envs // ENVS_PER_THREAD,
        )
        edges = [num_envs * k // max(threads, 1) for k in range(max(threads, 1) + 1)]
        self._first, *self._others = list(pairwise(edges))
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        loop, members = _reset_loop(self._env, variant)

        def call(stream: int, *arguments: Any) -> None:
            loop(arguments[:members], arguments[members:])

        return call

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        loop = _step_loop(self._env, variant)
        first, others = self._first, self._others

        def call(stream: int, *arguments: Any) -> None:
            if not others:
                loop(arguments, *first, True)
                return
            pool = self._threads()
            parts = [pool.submit(loop, arguments, begin, end, False) for begin, end in others]
            loop(arguments, *first, False)
            for part in parts:
                part.result()
            loop(arguments, 0, 0, True)  # when all rows have read the clock

        return call

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or os.getpid() != self._pid:  # threads do not survive a fork
            self._pool, self._pid = ThreadPoolExecutor(len(self._others), "gpuvec"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown()
        self._pool = None
