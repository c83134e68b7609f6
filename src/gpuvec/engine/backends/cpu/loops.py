"""The composed functions of an environment in loops over its envs, as machine code for the CPU.

A loop takes the address of the members of a batch and of what a reset asks for, 8 bytes each, the address of memory of its own,
and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import types

from gpuvec.engine.backends.cpu.object_code import Native, native
from gpuvec.engine.compiler.array_ops import host_arrays
from gpuvec.engine.compiler.diagnostics import explaining
from gpuvec.engine.compiler.functions import compile_for, dispatcher_of, generated, inline
from gpuvec.engine.compiler.memory_ops import host_memory
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request, request_dtypes
from gpuvec.engine.layout.schema import layout, signature
from gpuvec.engine.multi_agent.launch_mapping import ONE_BY_ONE
from gpuvec.engine.multi_agent.program import compose as compose_many
from gpuvec.engine.multi_agent.reductions import host_tally
from gpuvec.engine.multi_agent.segments import Block, Segment, loop
from gpuvec.engine.single_agent.rollout import acting
from gpuvec.engine.single_agent.rollout_policies import explaining_policy
from gpuvec.engine.single_agent.step import game
from gpuvec.engine.single_agent.step_blocked import ENVS
from gpuvec.engine.single_agent.step_blocked import compose as compose_blocks
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv


@lru_cache(maxsize=2)  # what a reset and a step have in common is compiled once
def _composed(env: MultiAgentEnv, variant: KernelOptions) -> tuple[int, Any, Any, Any]:
    """(size, work, begin, advance): `begin(b, w, e, clock, r)` and `advance(b, w, e, clock)` of one env of many agents.

    `w` is what `work(place)` gives, views of `size` bytes at that address: Numba would count references to arrays.
    """
    access, arrays, size = host_memory(), host_arrays(), 0
    program = compose_many(env, variant, access, arrays, host_tally(), ONE_BY_ONE)
    (agents,) = signature(env).agents
    scope = {"Work": program.work, "view": arrays.view, "assume_nonnegative": arrays.assume_nonnegative}
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


def _alone(env: SingleAgentEnv, variant: KernelOptions) -> tuple[int, Any, Any]:
    """(size, work, begin) of one env of one agent, which needs no `w`."""
    begin_one = game(env, variant, host_memory()).begin

    @inline
    def work(place: int) -> int:
        return 0

    @inline
    def begin(b: Any, w: Any, e: int, clock: int, r: Any) -> None:
        begin_one(b, e, clock, r)

    return 0, work, begin


def _read(kind: Any, dtypes: tuple[Any, ...], first: int = 0) -> Any:
    """read(m) -> the NamedTuple of that `kind` whose fields are at address `m`, from word `first` on."""
    scope = {"Kind": kind, "load": host_memory().load} | {f"t{k}": dtype for k, dtype in enumerate(dtypes)}
    parts = ", ".join(f"load(m + {8 * (first + k)}, 0, t{k})" for k in range(len(dtypes)))
    return inline(generated("read", f"def read(m):\n    return Kind({parts})\n", **scope))


def read_members(batch: Any) -> Any:
    """read(m) -> the `batch` whose members, of 64 bits, are at address `m`."""
    return _read(batch, (np.int64,) * len(batch._fields))


def _batch(env: Environment, variant: KernelOptions) -> Any:
    return read_members(layout(env, variant).batch)


def compile_native(function: Callable[..., None], room: int) -> Native:
    """Machine code of a function of numbers of 64 bits that a thread lends `room` bytes, at its second argument."""
    dispatcher = dispatcher_of(function)
    arguments = function.__code__.co_argcount
    compile_for(dispatcher, (types.int64,) * arguments)
    (signature_,) = dispatcher.signatures
    compiled = dispatcher.overloads[signature_]
    return native(compiled.library.optimized(), compiled.fndesc.llvm_func_name, arguments, room)


def reset_loop(env: Environment, variant: KernelOptions) -> Native:
    """`loop(m, room)`."""
    load, read = host_memory().load, _batch(env, variant)
    size, work, begin = _alone(env, variant) if isinstance(env, SingleAgentEnv) else _composed(env, variant)[:3]
    ask = _read(request(env), request_dtypes(env), len(layout(env, variant).batch._fields))

    def loop(m: int, room: int) -> None:
        b, r, w = read(m), ask(m), work(room)
        clock = load(b.clock, 0, np.uint32)
        for e in range(b.n):
            begin(b, w, e, clock, r)

    with explaining(env.reset):
        return compile_native(loop, size)


def step_loop(env: Environment, variant: KernelOptions) -> Native:
    """`loop(m, room, first, last, tick)`: rows from the first to the last, and whether the clock moves."""
    with explaining(env.step if isinstance(env, SingleAgentEnv) else env.reward):
        return _block_loop(env, variant) if isinstance(env, SingleAgentEnv) else _agents_loop(env, variant)


def _agents_loop(env: MultiAgentEnv, variant: KernelOptions) -> Native:
    access, read = host_memory(), _batch(env, variant)
    load, store = access.load, access.store
    size, work, _, advance = _composed(env, variant)

    def loop(m: int, room: int, first: int, last: int, tick: int) -> None:
        b, w = read(m), work(room)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, last):
            advance(b, w, e, clock)
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return compile_native(loop, size)


def _block_loop(env: SingleAgentEnv, variant: KernelOptions) -> Native:
    access, read = host_memory(), _batch(env, variant)
    load, store = access.load, access.store
    size, ahead, settle = compose_blocks(env, variant, access)

    def loop(m: int, room: int, first: int, last: int, tick: int) -> None:
        b = read(m)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        while first < last:
            count = min(ENVS, last - first)
            for k in range(count):
                ahead(b, room, first + k, k, clock)
            settle(b, room, first, count, first, clock)
            first += count
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return compile_native(loop, size)


def rollout_loop(env: SingleAgentEnv, variant: KernelOptions, policy: Any) -> Native:
    """`loop(m, room, steps, first, last, tick)`."""
    access, read = host_memory(), _batch(env, variant)
    load, store = access.load, access.store
    with explaining_policy(env, policy):
        (size, ahead, settle), (more, begin, at, act) = (
            compose_blocks(env, variant, access),
            acting(env, variant, access, policy),
        )

        def loop(m: int, room: int, steps: int, first: int, last: int, tick: int) -> None:
            b, w, v = read(m), room, room + size
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
            if tick:
                store(b.clock, 0, np.uint32(clock + np.uint32(steps)), np.uint32)

        return compile_native(loop, size + more)
