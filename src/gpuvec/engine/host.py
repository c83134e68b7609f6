"""Kernels for the CPU: the composed functions in a loop over the envs, shared among threads where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit, typeof, types

from gpuvec.engine.arrays import host_arrays
from gpuvec.engine.batch import Variant
from gpuvec.engine.cooperative import compose as compose_many
from gpuvec.engine.dialect import explaining
from gpuvec.engine.jit import generated, inline
from gpuvec.engine.memory import host_memory
from gpuvec.engine.parameters import request, request_dtypes
from gpuvec.engine.reduction import host_tally
from gpuvec.engine.signature import layout, signature
from gpuvec.engine.single import compose as compose_one
from gpuvec.spec import Environment, Single

AGENTS_PER_THREAD = 8192  # below, handing work to another thread (about 50 us) costs more than it saves


def _composed(env: Environment, variant: Variant) -> tuple[Any, Any, Any]:
    """(work, begin, advance): `begin(b, w, e, clock, r)` and `advance(b, w, e, clock)` of one env, `w` what `work()` gives."""
    access = host_memory()
    if isinstance(env, Single):
        begin, advance = compose_one(env, variant, access)
        scope = {"begin": begin, "advance": advance}
        work = "def work():\n    return 0\n"
        calls = ("    begin(b, e, clock, r)\n", "    advance(b, e, clock)\n")
    else:
        program = compose_many(env, variant, access, host_arrays(), host_tally(), split=False, envs=1, stage=False)
        scope = {"Work": program.work, "np": np}
        scope |= {f"t_{name}": dtype for name, (dtype, _) in program.arrays.items()}
        held = ", ".join(f"np.zeros({shape}, t_{name})" for name, (_, shape) in program.arrays.items())
        work = f"def work():\n    return Work({held})\n"
        parts = {
            "reset": program.reset,
            "step": program.step,
            "closing": (program.closing,),
            "over": program.over,
            "end": program.end,
        }
        scope |= {f"{part}_{k}": segment for part, segments in parts.items() for k, segment in enumerate(segments)}

        def called(part: str, margin: str = "    ", more: str = "") -> str:
            return "".join(f"{margin}{part}_{k}(b, w, e, 1, 0, 1, clock{more})\n" for k in range(len(parts[part])))

        over = "    some = " + called("closing", "")
        over += "    if some:\n" + called("over", "        ") if program.over else ""
        calls = (called("reset", more=", r"), called("step") + over + called("end"))
    first = inline(generated("begin_", f"def begin_(b, w, e, clock, r):\n{calls[0]}", **scope))
    then = inline(generated("advance_", f"def advance_(b, w, e, clock):\n{calls[1]}", **scope))
    return inline(generated("work", work, **scope)), first, then


# Compiled code is called with plain tuples: Numba takes 120 us to recognise a NamedTuple unless its class is the first
# of the process.


@lru_cache(maxsize=64)  # a kernel serves any number of envs, so one of the same environment is compiled once in a process
def _reset_loop(env: Environment, variant: Variant) -> tuple[Any, int]:
    load = host_memory().load
    work, begin, _ = _composed(env, variant)
    batch, request_ = layout(env, variant).batch, request(env)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, asked: Any) -> None:
        b, r, w = batch(*addresses), request_(*asked), work()
        clock = load(b.clock, 0, np.uint32)
        for e in range(b.n):
            begin(b, w, e, clock, r)

    members = len(batch._fields)
    with explaining(env.reset):
        loop.compile((types.UniTuple(types.int64, members), typeof(tuple(dtype(0) for dtype in request_dtypes(env)))))
    return loop, members


@lru_cache(maxsize=64)
def _step_loop(env: Environment, variant: Variant) -> Any:
    access = host_memory()
    load, store, batch = access.load, access.store, layout(env, variant).batch
    work, _, advance = _composed(env, variant)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, first: int, last: int, tick: bool) -> None:
        b, w = batch(*addresses), work()
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, last):
            advance(b, w, e, clock)
        if tick:
            store(b.clock, 0, clock, np.uint32)

    with explaining(env.step if isinstance(env, Single) else env.reward):
        loop.compile((types.UniTuple(types.int64, len(batch._fields)), types.int64, types.int64, types.boolean))
    return loop


class HostKernels:
    """The kernels of an env on the CPU; the same calls as `launch.CudaKernels`, whose stream they ignore."""

    blocks, split = 1, False

    def __init__(self, env: Environment, num_envs: int) -> None:
        self._env = env
        (agents,) = signature(env).agents or (1,)
        threads = min(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            num_envs * agents // AGENTS_PER_THREAD,
            num_envs,
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
