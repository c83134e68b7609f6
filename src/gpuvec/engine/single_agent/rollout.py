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

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors, explain_env_errors
from gpuvec.engine.compiler.dtypes import f32, i32, i64, u8, u32
from gpuvec.engine.compiler.functions import bind, device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, RngStream, Row
from gpuvec.engine.layout.action_access import make_range_functions
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.single_agent.env_functions import (
    env_values,
    load_env,
    make_batch_change,
    make_env_functions,
    make_random_action,
    make_selections,
    make_store_action,
    register_values,
    store_env,
)
from gpuvec.engine.single_agent.rollout_options import (
    ACTION_ARRAY,
    OUT_OF_BYTE,
    RANDOM,
    Policy,
    RolloutRequest,
    stored_action_dtype,
)
from gpuvec.engine.single_agent.step import action_argument, step, step_branchless, store_outputs
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
def explain_kernel_errors(env: Environment, kind: str, policy: Policy | None = None) -> Iterator[None]:
    """Explains the compiler's errors in its block as `explain_compiler_errors` does.

    Args:
        env: the environment.
        kind: "reset", "step" or "rollout".
        policy: chooses the actions of a rollout.

    Raises:
        AuthoringError: code that cannot be compiled, or a policy that does not return an action.
    """
    if policy is None:
        with explain_env_errors(env, kind):
            yield
        return
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


# What the functions below read, as in `env_functions`, and: the author's policy, the drawing and the storing of an action, and
# the changes of the batch from step to step.
ops: Any = None
functions: Any = None
act_by_policy: Any = None
draw: Any = None
store_action: Any = None
advance_obs: Any = None
select_actions: Any = None


def random_block(row_clock: int, stream: RngStream) -> Words:
    """Returns the four Philox words of the four steps that contain the step at the clock of the row."""
    w0, w1, w2, w3 = _philox(row_clock >> u32(2), u32(i32(RANDOM_ACTION)), u32(0), stream.seed_high, stream.seed, stream.row)
    return u32(w0), u32(w1), u32(w2), u32(w3)


def policy_key(stream: RngStream, clock: int, purpose: int) -> Key:
    """Returns the key of a policy's draws in step number `clock`."""
    return uint32_key(stream.seed, stream.seed_high, stream.row, u32(clock + stream.episode), i32(purpose))


# The memory of a policy before step number `clock + 1`, and its action in step number `clock`: `choose` writes the action as
# row `out_index` of `b.action`, and returns (action, memory). Here the caller has written the actions.


def prepare(clock: int, stream: RngStream) -> PolicyMemory:
    """Returns the memory of a policy without one."""
    return 0


def choose(
    b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
) -> tuple[Action, PolicyMemory]:
    """Chooses nothing, since `action` reads the actions of the caller."""
    return 0, memory


def choose_by_policy(
    b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
) -> tuple[Action, PolicyMemory]:
    """As `choose`, by the user's policy function."""
    return store_action(b, out_index, act_by_policy(obs, policy_key(stream, clock, POLICY_DRAW), p)), memory


def choose_by_draws(
    b: Batch, out_index: int, clock: int, stream: RngStream, memory: PolicyMemory, obs: Row, p: EnvParams
) -> tuple[Action, PolicyMemory]:
    """As `choose`, for random actions of several numbers, which are draws with a key for each step."""
    return store_action(b, out_index, draw(policy_key(stream, clock, RANDOM_ACTION))), memory


def prepare_block(clock: int, stream: RngStream) -> Words:
    """As `prepare`, for random actions of one number: four words serve four steps, and the next one is always the first."""
    row_clock = u32(clock + u32(1) + stream.episode)
    words = random_block(row_clock, stream)
    for _ in range(i32(row_clock & u32(3))):
        words = words[1], words[2], words[3], words[0]
    return words


