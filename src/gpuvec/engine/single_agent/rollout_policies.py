"""Policies of a rollout: random actions, actions of the caller, or a function that is compiled as environments are.

What a policy draws depends on its row's stream and the row's own clock alone, which counts its steps and the user's resets: not
on the state, so that it can be drawn early, nor on the launch, nor on where rollouts begin. The key of an environment's draws
names a step of an episode, which is never negative; a policy's key has a negative number there.
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
from gpuvec.engine.layout.action_access import make_action_clamps
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.single_agent.field_access import make_random_action, make_store_action
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, OUT_OF_BYTE, RANDOM, Policy, stored_action_dtype
from gpuvec.errors import AuthoringError
from gpuvec.random import Key, philox
from gpuvec.spec import Environment, SingleAgentEnv

POLICY_DRAW, RANDOM_ACTION = -1, -2  # instead of a step, in the key of a policy function's draws and of random actions

PolicyMemory: TypeAlias = Any  # what a policy keeps in registers between steps: random words, or 0
Words: TypeAlias = tuple[int, int, int, int]  # uint32
uint32_key: Any = Key  # of uint32, which are no ints to mypy
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
        raise authoring_error(policy, f"what it returns is no action of {space}, which is {needed}") from error


class ActionChooser(NamedTuple):
    """The compiled functions of a policy."""

    # prepare(clock, stream) -> memory of the policy before step number `clock + 1`
    prepare: DeviceFunction
    # choose(b, at, clock, stream, memory, row, p) -> (action, memory) of step number `clock`; writes the action as row `at` of
    # `b.action`
    choose: DeviceFunction


RandomWords: TypeAlias = Callable[[DeviceFunction, DeviceFunction], ActionChooser]  # one of the next two functions


def random_words_in_blocks(draw: DeviceFunction, store_action: DeviceFunction) -> ActionChooser:
    """Compiles random actions of one number: a block of Philox, four words, serves four steps. The next word is the first.

    Args:
        draw: draw(word) -> action.
        store_action: store_action(b, at, a) -> action.
    """

    @inline_function
    def prepare(clock: int, stream: RngStream) -> Words:
        own_clock = u32(clock + u32(1) + stream.episode)
        words = _random_block(own_clock, stream)
        for _ in range(i32(own_clock & u32(3))):
            words = words[1], words[2], words[3], words[0]
        return words

    @inline_function
    def choose(b: Batch, at: int, clock: int, stream: RngStream, words: Words, row: Row, p: EnvParams) -> Any:
        own_clock = u32(clock + stream.episode)
        if own_clock & u32(3) == u32(0):
            words = _random_block(own_clock, stream)
        return store_action(b, at, draw(words[0])), (words[1], words[2], words[3], words[0])

    return ActionChooser(prepare, choose)


def random_word_early(draw: DeviceFunction, store_action: DeviceFunction) -> ActionChooser:
    """Compiles random actions of one number without a branch: each step computes the block of the next step, while it waits.

    Args:
        draw: draw(word) -> action.
        store_action: store_action(b, at, a) -> action.
    """

    @inline_function
    def prepare(clock: int, stream: RngStream) -> int:
        own_clock = u32(clock + u32(1) + stream.episode)
        words, k = _random_block(own_clock, stream), own_clock & u32(3)
        low, high = words[1] if k == u32(1) else words[0], words[3] if k == u32(3) else words[2]
        return high if k >= u32(2) else low

    @inline_function
    def choose(b: Batch, at: int, clock: int, stream: RngStream, word: int, row: Row, p: EnvParams) -> Any:
        return store_action(b, at, draw(word)), prepare(clock, stream)

    return ActionChooser(prepare, choose)


def make_action_chooser(env: SingleAgentEnv, ops: MemoryOps, policy: Policy, random_words: RandomWords) -> ActionChooser:
    """Compiles a policy.

    Args:
        env: the environment.
        ops: the operations on buffers.
        policy: chooses the actions.
        random_words: when the random numbers of random actions are drawn.
    """
    if policy == ACTION_ARRAY:
        return ActionChooser(_remember_nothing, _choose_nothing)
    if policy != RANDOM:
        return ActionChooser(_remember_nothing, _choose_by_function(device_function(policy), _make_store(env, ops, False)))
    draw, store_action = make_random_action(env), _make_store(env, ops, True)
    if make_schema(env).action.components <= 1:
        return random_words(draw, store_action)
    return ActionChooser(_remember_nothing, _choose_by_draws(draw, store_action))


@inline_function
def _remember_nothing(clock: int, stream: RngStream) -> int:
    return 0


@inline_function
def _choose_nothing(
    b: Batch, at: int, clock: int, stream: RngStream, memory: PolicyMemory, row: Row, p: EnvParams
) -> tuple[int, PolicyMemory]:
    return 0, memory


@inline_function
def _policy_key(stream: RngStream, clock: int, purpose: int) -> Key:
    return uint32_key(stream.seed, stream.seed_high, stream.row, u32(clock + stream.episode), i32(purpose))


@inline_function
def _random_block(own_clock: int, stream: RngStream) -> Words:
    """The four words of the four steps among which the one at the row's own clock is."""
    w0, w1, w2, w3 = _philox(own_clock >> u32(2), u32(i32(RANDOM_ACTION)), u32(0), stream.seed_high, stream.seed, stream.row)
    return u32(w0), u32(w1), u32(w2), u32(w3)


def _choose_by_function(act: DeviceFunction, store_action: DeviceFunction) -> DeviceFunction:
    """Of the user's policy."""

    @inline_function
    def choose(
        b: Batch, at: int, clock: int, stream: RngStream, memory: PolicyMemory, row: Row, p: EnvParams
    ) -> tuple[Action, PolicyMemory]:
        return store_action(b, at, act(row, _policy_key(stream, clock, POLICY_DRAW), p)), memory

    return choose


def _choose_by_draws(draw: DeviceFunction, store_action: DeviceFunction) -> DeviceFunction:
    """Of random actions of several numbers, which are draws with a key for each step."""

    @inline_function
    def choose(
        b: Batch, at: int, clock: int, stream: RngStream, memory: PolicyMemory, row: Row, p: EnvParams
    ) -> tuple[Action, PolicyMemory]:
        return store_action(b, at, draw(_policy_key(stream, clock, RANDOM_ACTION))), memory

    return choose


def _make_store(env: SingleAgentEnv, ops: MemoryOps, is_in_space: bool) -> DeviceFunction:
    """`store_action` as `make_store_action` compiles it; if the action certainly `is_in_space`, it is not clamped."""
    space = env.spaces(env.params)[1]
    actions, dtype = make_schema(env).action, stored_action_dtype(space)
    clamps = [_unchanged] * max(1, actions.components)
    if not actions.discrete:
        convert = _to_float32
    elif is_in_space:
        convert = _to_int32
    else:
        convert = _to_byte if dtype is u8 else _saturate_int32
        clamps = make_action_clamps(space, i64)
    return make_store_action(actions.components, dtype, convert, clamps, ops)


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
    x = i64(x | 0)  # a float, which would be cut to an integer, has no such operation
    return x if x >= i64(0) and x <= i64(OUT_OF_BYTE) else i64(OUT_OF_BYTE)


@inline_function
def _saturate_int32(x: int) -> int:
    x = i64(x | 0)  # a float, which would be cut to an integer, has no such operation
    return min(max(x, i64(-(2**31))), i64(2**31 - 1))
