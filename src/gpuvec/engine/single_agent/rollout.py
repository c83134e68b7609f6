"""Rollouts: T steps of an env in a row. The outputs are stored in arrays of T steps. On a GPU the state stays in registers.

Actions are random, those of the caller, or those of a function that is compiled as environments are. The random numbers of a
policy depend only on the stream of its row and on the clock of the row, which counts steps and the user's resets. They do not
depend on the state, so that they can be drawn early, nor on the launch, nor on the start of the rollout. `Key.step` is not
negative for an environment's draws, and negative for a policy's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.dtypes import f32, i32, i64, u8, u32
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, RngStream, Row
from gpuvec.engine.layout.action_access import make_range_functions
from gpuvec.engine.layout.buffer_layout import make_layout
from gpuvec.engine.layout.buffers import Buffer, KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.single_agent.env_functions import (
    keep_env_in_registers,
    make_batch_change,
    make_env_functions,
    make_random_action,
    make_store_action,
)
from gpuvec.engine.single_agent.episode_rules import make_episode_rules
from gpuvec.engine.single_agent.rollout_options import (
    ACTION_ARRAY,
    OUT_OF_BYTE,
    RANDOM,
    Policy,
    RolloutRequest,
    stored_action_dtype,
)
from gpuvec.engine.single_agent.step import (
    MakeStep,
    action_argument,
    action_from_buffer,
    make_env_step,
    make_step,
    make_step_branchless,
    make_store_outputs,
)
from gpuvec.engine.single_agent.step_blocked import BLOCK_SIZE
from gpuvec.errors import AuthoringError
from gpuvec.random import Key, philox
from gpuvec.spec import Environment, SingleAgentEnv

# `Key.step` of the draws of a policy function, and of random actions.
POLICY_DRAW, RANDOM_ACTION = -1, -2

PolicyMemory: TypeAlias = Any  # the values that a policy keeps in registers between steps: random words, or 0
Words: TypeAlias = tuple[int, int, int, int]  # uint32
uint32_key: Any = Key  # For mypy, uint32 arguments are not ints.
_philox = device_function(philox)


@contextmanager
def explain_policy_errors(env: Environment, policy: Policy) -> Iterator[None]:
    """Explains the compiler's errors in its block as `explain_compiler_errors` does, for a rollout.

    Args:
        env: the environment, with one agent.
        policy: chooses the actions.

    Raises:
        AuthoringError: code that cannot be compiled, or a policy that does not return an action.
    """
    assert isinstance(env, SingleAgentEnv), "environments of many agents have no rollouts"
    is_function = policy not in (RANDOM, ACTION_ARRAY)
    try:
        with explain_compiler_errors(policy if is_function else env.step):
            yield
    except AuthoringError as error:
        if not is_function or not re.search(r"or_\(.*, Literal\[int\]\(0\)\)|unpack|wrong tuple length for a:", str(error)):
            raise
        space = env.spaces(env.params)[1]
        needed = "an int" if isinstance(space, gym.spaces.Discrete) else "a tuple with a number for each component"
        raise authoring_error(policy, f"its result is not an action of {space}, which is {needed}") from error


class ActionChooser(NamedTuple):
    """The compiled functions of a policy."""

    # prepare(clock, stream) -> memory of the policy before step number `clock + 1`
    prepare: DeviceFunction
    # choose(b, out_index, clock, stream, memory, obs, p) -> (action, memory) of step number `clock`; writes the action as row
    # `out_index` of `b.action`
    choose: DeviceFunction


# The type of the next two functions.
RandomWords: TypeAlias = Callable[[DeviceFunction, DeviceFunction], ActionChooser]


def random_words_in_blocks(draw: DeviceFunction, store_action: DeviceFunction) -> ActionChooser:
    """Compiles random actions of one number. A block of four Philox words serves four steps; the next word is always the first.

    Args:
        draw: `draw(word)` -> action.
        store_action: `store_action(b, out_index, a)` -> action.
    """

    @inline_function
    def prepare(clock: int, stream: RngStream) -> Words:
        row_clock = u32(clock + u32(1) + stream.episode)
        words = _random_block(row_clock, stream)
        for _ in range(i32(row_clock & u32(3))):
            words = words[1], words[2], words[3], words[0]
        return words

    @inline_function
    def choose(b: Batch, out_index: int, clock: int, stream: RngStream, words: Words, obs: Row, p: EnvParams) -> Any:
        row_clock = u32(clock + stream.episode)
        if row_clock & u32(3) == u32(0):
            words = _random_block(row_clock, stream)
        return store_action(b, out_index, draw(words[0])), (words[1], words[2], words[3], words[0])

    return ActionChooser(prepare, choose)


def prefetched_random_word(draw: DeviceFunction, store_action: DeviceFunction) -> ActionChooser:
    """Compiles random actions of one number without branches: each step computes the word of the next step.

    Args:
        draw: `draw(word)` -> action.
        store_action: `store_action(b, out_index, a)` -> action.
    """

    @inline_function
    def prepare(clock: int, stream: RngStream) -> int:
        row_clock = u32(clock + u32(1) + stream.episode)
        words, k = _random_block(row_clock, stream), row_clock & u32(3)
        low, high = words[1] if k == u32(1) else words[0], words[3] if k == u32(3) else words[2]
        return high if k >= u32(2) else low

    @inline_function
    def choose(b: Batch, out_index: int, clock: int, stream: RngStream, word: int, obs: Row, p: EnvParams) -> Any:
        return store_action(b, out_index, draw(word)), prepare(clock, stream)

    return ActionChooser(prepare, choose)


def make_action_chooser(env: SingleAgentEnv, ops: MemoryOps, policy: Policy, random_words: RandomWords) -> ActionChooser:
    """Compiles a policy.

    Args:
        env: the environment.
        ops: the operations on buffers.
        policy: chooses the actions.
        random_words: compiles random actions of one number.
    """
    if policy == ACTION_ARRAY:
        return ActionChooser(_empty_memory, _choose_placeholder)
    if policy != RANDOM:
        return ActionChooser(
            _empty_memory, _make_choose_by_function(device_function(policy), _make_policy_store(env, ops, False))
        )
    draw, store_action = make_random_action(env), _make_policy_store(env, ops, True)
    if make_schema(env).action.components <= 1:
        return random_words(draw, store_action)
    return ActionChooser(_empty_memory, _make_choose_by_draws(draw, store_action))


@inline_function
def _empty_memory(clock: int, stream: RngStream) -> int:
    return 0


@inline_function
def _choose_placeholder(
    b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
) -> tuple[int, PolicyMemory]:
    return 0, memory


@inline_function
def _policy_key(stream: RngStream, clock: int, purpose: int) -> Key:
    return uint32_key(stream.seed, stream.seed_high, stream.row, u32(clock + stream.episode), i32(purpose))


@inline_function
def _random_block(row_clock: int, stream: RngStream) -> Words:
    """The four words of the four steps that contain the step at the clock of the row."""
    w0, w1, w2, w3 = _philox(row_clock >> u32(2), u32(i32(RANDOM_ACTION)), u32(0), stream.seed_high, stream.seed, stream.row)
    return u32(w0), u32(w1), u32(w2), u32(w3)


def _make_choose_by_function(act: DeviceFunction, store_action: DeviceFunction) -> DeviceFunction:
    """`choose` of the user's policy function `act`."""

    @inline_function
    def choose(
        b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
    ) -> tuple[Action, PolicyMemory]:
        return store_action(b, out_index, act(obs, _policy_key(stream, clock, POLICY_DRAW), p)), memory

    return choose


