"""Loops over the envs of a batch: a reset, a step and a rollout for the CPU, each compiled to one function of machine code.

A loop takes integers of 64 bits: the address of its arguments, 8 bytes each (the members of the batch, then the scalars of a
reset's request), the address of the calling thread's scratch memory, and numbers such as the first env.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from gpuvec.engine.backends.cpu.object_code import ObjectCode, compile_object
from gpuvec.engine.backends.cuda.cpp.source import load_library
from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.functions import compile_for, generate_function, inline_function, make_dispatcher
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.compiler.numba_api import cpu_numba
from gpuvec.engine.compiler.types import DeviceFunction, DType
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.engine.multi_agent.context import cpu_shared_counters
from gpuvec.engine.multi_agent.launch_mapping import CPU_LAUNCH
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.engine.multi_agent.segments import BlockShape, Segment, segment_source
from gpuvec.engine.single_agent.rollout import compose_block_policy, explain_kernel_errors
from gpuvec.engine.single_agent.rollout_options import Policy
from gpuvec.engine.single_agent.step import compose_reset_and_step
from gpuvec.engine.single_agent.step_blocked import BLOCK_SIZE, compose_block_step


class _MultiAgentLoop(NamedTuple):
    """The functions that a loop over envs of many agents calls, and the size of their scratch memory."""

    scratch_bytes: int
    # make_work(address) -> `w`, whose members are views of the scratch memory there
    make_work: DeviceFunction
    reset_env: DeviceFunction  # reset_env(b, w, e, clock, r)
    step_env: DeviceFunction  # step_env(b, w, e, clock)


@lru_cache(maxsize=2)  # a reset and a step share most functions, which are compiled once
def _multi_agent_loop(spec: KernelSpec) -> _MultiAgentLoop:
    """The functions of an environment of many agents, each of which does for one env what a CUDA block does."""
    array_ops = cpu_array_ops()
    program = make_program(spec, cpu_memory_ops(), array_ops, cpu_shared_counters(), CPU_LAUNCH)
    scope = {"Work": program.work, "assume_nonnegative": array_ops.assume_nonnegative}
    scratch_bytes, views = 0, []
    for name, (dtype, shape) in program.arrays.items():
        scope |= {f"t_{name}": dtype, f"view_{name}": array_ops.view(shape)}
        views.append(f"view_{name}(address + {scratch_bytes}, 0, t_{name})")
        scratch_bytes += -(-math.prod(shape) * np.dtype(dtype).itemsize // 8) * 8  # each view is aligned to 8 bytes
    block = BlockShape(1, spec.schema.num_agents, 1)

    def segment_lines(name: str, segments: tuple[Segment, ...], margin: str = "    ") -> str:
        """Lines that run the segments, without barriers, as there is one thread."""
        scope.update({f"{name}_{n}": segment.function for n, segment in enumerate(segments)})
        without_barrier = (segment._replace(barrier=False) for segment in segments)
        return "".join(segment_source(s, f"{name}_{n}", block, margin) for n, s in enumerate(without_barrier))

    scope["check_end"] = program.check_end.function
    prologue, finish = "    e0, m, thread = e, 1, 0\n", segment_lines("finish", program.finish)
    reset = f"def reset_env(b, w, e, clock, r):\n{prologue}{segment_lines('reset', program.reset)}{finish}"
    step = f"def step_env(b, w, e, clock):\n{prologue}{segment_lines('step', program.step)}"
    step += "    has_ended = check_end(b, w, e0, 0, 0, clock)\n"
    if program.episode_end:
        step += f"    if has_ended:\n{segment_lines('end', program.episode_end, '        ')}"
    work = f"def make_work(address):\n    return Work({', '.join(views)})\n"
    sources = {"make_work": work, "reset_env": reset, "step_env": step + finish}
    functions = (inline_function(generate_function(name, source, **scope)) for name, source in sources.items())
    return _MultiAgentLoop(scratch_bytes, *functions)


def _make_tuple_reader(tuple_class: type, dtypes: tuple[DType, ...], first: int = 0) -> DeviceFunction:
    """`read(address)` -> a NamedTuple of `tuple_class`, whose members are the arguments from number `first` on."""
    scope = {"Tuple": tuple_class, "load": cpu_memory_ops().load} | {f"t{k}": dtype for k, dtype in enumerate(dtypes)}
    members = ", ".join(f"load(address + {8 * (first + k)}, 0, t{k})" for k in range(len(dtypes)))
    read: DeviceFunction = generate_function("read", f"def read(address):\n    return Tuple({members})\n", **scope)
    return inline_function(read)


def make_batch_reader(batch_class: type) -> DeviceFunction:
    """Compiles `read(address)` -> the batch whose members are stored from `address` on, 8 bytes each.

    Args:
        batch_class: a NamedTuple class, such as `Layout.batch`.
    """
    return _make_tuple_reader(batch_class, (np.int64,) * len(batch_class._fields))  # type: ignore[attr-defined]  # a NamedTuple


def compile_native(function: Callable[..., None], scratch_bytes: int) -> ObjectCode:
    """Machine code of a Python function whose arguments are integers of 64 bits.

    Args:
        function: the function.
        scratch_bytes: the size of the scratch memory at the address that is its second argument.
    """
    dispatcher = make_dispatcher(function)
    num_arguments = function.__code__.co_argcount
    compile_for(dispatcher, (types.int64,) * num_arguments)
    (argument_types,) = dispatcher.signatures
    compiled = dispatcher.overloads[argument_types]
    return compile_object(compiled.library.optimized(), compiled.fndesc.llvm_func_name, num_arguments, scratch_bytes)


def compile_loop(kind: str, spec: KernelSpec, *policy: Policy) -> ObjectCode:
    """Compiles a loop over envs.

    Args:
        kind: "reset" for `loop(address, scratch)`, which resets the envs that the request selects; "step" for
            `loop(address, scratch, first, end, advances_clock)`, a step of the envs from the first up to the end; "rollout" for
            `loop(address, scratch, steps, first, end, advances_clock)`, which makes that many steps.
        spec: what the loop is compiled from.
        policy: chooses the actions of a rollout.
    """
    compose_step = _single_agent_step if isinstance(spec.schema, SingleAgentSchema) else _multi_agent_step
    compose: Any = {"reset": _reset, "step": compose_step, "rollout": _rollout}[kind]
    if spec.options.cuda_c:
        from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions

        spec, source = substitute_cuda_functions(spec, cpu_numba())
        assert source is not None, "options.cuda_c has a source"
        load_library(source)
    with explain_kernel_errors(spec.env, kind, *policy):
        return compile_native(*compose(spec, *policy))


def _reset(spec: KernelSpec) -> tuple[Callable[..., None], int]:
    """The loop of a reset, and the size of its scratch memory."""
    ops, read_batch = cpu_memory_ops(), make_batch_reader(spec.batch)
    read_request = _make_tuple_reader(request_class(spec.env), request_dtypes(spec.env), len(spec.batch._fields))
    if isinstance(spec.schema, SingleAgentSchema):
        reset, _ = compose_reset_and_step(spec, ops)

        def single_agent_loop(address: int, scratch: int) -> None:
            b, r = read_batch(address), read_request(address)
            clock = ops.load(b.clock, 0, np.uint32)
            for e in range(b.n):
                reset(b, e, clock, r)

        return single_agent_loop, 0
    scratch_bytes, make_work, reset_env, _ = _multi_agent_loop(spec)

    def loop(address: int, scratch: int) -> None:
        b, r, w = read_batch(address), read_request(address), make_work(scratch)
        clock = ops.load(b.clock, 0, np.uint32)
        for e in range(b.n):
            reset_env(b, w, e, clock, r)

    return loop, scratch_bytes


def _multi_agent_step(spec: KernelSpec) -> tuple[Callable[..., None], int]:
    """The loop of a step of many agents, env by env, and the size of its scratch memory."""
    ops, read_batch = cpu_memory_ops(), make_batch_reader(spec.batch)
    scratch_bytes, make_work, _, step_env = _multi_agent_loop(spec)

    def loop(address: int, scratch: int, first: int, end: int, advances_clock: int) -> None:
        b, w = read_batch(address), make_work(scratch)
        clock = np.uint32(ops.load(b.clock, 0, np.uint32) + np.uint32(1))
        for e in range(first, end):
            step_env(b, w, e, clock)
        if advances_clock:
            ops.store(b.clock, 0, clock, np.uint32)

    return loop, scratch_bytes


def _single_agent_step(spec: KernelSpec) -> tuple[Callable[..., None], int]:
    """The loop of a step of one agent, a block of envs at a time (`single_agent.step_blocked`), and its scratch memory."""
    ops, read_batch = cpu_memory_ops(), make_batch_reader(spec.batch)
    scratch_bytes, evaluate, finish = compose_block_step(spec, ops)

    def loop(address: int, scratch: int, first: int, end: int, advances_clock: int) -> None:
        b = read_batch(address)
        clock = np.uint32(ops.load(b.clock, 0, np.uint32) + np.uint32(1))
        while first < end:
            count = min(BLOCK_SIZE, end - first)
            for k in range(count):
                evaluate(b, scratch, first + k, k, clock)
            finish(b, scratch, first, count, first, clock)
            first += count
        if advances_clock:
            ops.store(b.clock, 0, clock, np.uint32)

    return loop, scratch_bytes


def _rollout(spec: KernelSpec, policy: Policy) -> tuple[Callable[..., None], int]:
    """The loop of a rollout, and the size of its scratch memory: that of the steps, followed by that of the policy."""
    ops, read_batch = cpu_memory_ops(), make_batch_reader(spec.batch)
    step_bytes, evaluate, finish = compose_block_step(spec, ops)
    policy_bytes, begin, batch_at, act = compose_block_policy(spec, ops, policy)

    def loop(address: int, scratch: int, steps: int, first: int, end: int, advances_clock: int) -> None:
        b, step_scratch, policy_scratch = read_batch(address), scratch, scratch + step_bytes
        clock = ops.load(b.clock, 0, np.uint32)
        while first < end:
            count = min(BLOCK_SIZE, end - first)
            for k in range(count):
                begin(b, policy_scratch, first + k, k)
            for t in range(steps):
                now, batch_of_step, row = np.uint32(clock + np.uint32(t + 1)), batch_at(b, t), t * b.n + first
                for k in range(count):
                    act(b, policy_scratch, first + k, k, row + k, now)
                for k in range(count):
                    evaluate(batch_of_step, step_scratch, first + k, k, now)
                finish(batch_of_step, step_scratch, first, count, row, now)
            first += count
        if advances_clock:
            ops.store(b.clock, 0, np.uint32(clock + np.uint32(steps)), np.uint32)

    return loop, step_bytes + policy_bytes