def choose_from_block(b: Batch, out_index: int, clock: int, stream: RngStream, words: Words, obs: Row, p: EnvParams) -> Any:
    """As `choose`, by the block of `prepare_block`."""
    row_clock = u32(clock + stream.episode)
    if row_clock & u32(3) == u32(0):
        words = random_block(row_clock, stream)
    return store_action(b, out_index, draw(words[0])), (words[1], words[2], words[3], words[0])


def prepare_word(clock: int, stream: RngStream) -> int:
    """As `prepare`, for random actions of one number without branches: each step computes the word of the next step."""
    row_clock = u32(clock + u32(1) + stream.episode)
    words, k = random_block(row_clock, stream), row_clock & u32(3)
    low, high = words[1] if k == u32(1) else words[0], words[3] if k == u32(3) else words[2]
    return high if k >= u32(2) else low


def choose_by_word(b: Batch, out_index: int, clock: int, stream: RngStream, word: int, obs: Row, p: EnvParams) -> Any:
    """As `choose`, by the word of `prepare_word`."""
    return store_action(b, out_index, draw(word)), prepare_word(clock, stream)


class RolloutStyle(NamedTuple):
    """The functions that exist with branches and without: what only some envs, or some steps, need."""

    step: Callable[..., Any]
    prepare: Callable[..., Any]  # of random actions of one number
    choose: Callable[..., Any]


# For many envs: while one warp waits for a result, others run.
WITH_BRANCHES = RolloutStyle(step, prepare_block, choose_from_block)
# For few envs: a thread that would wait anyway computes what only some envs need.
BRANCHLESS = RolloutStyle(step_branchless, prepare_word, choose_by_word)


def rollout_values(spec: KernelSpec, ops: MemoryOps, policy: Policy, style: RolloutStyle) -> dict[str, Any]:
    """Returns the values with which `bind` compiles `rollout`.

    Args:
        spec: what the kernel is compiled from.
        ops: the operations on buffers.
        policy: chooses the actions.
        style: with or without branches.
    """
    env_functions, layout = make_env_functions(spec, ops), spec.layout
    values = env_values(env_functions, spec.options, ops) | register_values()
    has_autoreset = values["same_step"] or values["next_step"]
    values |= {"step": style.step if has_autoreset else step, "selections": make_selections(spec.env, env_functions.schema)}
    obs_bytes = _bytes_per_env(layout.outputs["obs"])
    action_bytes = _bytes_per_env(layout.inputs["action"]._replace(dtype=spec.options.action_dtype))
    # The batch whose observations begin after those before the first step, and whose actions begin with those of step t.
    values["advance_obs"] = make_batch_change(layout.batch, "b", obs=f"u64(b.obs) + u64(b.n) * u64({obs_bytes})")
    first_action = f"u64(b.action) + u64(t) * (u64(b.n) * u64({action_bytes}))"
    values["select_actions"] = make_batch_change(layout.batch, "b, t", action=first_action)
    if policy == ACTION_ARRAY:
        return values
    values["action"] = action_argument
    if policy != RANDOM:
        store = _make_policy_store(spec, ops, False)
        return values | {"act_by_policy": device_function(policy), "store_action": store, "choose": choose_by_policy}
    values |= {"draw": make_random_action(spec.env), "store_action": _make_policy_store(spec, ops, True)}
    if env_functions.schema.action.components <= 1:
        return values | {"prepare": style.prepare, "choose": style.choose}
    return values | {"choose": choose_by_draws}


def _make_policy_store(spec: KernelSpec, ops: MemoryOps, is_in_space: bool) -> DeviceFunction:
    """`store_action` as `make_store_action` returns it. An action that is known to be in the space is not replaced."""
    space = spec.env.spaces(spec.env.params)[1]
    actions, dtype = spec.schema.action, stored_action_dtype(space)
    if is_in_space or not actions.discrete:
        return make_store_action(actions.components, dtype, i32 if actions.discrete else f32, [], ops)
    convert = _to_byte if dtype is u8 else _saturate_int32
    return make_store_action(actions.components, dtype, convert, make_range_functions(space, i64), ops)