def _make_choose_by_draws(draw: DeviceFunction, store_action: DeviceFunction) -> DeviceFunction:
    """`choose` of random actions of several numbers, which are draws with a key for each step."""

    @inline_function
    def choose(
        b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
    ) -> tuple[Action, PolicyMemory]:
        return store_action(b, out_index, draw(_policy_key(stream, clock, RANDOM_ACTION))), memory

    return choose


def _make_policy_store(env: SingleAgentEnv, ops: MemoryOps, is_in_space: bool) -> DeviceFunction:
    """`store_action` as `make_store_action` returns it. An action that is known to be in the space is not replaced."""
    space = env.spaces(env.params)[1]
    actions, dtype = make_schema(env).action, stored_action_dtype(space)
    range_functions = [_unchanged] * max(1, actions.components)
    if not actions.discrete:
        convert = _to_float32
    elif is_in_space:
        convert = _to_int32
    else:
        convert = _to_byte if dtype is u8 else _saturate_int32
        range_functions = make_range_functions(space, i64)
    return make_store_action(actions.components, dtype, convert, range_functions, ops)


@inline_function
def _unchanged(x: float) -> float:
    return x


@inline_function
def _to_float32(x: float) -> float:
    return f32(x)


@inline_function
def _to_int32(x: int) -> int:
    return i32(x)


