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
from gpuvec.engine.compiler.functions import bind
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, RngStream
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.episode_rules import awaits_reset, elapsed_steps, is_truncated
from gpuvec.engine.single_agent.env_functions import (
    env_values,
    key_read_late,
    load_env,
    load_nothing,
    make_block_scratch,
    make_env_functions,
    store_env,
)
from gpuvec.engine.single_agent.step import env_step, step, store_outputs

# From this number of features on, observations are copied by a loop: LLVM's time grows with the square of the statements.
LOOP_MIN_FEATURES = 32
BLOCK_SIZE = 256  # envs; the scratch memory of a block fits into the first-level cache


# What the functions below read, as in `env_functions`, and: the functions on the scratch memory; the index in it of the list of
# envs that are not stored yet; whether the envs whose episodes continue are stored in a loop of their own, and observations.
ops: Any = None
functions: Any = None
scratch: Any = None
ended_list = 0
same_step, stores_continuing, copies_in_loop = False, False, False


class BlockStep(NamedTuple):
    """The compiled functions of the step of a block; `w` is the address of its scratch memory."""

    scratch_bytes: int
    # evaluate(b, w, e, k, clock): computes the author's step of env e, which has number k in the block
    evaluate: DeviceFunction
    # finish(b, w, e, count, out_index, clock): finishes the step of `count` envs from e on; `out_index` is the first output row
    finish: DeviceFunction


def compose_block_step(spec: KernelSpec, ops: MemoryOps) -> BlockStep:
    """Compiles the step of a block.

    Args:
        spec: what the loop is compiled from.
        ops: the operations on buffers.
    """
    functions = make_env_functions(spec, ops)
    scratch = make_block_scratch(spec.env, functions.schema, ops, BLOCK_SIZE)
    ended_list = BLOCK_SIZE * scratch.words_per_env
    # The stream is read when a number is drawn: in a step, most envs draw none.
    values = env_values(functions, spec.options, ops) | {"load_stream": load_nothing, "key": key_read_late}
    # Otherwise the step with branches is applied to all envs: without autoreset an env that awaits its reset keeps its state,
    # and with `validate` every action is checked.
    stores_continuing = (values["same_step"] or values["next_step"]) and not spec.options.validate
    values |= {"scratch": scratch, "ended_list": ended_list, "stores_continuing": stores_continuing}
    values |= {"copies_in_loop": functions.schema.num_features >= LOOP_MIN_FEATURES}
    return BlockStep(4 * (ended_list + BLOCK_SIZE), bind(evaluate, **values), bind(finish, **values, env_step=stored_step))


def evaluate(b: Batch, w: int, e: int, k: int, clock: int) -> None:
    """As in `BlockStep`."""
    start, s, stream, p = load_env(b, e)
    t = elapsed_steps(clock, start)
    result = env_step(b, e, start, t, s, stream, p, 0)
    scratch.store_result(w, k, result, not is_truncated(t) and not awaits_reset(t))


def finish(b: Batch, w: int, e: int, count: int, out_index: int, clock: int) -> None:
    """As in `BlockStep`: makes the step with branches of the envs that are not stored as if their episodes continued."""
    if stores_continuing:
        store_continuing(b, w, e, count, out_index)
    # The list of the envs that are not stored yet: those whose episode does not continue, or all envs. Each iteration stores,
    # without a branch, because a mispredicted branch takes longer than the store.
    num_ended = 0
    for k in range(count):
        ops.store(w, ended_list + num_ended, i32(k), i32)
        num_ended += 0 if stores_continuing and scratch.load_continues(w, k) else 1
    for j in range(num_ended):
        k = ops.load(w, ended_list + j, i32)
        start, s, stream, p = load_env(b, e + k)
        start, s, obs, reward, terminated, truncated = step(b, e + k, out_index + k, clock, start, s, stream, p, (w, k))
        store_env(b, e + k, start, s)
        store_outputs(b, out_index + k, obs, reward, terminated, truncated)


def store_continuing(b: Batch, w: int, e: int, count: int, out_index: int) -> None:
    """Stores all envs as if their episodes continued.

    Each loop accesses few arrays: for these a compiler can prove at run time that they do not overlap.
    """
    for k in range(count):
        store_env(b, e + k, 0, scratch.load_state(w, k))
        if not copies_in_loop:
            ops.store_row_streaming(b.obs, out_index + k, scratch.load_obs(w, k))
    if copies_in_loop:
        for k in range(count):
            for j in range(functions.schema.num_features):
                index = scratch.obs_column + BLOCK_SIZE * j + k
                out = i64(out_index + k) * functions.schema.num_features + j
                ops.store_streaming(b.obs, out, ops.load(w, index, f32), f32)
    for k in range(count):
        ops.store_streaming(b.reward, out_index + k, scratch.load_reward(w, k), f32)
    for k in range(count):
        ops.store_streaming(b.terminated, out_index + k, False, b1)
    for k in range(count):
        ops.store_streaming(b.truncated, out_index + k, False, b1)
    if same_step:
        for k in range(count):
            ops.store_streaming(b.final_mask, out_index + k, False, b1)


def stored_step(b: Batch, e: int, start: int, t: int, s: EnvState, stream: RngStream, p: EnvParams, a: tuple[int, int]) -> Any:
    """As `env_step`, which loads its results from the scratch memory; its action is (w, k)."""
    w, k = a
    return scratch.load_state(w, k), scratch.load_obs(w, k), scratch.load_reward(w, k), scratch.load_terminated(w, k)
