"""Policies of a rollout: random actions, actions of the caller, or a function that is compiled as environments are.

The random numbers of a policy depend only on the stream of its row and on the clock of the row, which counts steps and the
user's resets. They do not depend on the state, so that they can be drawn early, nor on the launch, nor on the start of the
rollout. `Key.step` is not negative for an environment's draws, and negative for a policy's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.dtypes import f32, i32, i64, u8, u32
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, RngStream, Row
from gpuvec.engine.layout.action_access import make_range_functions
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.single_agent.field_access import make_random_action, make_store_action
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, OUT_OF_BYTE, RANDOM, Policy, stored_action_dtype
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


def make_action_chooser(spec: KernelSpec, ops: MemoryOps, policy: Policy, random_words: RandomWords) -> ActionChooser:
    """Compiles a policy.

    Args:
        spec: what the rollout is compiled from.
        ops: the operations on buffers.
        policy: chooses the actions.
        random_words: compiles random actions of one number.
    """
    if policy == ACTION_ARRAY:
        return ActionChooser(_empty_memory, _choose_placeholder)
    if policy != RANDOM:
        return ActionChooser(
            _empty_memory, _make_choose_by_function(device_function(policy), _make_policy_store(spec, ops, False))
        )
    draw, store_action = make_random_action(spec.env), _make_policy_store(spec, ops, True)
    if spec.schema.action.components <= 1:
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


def _make_policy_store(spec: KernelSpec, ops: MemoryOps, is_in_space: bool) -> DeviceFunction:
    """`store_action` as `make_store_action` returns it. An action that is known to be in the space is not replaced."""
    space = spec.env.spaces(spec.env.params)[1]
    actions, dtype = spec.schema.action, stored_action_dtype(space)
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