@inline_function
def _to_byte(x: int) -> int:
    x = i64(x | 0)  # refuses a float, which would be truncated: it has no such operation
    return x if x >= i64(0) and x <= i64(OUT_OF_BYTE) else i64(OUT_OF_BYTE)


@inline_function
def _saturate_int32(x: int) -> int:
    x = i64(x | 0)  # refuses a float, which would be truncated: it has no such operation
    return min(max(x, i64(-(2**31))), i64(2**31 - 1))


class RolloutStyle(NamedTuple):
    """The parts of a rollout that exist with branches and without: what only some envs, or some steps, need."""

    make_step: MakeStep
    random_words: RandomWords


# For many envs: while one warp waits for a result, others run.
WITH_BRANCHES = RolloutStyle(make_step, random_words_in_blocks)
# For few envs: a thread that would wait anyway computes what only some envs need.
BRANCHLESS = RolloutStyle(make_step_branchless, prefetched_random_word)


def compose_rollout(
    env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps, policy: Policy, style: RolloutStyle
) -> DeviceFunction:
    """Compiles `rollout(b, e, clock, r)`: the next `r.steps` steps of env e, which follow step number `clock`.

    The outputs and the actions in `b` are (T, E, ...) arrays. The observations are a (T + 1, E, D) array, which begins with
    the observations before the first step.

    Args:
        env: the environment.
        options: what the kernel is compiled for.
        ops: the operations on buffers.
        policy: chooses the actions.
        style: with or without branches.
    """
    functions = make_env_functions(env, options, ops)
    access = keep_env_in_registers(functions, ops)
    rules = make_episode_rules(functions, access.key, options, ops)
    action = action_from_buffer(functions) if policy == ACTION_ARRAY else action_argument
    step = style.make_step(functions, rules, access, make_env_step(functions, access, action))
    load_env, store_env, observe, store_outputs = access.load_env, access.store_env, functions.observe, make_store_outputs(ops)
    prepare, choose = make_action_chooser(env, ops, policy, style.random_words)
    advance_obs, select_actions = _make_advance_obs(env, options), _make_select_actions(env, options)
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


def compose_block_policy(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps, policy: Policy) -> BlockPolicy:
    """Compiles the policy of a block.

    Its scratch memory has a column of envs for each word of the random-number streams, so that a compiler can vectorise draws.

    Args:
        env: the environment.
        options: what the loop is compiled for.
        ops: the operations on buffers.
        policy: chooses the actions.
    """
    functions = make_env_functions(env, options, ops)
    load_env, observe = keep_env_in_registers(functions, ops).load_env, functions.observe
    prepare, choose = make_action_chooser(env, ops, policy, prefetched_random_word)
    advance_obs, select_actions = _make_advance_obs(env, options), _make_select_actions(env, options)
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


def _make_advance_obs(env: SingleAgentEnv, options: KernelOptions) -> DeviceFunction:
    """`advance_obs(b)`: the batch whose observations begin after those before the first step."""
    layout = make_layout(env, options)
    size = _bytes_per_env(layout.outputs["obs"])
    return make_batch_change(layout.batch, "b", obs=f"u64(b.obs) + u64(b.n) * u64({size})")


def _make_select_actions(env: SingleAgentEnv, options: KernelOptions) -> DeviceFunction:
    """`select_actions(b, t)`: the batch whose actions begin with those of step t, from 0."""
    layout = make_layout(env, options)
    size = _bytes_per_env(layout.inputs["action"]._replace(dtype=options.action_dtype))
    return make_batch_change(layout.batch, "b, t", action=f"u64(b.action) + u64(t) * (u64(b.n) * u64({size}))")


def _bytes_per_env(buffer: Buffer) -> int:
    """The size of one env's elements of a `buffer`."""
    return int(np.prod(buffer.shape, dtype=np.int64)) * int(np.dtype(buffer.dtype).itemsize)
