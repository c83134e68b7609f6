"""Rollouts: T steps of an env at one go, its state in registers, straight into storage of T times what a step returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import Buffer, KernelOptions
from gpuvec.engine.layout.schema import make_layout
from gpuvec.engine.single_agent.rollout_options import GIVEN
from gpuvec.engine.single_agent.rollout_policies import make_action_chooser
from gpuvec.engine.single_agent.step import game
from gpuvec.engine.single_agent.step_blocked import ENVS
from gpuvec.random import Key
from gpuvec.spec import SingleAgentEnv

Stream: Any = Key  # of uint32, which are no ints to mypy
i32, i64, u32, u64 = np.int32, np.int64, np.uint32, np.uint64


def compose(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps, policy: Any, ahead: bool = False) -> Any:
    """`play(b, e, clock, r)`: the next `r.steps` steps of env `e`, `clock` being the number of steps before.

    The addresses of what is returned, and of the actions, are those of (T, E, ...) arrays, that of the observations of a
    (T + 1, E, D) one, whose first rows are the observations before. With `ahead`, what few envs or steps need is worked out in
    every step, for threads that would wait meanwhile (`engine.single_agent.step_branchless`).
    """
    _, open, observe, _, turn, show, close = game(env, options, ops, held=True, chosen=policy != GIVEN, branchless=ahead)
    prepare, choose = make_action_chooser(env, ops, policy, ahead)
    after, acting, store_row_streaming = _after(env, options), _acting(env, options), ops.store_row_streaming

    @inline_function
    def play(b: Any, e: int, clock: int, r: Any) -> None:
        start, s, stream, p = open(b, e)
        row = observe(s, p)
        store_row_streaming(b.obs, e, row)
        c, at, now, memory = after(b), i64(e), u32(clock), prepare(clock, stream)
        for t in range(i32(r.steps)):
            now = u32(now + u32(1))
            action, memory = choose(c, at, now, stream, memory, row, p)
            start, s, row, reward, terminated, truncated = turn(acting(c, t), e, at, now, start, s, stream, p, action)
            show(c, at, row, reward, terminated, truncated)
            at += i64(b.n)
        close(b, e, start, s)

    return play


class Acting(NamedTuple):
    """What a rollout on a CPU needs beside `blocks`: before a step a policy acts for all envs of a block, whose room is `w`."""

    size: int  # bytes of the room
    begin: Any  # begin(b, w, e, k): writes the observation before the first step of env e, which is number k of the block
    at: Any  # at(b, t): the batch as step t, from 0, finds it
    act: Any  # act(b, w, e, k, at, clock): writes the action of step number `clock`, as row `at` of the actions


def acting(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps, policy: Any) -> Acting:
    """Those of `env`. The actions are read as given ones then, which they equal when they are played back.

    The room holds the envs' streams, word by word: so a compiler draws for eight envs with one instruction.
    """
    _, open, observe, *_ = game(env, options, ops, held=True)
    prepare, choose = make_action_chooser(env, ops, policy, ahead=True)
    after, given = _after(env, options), _acting(env, options)
    store_row_streaming, load, store = ops.store_row_streaming, ops.load, ops.store

    @inline_function
    def begin(b: Any, w: int, e: int, k: int) -> None:
        _, s, stream, p = open(b, e)
        store_row_streaming(b.obs, e, observe(s, p))
        store(w, k, stream.seed, u32)
        store(w, ENVS + k, stream.seed_high, u32)
        store(w, 2 * ENVS + k, stream.row, u32)
        store(w, 3 * ENVS + k, stream.episode, u32)

    @inline_function
    def at(b: Any, t: int) -> Any:
        return given(after(b), t)

    @inline_function
    def act(b: Any, w: int, e: int, k: int, at: int, clock: int) -> None:
        _, s, _, p = open(b, e)
        held = load(w, k, u32), load(w, ENVS + k, u32), load(w, 2 * ENVS + k, u32), load(w, 3 * ENVS + k, u32)
        stream = Stream(held[0], held[1], held[2], held[3], i32(0))
        choose(b, at, clock, stream, prepare(u32(clock - u32(1)), stream), observe(s, p), p)

    return Acting(16 * ENVS, begin, at, act)


def _after(env: SingleAgentEnv, options: KernelOptions) -> Any:
    """`after(b)`: the batch with the observations after each step, which begin behind those before the first."""
    found = make_layout(env, options)
    return _changed(found.batch, "after(b)", obs=f"u64(b.obs) + u64(b.n) * u64({_bytes(found.outputs['obs'])})")


def _acting(env: SingleAgentEnv, options: KernelOptions) -> Any:
    """`acting(b, t)`: the batch with the actions of step t, from 0."""
    found = make_layout(env, options)
    size = _bytes(found.inputs["action"]._replace(dtype=options.action_dtype))
    return _changed(found.batch, "acting(b, t)", action=f"u64(b.action) + u64(t) * (u64(b.n) * u64({size}))")


def _changed(batch: Any, head: str, **values: str) -> Any:
    found = ", ".join(values.get(name, f"b.{name}") for name in batch._fields)
    return inline_function(
        generate_function(head.partition("(")[0], f"def {head}:\n    return Batch({found})\n", Batch=batch, u64=u64)
    )


def _bytes(buffer: Buffer) -> int:
    """Of one env."""
    return int(np.prod(buffer.shape, dtype=np.int64)) * int(np.dtype(buffer.dtype).itemsize)
