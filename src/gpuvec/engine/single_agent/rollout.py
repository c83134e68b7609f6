"""Rollouts: T steps of an env in a row. The outputs are stored in arrays of T steps. On a GPU the state stays in registers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.dtypes import i32, i64, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.single_agent.env_access import keep_env_in_registers
from gpuvec.engine.single_agent.env_functions import make_env_functions
from gpuvec.engine.single_agent.episode_rules import make_episode_rules
from gpuvec.engine.single_agent.field_access import make_batch_change
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, Policy, RolloutRequest
from gpuvec.engine.single_agent.rollout_policies import (
    RandomWords,
    make_action_chooser,
    prefetched_random_word,
    random_words_in_blocks,
    uint32_key,
)
from gpuvec.engine.single_agent.step import (
    MakeStep,
    action_argument,
    action_from_buffer,
    make_env_step,
    make_step,
    make_store_outputs,
)
from gpuvec.engine.single_agent.step_blocked import BLOCK_SIZE
from gpuvec.engine.single_agent.step_branchless import make_step_branchless


class RolloutStyle(NamedTuple):
    """The parts of a rollout that exist with branches and without: what only some envs, or some steps, need."""

    make_step: MakeStep
    random_words: RandomWords


# For many envs: while one warp waits for a result, others run.
WITH_BRANCHES = RolloutStyle(make_step, random_words_in_blocks)
# For few envs: a thread that would wait anyway computes what only some envs need.
BRANCHLESS = RolloutStyle(make_step_branchless, prefetched_random_word)


def compose_rollout(spec: KernelSpec, ops: MemoryOps, policy: Policy, style: RolloutStyle) -> DeviceFunction:
    """Compiles `rollout(b, e, clock, r)`: the next `r.steps` steps of env e, which follow step number `clock`.

    The outputs and the actions in `b` are (T, E, ...) arrays. The observations are a (T + 1, E, D) array, which begins with
    the observations before the first step.

    Args:
        spec: what the kernel is compiled from.
        ops: the operations on buffers.
        policy: chooses the actions.
        style: with or without branches.
    """
    functions = make_env_functions(spec, ops)
    access = keep_env_in_registers(functions, ops)
    rules = make_episode_rules(functions, access.key, spec.options, ops)
    action = action_from_buffer(functions) if policy == ACTION_ARRAY else action_argument
    step = style.make_step(functions, rules, access, make_env_step(functions, access, action))
    load_env, store_env, observe, store_outputs = access.load_env, access.store_env, functions.observe, make_store_outputs(ops)
    prepare, choose = make_action_chooser(spec, ops, policy, style.random_words)
    advance_obs, select_actions = _make_advance_obs(spec), _make_select_actions(spec)
    store_row_streaming = ops.store_row_streaming

    @inline_function
    def rollout(b: Batch, e: int, clock: int, r: RolloutRequest) -> None:
        start, s, stream, p = load_env(b, e)
        obs = observe(s, p)
        store_row_streaming(b.obs, e, obs)
        outputs, out_index, step_clock, memory = advance_obs(b), i64(e), u32(clock), prepare(clock, stream)
        for t in range(i32(r.steps)):
            step_clock = u32(step_clock + u32(1))
            action, memory = choose(outputs, out_index, step_clock, stream, memory, obs, p)
            start, s, obs, reward, terminated, truncated = step(
                select_actions(outputs, t), e, out_index, step_clock, start, s, stream, p, action
            )
            store_outputs(outputs, out_index, obs, reward, terminated, truncated)
            out_index += i64(b.n)
        store_env(b, e, start, s)

    return rollout


class BlockPolicy(NamedTuple):
    """The compiled functions of a policy for the envs of a block; `w` is the address of its scratch memory.

    The loop of a rollout on a CPU calls them before those of `BlockStep`, which read the actions that the policy wrote.
    """

    scratch_bytes: int
    # begin(b, w, e, k): writes the observation before the first step of env e, which has index k in the block
    begin: DeviceFunction
    # batch_at(b, t) -> the batch with the buffers of step t, from 0
    batch_at: DeviceFunction
    # act(b, w, e, k, out_index, clock): writes the action of step number `clock` as row `out_index` of the actions
    act: DeviceFunction


def compose_block_policy(spec: KernelSpec, ops: MemoryOps, policy: Policy) -> BlockPolicy:
    """Compiles the policy of a block.

    Its scratch memory has a column of envs for each word of the random-number streams, so that a compiler can vectorise draws.

    Args:
        spec: what the loop is compiled from.
        ops: the operations on buffers.
        policy: chooses the actions.
    """
    functions = make_env_functions(spec, ops)
    load_env, observe = keep_env_in_registers(functions, ops).load_env, functions.observe
    prepare, choose = make_action_chooser(spec, ops, policy, prefetched_random_word)
    advance_obs, select_actions = _make_advance_obs(spec), _make_select_actions(spec)
    store_row_streaming, load, store = ops.store_row_streaming, ops.load, ops.store

    @inline_function
    def begin(b: Batch, w: int, e: int, k: int) -> None:
        _, s, stream, p = load_env(b, e)
        store_row_streaming(b.obs, e, observe(s, p))
        store(w, k, stream.seed, u32)
        store(w, BLOCK_SIZE + k, stream.seed_high, u32)
        store(w, 2 * BLOCK_SIZE + k, stream.row, u32)
        store(w, 3 * BLOCK_SIZE + k, stream.episode, u32)

    @inline_function
    def batch_at(b: Batch, t: int) -> Batch:
        return select_actions(advance_obs(b), t)

    @inline_function
    def act(b: Batch, w: int, e: int, k: int, out_index: int, clock: int) -> None:
        _, s, _, p = load_env(b, e)
        seed, seed_high = load(w, k, u32), load(w, BLOCK_SIZE + k, u32)
        row, episode = load(w, 2 * BLOCK_SIZE + k, u32), load(w, 3 * BLOCK_SIZE + k, u32)
        stream = uint32_key(seed, seed_high, row, episode, i32(0))
        choose(b, out_index, clock, stream, prepare(u32(clock - u32(1)), stream), observe(s, p), p)

    return BlockPolicy(16 * BLOCK_SIZE, begin, batch_at, act)


def _make_advance_obs(spec: KernelSpec) -> DeviceFunction:
    """`advance_obs(b)`: the batch whose observations begin after those before the first step."""
    size = _bytes_per_env(spec.layout.outputs["obs"])
    return make_batch_change(spec.batch, "b", obs=f"u64(b.obs) + u64(b.n) * u64({size})")


def _make_select_actions(spec: KernelSpec) -> DeviceFunction:
    """`select_actions(b, t)`: the batch whose actions begin with those of step t, from 0."""
    size = _bytes_per_env(spec.layout.inputs["action"]._replace(dtype=spec.options.action_dtype))
    return make_batch_change(spec.batch, "b, t", action=f"u64(b.action) + u64(t) * (u64(b.n) * u64({size}))")


def _bytes_per_env(buffer: Buffer) -> int:
    """The size of one env's elements of a `buffer`."""
    return int(np.prod(buffer.shape, dtype=np.int64)) * int(np.dtype(buffer.dtype).itemsize)
