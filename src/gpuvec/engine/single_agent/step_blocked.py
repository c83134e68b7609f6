"""Steps on a CPU, for a block of envs at a time: first the author's step of all envs, then the rules of the episodes that end.

A compiler vectorises a loop of arithmetic without branches over eight envs, but not if the loop also contains what few envs
need: autoreset, which draws random numbers, or the end of an episode. So the author's step and observation are computed for all
envs of a block into scratch memory, and stored as if every episode continued. Then the step with branches is applied to the
envs whose episodes do not continue; it takes the results of the author's step from the scratch memory.

The author's step is also computed for an env that awaits its reset, and its result is discarded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, RngStream
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.single_agent.env_functions import (
    BlockScratch,
    EnvAccess,
    EnvFunctions,
    access_for_one_step,
    make_block_scratch,
    make_env_functions,
    read_stream_lazily,
)
from gpuvec.engine.single_agent.episode_rules import EpisodeRules, make_episode_rules
from gpuvec.engine.single_agent.step import action_from_buffer, make_env_step, make_step, make_store_outputs
from gpuvec.spec import SingleAgentEnv

# From this number of features on, observations are copied by a loop: LLVM's time grows with the square of the statements.
LOOP_MIN_FEATURES = 32
BLOCK_SIZE = 256  # envs; the scratch memory of a block fits into the first-level cache


class BlockStep(NamedTuple):
    """The compiled functions of the step of a block; `w` is the address of its scratch memory."""

    scratch_bytes: int
    # evaluate(b, w, e, k, clock): computes the author's step of env e, which has number k in the block
    evaluate: DeviceFunction
    # finish(b, w, e, count, out_index, clock): finishes the step of `count` envs from e on; `out_index` is the first output row
    finish: DeviceFunction


def compose_block_step(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps) -> BlockStep:
    """Compiles the step of a block.

    Args:
        env: the environment.
        options: what the loop is compiled for.
        ops: the operations on buffers.
    """
    functions = make_env_functions(env, options, ops)
    access = access_for_one_step(functions, ops, read_stream_lazily)
    rules = make_episode_rules(functions, access.key, options, ops)
    scratch = make_block_scratch(env, functions.schema, ops, BLOCK_SIZE)
    ended_list = BLOCK_SIZE * scratch.words_per_env
    # Otherwise the step with branches is applied to all envs: without autoreset an env that awaits its reset keeps its state,
    # and with `validate` every action is checked.
    stores_all = (rules.resets_at_end or rules.resets_in_next_step) and not options.validate
    store_continuing = _make_store_continuing(functions, rules, access, scratch, ops)
    compact = _make_compact(scratch, ops, ended_list, stores_all)
    apply_resets = _make_apply_resets(functions, rules, access, scratch, ops, ended_list)

    @inline_function
    def finish(b: Batch, w: int, e: int, count: int, out_index: int, clock: int) -> None:
        if stores_all:
            store_continuing(b, w, e, count, out_index)
        apply_resets(b, w, e, compact(w, count), out_index, clock)

    return BlockStep(4 * (ended_list + BLOCK_SIZE), _make_evaluate(functions, rules, access, scratch), finish)


def _make_evaluate(functions: EnvFunctions, rules: EpisodeRules, access: EnvAccess, scratch: BlockScratch) -> DeviceFunction:
    """`evaluate` as in `BlockStep`."""
    load_env, env_step = access.load_env, make_env_step(functions, access, action_from_buffer(functions))
    elapsed_steps, is_truncated, awaits_reset = rules.elapsed_steps, rules.is_truncated, rules.awaits_reset
    store_result = scratch.store_result

    @inline_function
    def evaluate(b: Batch, w: int, e: int, k: int, clock: int) -> None:
        start, s, stream, p = load_env(b, e)
        t = elapsed_steps(clock, start)
        result = env_step(b, e, start, t, s, stream, p, 0)
        store_result(w, k, result, not is_truncated(t) and not awaits_reset(t))

    return evaluate


def _make_store_continuing(
    functions: EnvFunctions, rules: EpisodeRules, access: EnvAccess, scratch: BlockScratch, ops: MemoryOps
) -> DeviceFunction:
    """`store_continuing(b, w, e, count, out_index)`: stores all envs as if their episodes continued.

    Each loop accesses few arrays: for these a compiler can prove at run time that they do not overlap.
    """
    store_env, resets_at_end = access.store_env, rules.resets_at_end
    load_state, load_obs, load_reward = scratch.load_state, scratch.load_obs, scratch.load_reward
    obs_column = scratch.obs_column
    load, store_streaming, store_row_streaming = ops.load, ops.store_streaming, ops.store_row_streaming
    num_features = functions.schema.num_features
    copies_in_loop = num_features >= LOOP_MIN_FEATURES

    @inline_function
    def store_continuing(b: Batch, w: int, e: int, count: int, out_index: int) -> None:
        for k in range(count):
            store_env(b, e + k, 0, load_state(w, k))
            if not copies_in_loop:
                store_row_streaming(b.obs, out_index + k, load_obs(w, k))
        if copies_in_loop:
            for k in range(count):
                for j in range(num_features):
                    index = obs_column + BLOCK_SIZE * j + k
                    store_streaming(b.obs, i64(out_index + k) * num_features + j, load(w, index, f32), f32)
        for k in range(count):
            store_streaming(b.reward, out_index + k, load_reward(w, k), f32)
        for k in range(count):
            store_streaming(b.terminated, out_index + k, False, b1)
        for k in range(count):
            store_streaming(b.truncated, out_index + k, False, b1)
        if resets_at_end:
            for k in range(count):
                store_streaming(b.final_mask, out_index + k, False, b1)

    return store_continuing


def _make_compact(scratch: BlockScratch, ops: MemoryOps, ended_list: int, stores_all: bool) -> DeviceFunction:
    """`compact(w, count)` -> num_ended: writes the list of the envs that are not stored yet, from index `ended_list` on.

    These are the envs whose episode does not continue, or all envs without `stores_all`. Each iteration stores, without a
    branch, because a mispredicted branch takes longer than the store.
    """
    store, load_continues = ops.store, scratch.load_continues

    @inline_function
    def compact(w: int, count: int) -> int:
        num_ended = 0
        for k in range(count):
            store(w, ended_list + num_ended, i32(k), i32)
            num_ended += 0 if stores_all and load_continues(w, k) else 1
        return num_ended

    return compact


def _make_apply_resets(
    functions: EnvFunctions,
    rules: EpisodeRules,
    access: EnvAccess,
    scratch: BlockScratch,
    ops: MemoryOps,
    ended_list: int,
) -> DeviceFunction:
    """`apply_resets(b, w, e, num_ended, out_index, clock)`: the step with branches, of the envs in the list of `compact`."""
    load, load_env, store_env, store_outputs = ops.load, access.load_env, access.store_env, make_store_outputs(ops)
    step = make_step(functions, rules, access, _make_stored_step(scratch))

    @inline_function
    def apply_resets(b: Batch, w: int, e: int, num_ended: int, out_index: int, clock: int) -> None:
        for j in range(num_ended):
            k = load(w, ended_list + j, i32)
            start, s, stream, p = load_env(b, e + k)
            start, s, obs, reward, terminated, truncated = step(b, e + k, out_index + k, clock, start, s, stream, p, (w, k))
            store_env(b, e + k, start, s)
            store_outputs(b, out_index + k, obs, reward, terminated, truncated)

    return apply_resets


def _make_stored_step(scratch: BlockScratch) -> DeviceFunction:
    """An `env_step` as `make_env_step` returns it, which loads its results from the scratch memory; its action is (w, k)."""
    load_state, load_obs = scratch.load_state, scratch.load_obs
    load_reward, load_terminated = scratch.load_reward, scratch.load_terminated

    @inline_function
    def stored_step(
        b: Batch, e: int, start: int, t: int, s: EnvState, stream: RngStream, p: EnvParams, a: tuple[int, int]
    ) -> Any:
        w, k = a
        return load_state(w, k), load_obs(w, k), load_reward(w, k), load_terminated(w, k)

    return stored_step
