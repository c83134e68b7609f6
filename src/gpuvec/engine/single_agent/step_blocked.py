"""Steps on a CPU, a block of envs at a time: first the author's step of all of them, then the rules of the episodes that end.

Physics is arithmetic without a branch, of which a compiler makes one instruction for eight envs, if nothing stands beside it
that few envs do: autoreset, which draws random numbers, or the end of an episode. So the author's step and observation are
computed for all envs of a block, into scratch memory, and are stored as if every episode continued. Then the step with branches
is applied to the other envs, with results from the scratch memory in place of the author's step. The author's step of an env
that awaits its reset is computed too, and discarded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, RngStream
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.single_agent.env_access import EnvAccess, access_for_one_step, read_stream_lazily
from gpuvec.engine.single_agent.env_functions import EnvFunctions, make_env_functions
from gpuvec.engine.single_agent.episode_rules import EpisodeRules, make_episode_rules
from gpuvec.engine.single_agent.field_access import BlockScratch, make_block_scratch
from gpuvec.engine.single_agent.step import action_from_buffer, make_env_step, make_step, make_store_outputs
from gpuvec.spec import SingleAgentEnv

LOOP_MIN_FEATURES = 32  # features from which on a loop copies them: LLVM's time grows with the square of the statements
BLOCK_SIZE = 256  # envs of a block, whose scratch memory stays in the nearest cache


class BlockStep(NamedTuple):
    """The compiled functions of a block; `w` is the address of its scratch memory."""

    scratch_bytes: int
    # evaluate(b, w, e, k, clock): computes the author's step of env e, which has number k in the block
    evaluate: DeviceFunction
    # finish(b, w, e, count, at, clock): finishes the step of `count` envs from e on; their outputs begin at row `at`
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
    numbers = BLOCK_SIZE * scratch.words  # index at which the numbers of the envs begin that `compact` selects
    # All envs are stored as if they continued, unless one that is never reset would lose its state, or report a fault.
    stores_all = (rules.resets_at_end or rules.resets_in_next_step) and not options.validate
    store_continuing = _make_store_continuing(functions, rules, access, scratch, ops)
    compact = _make_compact(scratch, ops, numbers, stores_all)
    apply_resets = _make_apply_resets(functions, rules, access, scratch, ops, numbers)

    @inline_function
    def finish(b: Batch, w: int, e: int, count: int, at: int, clock: int) -> None:
        if stores_all:
            store_continuing(b, w, e, count, at)
        apply_resets(b, w, e, compact(w, count), at, clock)

    return BlockStep(4 * (numbers + BLOCK_SIZE), _make_evaluate(functions, rules, access, scratch), finish)


def _make_evaluate(functions: EnvFunctions, rules: EpisodeRules, access: EnvAccess, scratch: BlockScratch) -> DeviceFunction:
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
    """`store_continuing(b, w, e, count, at)`, in loops of few arrays each, which a compiler can tell apart."""
    store_env, resets_at_end = access.store_env, rules.resets_at_end
    load_state, load_row, load_reward = scratch.load_state, scratch.load_row, scratch.load_reward
    row_column = scratch.row_column
    load, store_streaming, store_row_streaming = ops.load, ops.store_streaming, ops.store_row_streaming
    features = functions.schema.num_features
    copies_in_loop = features >= LOOP_MIN_FEATURES

    @inline_function
    def store_continuing(b: Batch, w: int, e: int, count: int, at: int) -> None:
        for k in range(count):
            store_env(b, e + k, 0, load_state(w, k))
            if not copies_in_loop:
                store_row_streaming(b.obs, at + k, load_row(w, k))
        if copies_in_loop:
            for k in range(count):
                for j in range(features):
                    index = row_column + BLOCK_SIZE * j + k
                    store_streaming(b.obs, i64(at + k) * features + j, load(w, index, f32), f32)
        for k in range(count):
            store_streaming(b.reward, at + k, load_reward(w, k), f32)
        for k in range(count):
            store_streaming(b.terminated, at + k, False, b1)
        for k in range(count):
            store_streaming(b.truncated, at + k, False, b1)
        if resets_at_end:
            for k in range(count):
                store_streaming(b.final_mask, at + k, False, b1)

    return store_continuing


def _make_compact(scratch: BlockScratch, ops: MemoryOps, numbers: int, stores_all: bool) -> DeviceFunction:
    """`compact(w, count)` -> num_ended: writes the numbers of the envs whose episode does not continue, or of all without
    `stores_all`, one after the other from index `numbers` on. Without a branch, as a wrong guess costs more than the store.
    """
    store, continues = ops.store, scratch.load_continues

    @inline_function
    def compact(w: int, count: int) -> int:
        num_ended = 0
        for k in range(count):
            store(w, numbers + num_ended, i32(k), i32)
            num_ended += 0 if stores_all and continues(w, k) else 1
        return num_ended

    return compact


def _make_apply_resets(
    functions: EnvFunctions,
    rules: EpisodeRules,
    access: EnvAccess,
    scratch: BlockScratch,
    ops: MemoryOps,
    numbers: int,
) -> DeviceFunction:
    """`apply_resets(b, w, e, num_ended, at, clock)`: the step with branches, of the envs whose numbers `compact` wrote."""
    load, load_env, store_env, store_outputs = ops.load, access.load_env, access.store_env, make_store_outputs(ops)
    step = make_step(functions, rules, access, _make_stored_step(scratch))

    @inline_function
    def apply_resets(b: Batch, w: int, e: int, num_ended: int, at: int, clock: int) -> None:
        for j in range(num_ended):
            k = load(w, numbers + j, i32)
            start, s, stream, p = load_env(b, e + k)
            start, s, row, reward, terminated, truncated = step(b, e + k, at + k, clock, start, s, stream, p, (w, k))
            store_env(b, e + k, start, s)
            store_outputs(b, at + k, row, reward, terminated, truncated)

    return apply_resets


def _make_stored_step(scratch: BlockScratch) -> DeviceFunction:
    """A function as `make_env_step` compiles it, whose result is loaded: its action is (w, k)."""
    load_state, load_row = scratch.load_state, scratch.load_row
    load_reward, load_terminated = scratch.load_reward, scratch.load_terminated

    @inline_function
    def stored_step(
        b: Batch, e: int, start: int, t: int, s: EnvState, stream: RngStream, p: EnvParams, a: tuple[int, int]
    ) -> Any:
        w, k = a
        return load_state(w, k), load_row(w, k), load_reward(w, k), load_terminated(w, k)

    return stored_step
