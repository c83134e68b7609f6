"""Kernels for the CPU: the composed functions in a loop over the envs, shared among threads where that pays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit, typeof, types

from gpuvec.engine.agents.cooperative import compose as compose_many
from gpuvec.engine.agents.mapping import ONE_BY_ONE
from gpuvec.engine.agents.reduction import host_tally
from gpuvec.engine.agents.segments import Block, Segment, loop
from gpuvec.engine.arrays import host_arrays
from gpuvec.engine.batch import Variant, members
from gpuvec.engine.blocks import ENVS
from gpuvec.engine.blocks import compose as compose_blocks
from gpuvec.engine.dialect import explaining
from gpuvec.engine.jit import compile_for, generated, inline
from gpuvec.engine.memory import host_memory
from gpuvec.engine.parameters import request, request_dtypes
from gpuvec.engine.policies import explaining_policy
from gpuvec.engine.rollouts import acting
from gpuvec.engine.signature import layout, signature
from gpuvec.engine.single import game
from gpuvec.spec import Cooperative, Environment, Single

SHARE = (types.int64, types.int64, types.boolean)  # of a thread: from which row, to which, and whether it moves the clock
AGENTS_PER_THREAD = 8192  # below, handing work to another thread (about 50 us) costs more than it saves


@lru_cache(maxsize=8)  # what a reset and a step have in common is compiled once
def _composed(env: Cooperative, variant: Variant) -> tuple[int, Any, Any, Any]:
    """(size, work, begin, advance): `begin(b, w, e, clock, r)` and `advance(b, w, e, clock)` of one env of many agents.

    `w` is what `work(place)` gives, views of `size` bytes at that address: Numba would count references to arrays.
    """
    access, arrays, size = host_memory(), host_arrays(), 0
    program = compose_many(env, variant, access, arrays, host_tally(), ONE_BY_ONE)
    (agents,) = signature(env).agents
    scope = {"Work": program.work, "view": arrays.view, "natural": arrays.natural}
    held = []
    for name, (dtype, shape) in program.arrays.items():
        scope[f"t_{name}"] = dtype
        held.append(f"view(place + {size}, 0, {shape}, t_{name})")
        size += -(-math.prod(shape) * np.dtype(dtype).itemsize // 8) * 8  # all begin at multiples of eight
    work = f"def work(place):\n    return Work({', '.join(held)})\n"

    def called(part: str, margin: str = "    ") -> str:
        segments: tuple[Segment, ...] = getattr(program, part)
        scope.update({f"{part}_{n}": segment.function for n, segment in enumerate(segments)})
        alone = (segment._replace(wait=False) for segment in segments)  # nobody to wait for
        return "".join(loop(segment, f"{part}_{n}", Block(1, agents, 1), margin) for n, segment in enumerate(alone))

    scope["close"] = program.closing.function
    step = called("step") + "    some = close(b, w, e0, 0, clock)\n"
    step += f"    if some:\n{called('over', '        ')}" if program.over else ""
    start = "    e0, m, thread = e, 1, 0\n"
    calls = (start + called("reset") + called("end"), start + step + called("end"))
    first = inline(generated("begin_", f"def begin_(b, w, e, clock, r):\n{calls[0]}", **scope))
    then = inline(generated("advance_", f"def advance_(b, w, e, clock):\n{calls[1]}", **scope))
    return size, inline(generated("work", work, **scope)), first, then


def _alone(env: Single, variant: Variant) -> tuple[int, Any, Any]:
    """(size, work, begin) of one env of one agent, which needs no `w`."""
    begin_one = game(env, variant, host_memory()).begin

    @inline
    def work(place: int) -> int:
        return 0

    @inline
    def begin(b: Any, w: Any, e: int, clock: int, r: Any) -> None:
        begin_one(b, e, clock, r)

    return 0, work, begin


# Compiled code is called with plain tuples: Numba takes 120 us to recognise a NamedTuple unless its class is the first
# of the process.


@lru_cache(maxsize=64)  # a kernel serves any number of envs, so one of the same environment is compiled once in a process
def _reset_loop(env: Environment, variant: Variant) -> tuple[Any, int]:
    load = host_memory().load
    size, work, begin = _alone(env, variant) if isinstance(env, Single) else _composed(env, variant)[:3]
    batch, request_ = layout(env, variant).batch, request(env)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, asked: Any) -> None:
        held = np.zeros(size + 1, np.uint8)
        b, r, w = batch(*addresses), request_(*asked), work(held.ctypes.data)
        clock = load(b.clock, 0, np.uint32)
        for e in range(b.n):
            begin(b, w, e, clock, r)
        held[0] = 0  # so that it lives until here

    count = len(batch._fields)
    with explaining(env.reset):
        compile_for(loop, (types.UniTuple(types.int64, count), typeof(tuple(dtype(0) for dtype in request_dtypes(env)))))
    return loop, count


@lru_cache(maxsize=64)
def _step_loop(env: Environment, variant: Variant) -> Any:
    loop = _block_loop(env, variant) if isinstance(env, Single) else _agents_loop(env, variant)
    with explaining(env.step if isinstance(env, Single) else env.reward):
        compile_for(loop, (types.UniTuple(types.int64, len(layout(env, variant).batch._fields)), *SHARE))
    return loop


def _agents_loop(env: Cooperative, variant: Variant) -> Any:
    access = host_memory()
    load, store, batch = access.load, access.store, layout(env, variant).batch
    size, work, _, advance = _composed(env, variant)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, first: int, last: int, tick: bool) -> None:
        held = np.zeros(size + 1, np.uint8)
        b, w = batch(*addresses), work(held.ctypes.data)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, last):
            advance(b, w, e, clock)
        held[0] = 0  # so that it lives until here
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return loop


def _block_loop(env: Single, variant: Variant) -> Any:
    access = host_memory()
    load, store, batch = access.load, access.store, layout(env, variant).batch
    size, ahead, settle = compose_blocks(env, variant, access)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, first: int, last: int, tick: bool) -> None:
        room = np.empty(size, np.uint8)
        b, w = batch(*addresses), room.ctypes.data
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        while first < last:
            count = min(ENVS, last - first)
            for k in range(count):
                ahead(b, w, first + k, k, clock)
            settle(b, w, first, count, first, clock)
            first += count
        room[0] = 0  # so that it lives until here
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return loop


@lru_cache(maxsize=64)
def _rollout_loop(env: Single, variant: Variant, policy: Any) -> Any:
    access, batch = host_memory(), layout(env, variant).batch
    load, store = access.load, access.store
    (size, ahead, settle), (more, begin, at, act) = compose_blocks(env, variant, access), acting(env, variant, access, policy)

    @njit(nogil=True, error_model="numpy")
    def loop(addresses: Any, steps: int, first: int, last: int, tick: bool) -> None:
        room = np.empty(size + more, np.uint8)
        b, w, v = batch(*addresses), room.ctypes.data, room.ctypes.data + size
        clock = load(b.clock, 0, np.uint32)
        while first < last:
            count = min(ENVS, last - first)
            for k in range(count):
                begin(b, v, first + k, k)
            for t in range(steps):
                now, c, row = np.uint32(clock + np.uint32(t + 1)), at(b, t), t * b.n + first
                for k in range(count):
                    act(b, v, first + k, k, row + k, now)
                for k in range(count):
                    ahead(c, w, first + k, k, now)
                settle(c, w, first, count, row, now)
            first += count
        room[0] = 0  # so that it lives until here
        if tick:
            store(b.clock, 0, np.uint32(clock + np.uint32(steps)), np.uint32)

    count = len(batch._fields)
    with explaining_policy(env, policy):
        compile_for(loop, (types.UniTuple(types.int64, count), types.int64, *SHARE))
    return loop


class HostKernels:
    """The kernels of an env on the CPU; the same calls as `launch.CudaKernels`, whose stream they ignore."""

    blocks, split = 1, False

    def __init__(self, env: Environment, num_envs: int) -> None:
        self._env, self._num_envs = env, num_envs
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
        loop, count = _reset_loop(self._env, variant)

        def call(stream: int, *arguments: Any) -> None:
            loop(arguments[:count], arguments[count:])

        return call

    def step(self, variant: Variant, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        loop, num_envs = _step_loop(self._env, variant), self._num_envs

        def call(stream: int, action: int, outputs: bytes) -> None:
            self._play(loop, members(kept, outputs, num_envs, action=action))

        return call

    def rollout(self, variant: Variant, policy: Any, kept: tuple[int, ...]) -> Callable[[int, int, bytes, int], None]:
        """`launch(stream, action, outputs, steps)`, likewise."""
        assert isinstance(self._env, Single), "games have no rollouts"
        loop, num_envs = _rollout_loop(self._env, variant, policy), self._num_envs

        def call(stream: int, action: int, outputs: bytes, steps: int) -> None:
            self._play(loop, members(kept, outputs, num_envs, action=action), steps)

        return call

    def _play(self, loop: Any, *arguments: Any) -> None:
        """Calls `loop(*arguments, first, last, tick)` for all rows, of which each thread has some."""
        if not self._others:
            loop(*arguments, *self._first, True)
            return
        pool = self._threads()
        parts = [pool.submit(loop, *(*arguments, begin, end, False)) for begin, end in self._others]
        loop(*arguments, *self._first, False)
        for part in parts:
            part.result()
        loop(*arguments, 0, 0, True)  # when all rows have read the clock

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or os.getpid() != self._pid:  # threads do not survive a fork
            self._pool, self._pid = ThreadPoolExecutor(len(self._others), "gpuvec"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown()
        self._pool = None