@inline_function
def _to_byte(x: int) -> int:
    x = i64(x | 0)  # refuses a float, which would be truncated: it has no such operation
    return x if x >= i64(0) and x <= i64(OUT_OF_BYTE) else i64(OUT_OF_BYTE)


@inline_function
def _saturate_int32(x: int) -> int:
    x = i64(x | 0)  # refuses a float, which would be truncated: it has no such operation
    return min(max(x, i64(-(2**31))), i64(2**31 - 1))


def rollout(b: Batch, e: int, clock: int, r: RolloutRequest) -> None:
    """Makes the next `r.steps` steps of env e, which follow step number `clock`.

    The outputs and the actions in `b` are (T, E, ...) arrays. The observations are a (T + 1, E, D) array, which begins with
    the observations before the first step.
    """
    start, s, stream, p = load_env(b, e)
    obs = functions.observe(s, p)
    ops.store_row_streaming(b.obs, e, obs)
    outputs, out_index, step_clock, memory = advance_obs(b), i64(e), u32(clock), prepare(clock, stream)
    for t in range(i32(r.steps)):
        step_clock = u32(step_clock + u32(1))
        a, memory = choose(outputs, out_index, step_clock, stream, memory, obs, p)
        start, s, obs, reward, terminated, truncated = step(
            select_actions(outputs, t), e, out_index, step_clock, start, s, stream, p, a
        )
        store_outputs(outputs, out_index, obs, reward, terminated, truncated)
        out_index += i64(b.n)
    store_env(b, e, start, s)


class BlockPolicy(NamedTuple):
    """The compiled functions of a policy for the envs of a block; `w` is the address of its scratch memory.

    The loop of a rollout on a CPU calls them before those of `BlockStep`, which read the actions that the policy wrote. The
    scratch memory has a column of envs for each word of the random-number streams, so that a compiler can vectorise draws.
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

    Args:
        spec: what the loop is compiled from.
        ops: the operations on buffers.
        policy: chooses the actions.
    """
    values = rollout_values(spec, ops, policy, BRANCHLESS)
    return BlockPolicy(16 * BLOCK_SIZE, *(bind(function, **values) for function in (begin, batch_at, act)))


def begin(b: Batch, w: int, e: int, k: int) -> None:
    """As in `BlockPolicy`."""
    _, s, stream, p = load_env(b, e)
    ops.store_row_streaming(b.obs, e, functions.observe(s, p))
    ops.store(w, k, stream.seed, u32)
    ops.store(w, BLOCK_SIZE + k, stream.seed_high, u32)
    ops.store(w, 2 * BLOCK_SIZE + k, stream.row, u32)
    ops.store(w, 3 * BLOCK_SIZE + k, stream.episode, u32)


def batch_at(b: Batch, t: int) -> Batch:
    """As in `BlockPolicy`."""
    return select_actions(advance_obs(b), t)


def act(b: Batch, w: int, e: int, k: int, out_index: int, clock: int) -> None:
    """As in `BlockPolicy`."""
    _, s, _, p = load_env(b, e)
    seed, seed_high = ops.load(w, k, u32), ops.load(w, BLOCK_SIZE + k, u32)
    row, episode = ops.load(w, 2 * BLOCK_SIZE + k, u32), ops.load(w, 3 * BLOCK_SIZE + k, u32)
    stream = uint32_key(seed, seed_high, row, episode, i32(0))
    choose(b, out_index, clock, stream, prepare(u32(clock - u32(1)), stream), functions.observe(s, p), p)


def _bytes_per_env(buffer: Buffer) -> int:
    """The size of one env's elements of a `buffer`."""
    return int(np.prod(buffer.shape, dtype=np.int64)) * int(np.dtype(buffer.dtype).itemsize)
