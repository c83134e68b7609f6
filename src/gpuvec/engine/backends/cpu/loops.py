"""The composed functions of an environment in loops over its envs, as machine code for the CPU.

A loop takes the address of the members of a batch and of what a reset asks for, 8 bytes each, the address of memory of its own,
and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from gpuvec.engine.backends.cpu.object_code import ObjectCode, compile_object
from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.diagnostics import explain_env_errors
from gpuvec.engine.compiler.functions import compile_for, dispatcher_of, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.layout.schema import make_layout, make_schema
from gpuvec.engine.multi_agent.launch_mapping import CPU_LAUNCH
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.engine.multi_agent.segments import BlockShape, Segment, segment_source
from gpuvec.engine.multi_agent.shared_counters import cpu_shared_counters
from gpuvec.engine.single_agent.env_functions import make_env_functions
from gpuvec.engine.single_agent.rollout import compose_block_policy
from gpuvec.engine.single_agent.rollout_options import Policy
from gpuvec.engine.single_agent.rollout_policies import explain_policy_errors
from gpuvec.engine.single_agent.step import compose_reset
from gpuvec.engine.single_agent.step_blocked import BLOCK_SIZE, compose_block_step
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv


class _MultiAgentLoop(NamedTuple):
    """The functions of a loop over envs of many agents, and the memory that they need."""

    scratch_bytes: int
    # make_work(address) -> views of the memory there. They are no arrays, whose references Numba would count.
    make_work: DeviceFunction
    reset_env: DeviceFunction  # reset_env(b, w, e, clock, r)
    step_env: DeviceFunction  # step_env(b, w, e, clock)


@lru_cache(maxsize=2)  # a reset and a step share most functions, which are compiled once
def _multi_agent_loop(env: MultiAgentEnv, options: KernelOptions) -> _MultiAgentLoop:
    """The functions of an environment of many agents, by one thread."""
    array_ops = cpu_array_ops()
    program = make_program(env, options, cpu_memory_ops(), array_ops, cpu_shared_counters(), CPU_LAUNCH)
    scope = {"Work": program.work, "view": array_ops.view, "assume_nonnegative": array_ops.assume_nonnegative}
    scratch_bytes, views = 0, []
    for name, (dtype, shape) in program.arrays.items():
        scope[f"t_{name}"] = dtype
        views.append(f"view(address + {scratch_bytes}, 0, {shape}, t_{name})")
        scratch_bytes += -(-math.prod(shape) * np.dtype(dtype).itemsize // 8) * 8  # all begin at multiples of eight
    block = BlockShape(1, make_schema(env).agents_shape[0], 1)

    def lines(name: str, segments: tuple[Segment, ...], margin: str = "    ") -> str:
        """Lines that run the segments; one thread needs no barriers."""
        scope.update({f"{name}_{n}": segment.function for n, segment in enumerate(segments)})
        without_barrier = (segment._replace(barrier=False) for segment in segments)
        return "".join(segment_source(s, f"{name}_{n}", block, margin) for n, s in enumerate(without_barrier))

    scope["check_end"] = program.check_end.function
    start, finish = "    e0, m, thread = e, 1, 0\n", lines("finish", program.finish)
    reset = f"def reset_env(b, w, e, clock, r):\n{start}{lines('reset', program.reset)}{finish}"
    step = f"def step_env(b, w, e, clock):\n{start}{lines('step', program.step)}    has_ended = check_end(b, w, e0, 0, clock)\n"
    if program.episode_end:
        step += f"    if has_ended:\n{lines('end', program.episode_end, '        ')}"
    work = f"def make_work(address):\n    return Work({', '.join(views)})\n"
    sources = {"make_work": work, "reset_env": reset, "step_env": step + finish}
    functions = (inline_function(generate_function(name, source, **scope)) for name, source in sources.items())
    return _MultiAgentLoop(scratch_bytes, *functions)


def _alone(env: SingleAgentEnv, options: KernelOptions) -> tuple[int, Any, Any]:
    """(size, work, begin) of one env of one agent, which needs no `w`."""
    ops = cpu_memory_ops()
    reset_env = compose_reset(make_env_functions(env, options, ops), ops)

    @inline_function
    def work(place: int) -> int:
        return 0

    @inline_function
    def begin(b: Any, w: Any, e: int, clock: int, r: Any) -> None:
        reset_env(b, e, clock, r)

    return 0, work, begin


def _read(kind: Any, dtypes: tuple[Any, ...], first: int = 0) -> Any:
    """read(m) -> the NamedTuple of that `kind` whose fields are at address `m`, from word `first` on."""
    scope = {"Kind": kind, "load": cpu_memory_ops().load} | {f"t{k}": dtype for k, dtype in enumerate(dtypes)}
    parts = ", ".join(f"load(m + {8 * (first + k)}, 0, t{k})" for k in range(len(dtypes)))
    return inline_function(generate_function("read", f"def read(m):\n    return Kind({parts})\n", **scope))


def read_members(batch: Any) -> Any:
    """read(m) -> the `batch` whose members, of 64 bits, are at address `m`."""
    return _read(batch, (np.int64,) * len(batch._fields))


def _batch(env: Environment, options: KernelOptions) -> Any:
    return read_members(make_layout(env, options).batch)


def compile_native(function: Callable[..., None], room: int) -> ObjectCode:
    """Machine code of a function of numbers of 64 bits that a thread lends `room` bytes, at its second argument."""
    dispatcher = dispatcher_of(function)
    arguments = function.__code__.co_argcount
    compile_for(dispatcher, (types.int64,) * arguments)
    (signature_,) = dispatcher.signatures
    compiled = dispatcher.overloads[signature_]
    return compile_object(compiled.library.optimized(), compiled.fndesc.llvm_func_name, arguments, room)


def reset_loop(env: Environment, options: KernelOptions) -> ObjectCode:
    """`loop(m, room)`."""
    load, read = cpu_memory_ops().load, _batch(env, options)
    size, work, begin = _alone(env, options) if isinstance(env, SingleAgentEnv) else _multi_agent_loop(env, options)[:3]
    ask = _read(request_class(env), request_dtypes(env), len(make_layout(env, options).batch._fields))

    def loop(m: int, room: int) -> None:
        b, r, w = read(m), ask(m), work(room)
        clock = load(b.clock, 0, np.uint32)
        for e in range(b.n):
            begin(b, w, e, clock, r)

    with explain_env_errors(env, "reset"):
        return compile_native(loop, size)


def step_loop(env: Environment, options: KernelOptions) -> ObjectCode:
    """`loop(m, room, first, last, tick)`: rows from the first to the last, and whether the clock moves."""
    with explain_env_errors(env, "step"):
        return _block_loop(env, options) if isinstance(env, SingleAgentEnv) else _agents_loop(env, options)


def _agents_loop(env: MultiAgentEnv, options: KernelOptions) -> ObjectCode:
    """The loop of a step of many agents."""
    ops, read = cpu_memory_ops(), _batch(env, options)
    load, store = ops.load, ops.store
    scratch_bytes, make_work, _, step_env = _multi_agent_loop(env, options)

    def loop(m: int, scratch: int, first: int, last: int, tick: int) -> None:
        b, w = read(m), make_work(scratch)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, last):
            step_env(b, w, e, clock)
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return compile_native(loop, scratch_bytes)


def _block_loop(env: SingleAgentEnv, options: KernelOptions) -> ObjectCode:
    ops, read = cpu_memory_ops(), _batch(env, options)
    load, store = ops.load, ops.store
    scratch_bytes, evaluate, finish = compose_block_step(env, options, ops)

    def loop(m: int, scratch: int, first: int, last: int, tick: int) -> None:
        b = read(m)
        clock = np.uint32(load(b.clock, 0, np.uint32) + np.uint32(1))
        while first < last:
            count = min(BLOCK_SIZE, last - first)
            for k in range(count):
                evaluate(b, scratch, first + k, k, clock)
            finish(b, scratch, first, count, first, clock)
            first += count
        if tick:
            store(b.clock, 0, clock, np.uint32)

    return compile_native(loop, scratch_bytes)


def rollout_loop(env: SingleAgentEnv, options: KernelOptions, policy: Policy) -> ObjectCode:
    """Compiles `loop(m, scratch, steps, first, last, tick)`: `steps` steps of the envs from the first up to the last.

    Args:
        env: the environment.
        options: what the loop is compiled for.
        policy: chooses the actions.

    Returns:
        Machine code that takes the addresses of the members of the batch and of scratch memory, and whether the clock advances.
    """
    with explain_policy_errors(env, policy):
        loop, scratch_bytes = _compose_rollout_loop(env, options, policy)
        return compile_native(loop, scratch_bytes)


def _compose_rollout_loop(env: SingleAgentEnv, options: KernelOptions, policy: Policy) -> tuple[Callable[..., None], int]:
    """The loop of a rollout, and the bytes of its scratch memory: that of the steps, and behind it that of the policy."""
    ops, read = cpu_memory_ops(), _batch(env, options)
    load, store = ops.load, ops.store
    step_bytes, evaluate, finish = compose_block_step(env, options, ops)
    policy_bytes, begin, batch_at, act = compose_block_policy(env, options, ops, policy)

    def loop(m: int, scratch: int, steps: int, first: int, last: int, tick: int) -> None:
        b, w, v = read(m), scratch, scratch + step_bytes
        clock = load(b.clock, 0, np.uint32)
        while first < last:
            count = min(BLOCK_SIZE, last - first)
            for k in range(count):
                begin(b, v, first + k, k)
            for t in range(steps):
                now, c, row = np.uint32(clock + np.uint32(t + 1)), batch_at(b, t), t * b.n + first
                for k in range(count):
                    act(b, v, first + k, k, row + k, now)
                for k in range(count):
                    evaluate(c, w, first + k, k, now)
                finish(c, w, first, count, row, now)
            first += count
        if tick:
            store(b.clock, 0, np.uint32(clock + np.uint32(steps)), np.uint32)

    return loop, step_bytes + policy_bytes
