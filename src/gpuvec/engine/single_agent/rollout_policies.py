"""Who chooses the actions of a rollout: chance, whoever gave them, or a function that is compiled as environments are.

What a policy draws depends on its row's stream and the row's own clock alone, which counts its steps and the user's resets:
not on the state, so that it can be drawn ahead, nor on the launch, nor on where rollouts begin. The key of an environment's
draws names a step of an episode, which is never negative; a policy's has another number there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.action_access import action_bounds, make_action_clamps
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.single_agent.rollout_options import BYTE, GIVEN, RANDOM, stored_action_dtype
from gpuvec.errors import AuthoringError
from gpuvec.random import Key, philox, unit, word
from gpuvec.spec import Environment, SingleAgentEnv

OWN, CHANCE = -1, -2  # in place of a step in the key of what a function draws, and of random actions

Words: Any = Key  # of uint32, which are no ints to mypy
_philox = device_function(philox)
f32, i32, i64, u8, u32, u64 = np.float32, np.int32, np.int64, np.uint8, np.uint32, np.uint64


@contextmanager
def explain_policy_errors(env: Environment, policy: Any) -> Iterator[None]:
    """As `dialect.explaining`, for a rollout of `env` with that policy.

    Raises:
        AuthoringError: code that cannot be compiled, or that gives something else than an action.
    """
    assert isinstance(env, SingleAgentEnv), "games have no rollouts"
    given = policy in (RANDOM, GIVEN)
    try:
        with explain_compiler_errors(env.step if given else policy):
            yield
    except AuthoringError as error:
        if given or not re.search(r"or_\(.*, Literal\[int\]\(0\)\)|unpack|wrong tuple length for a:", str(error)):
            raise
        space = env.spaces(env.params)[1]
        needed = "an int" if isinstance(space, gym.spaces.Discrete) else "a tuple with a number for each component"
        raise authoring_error(policy, f"what it returns is no action of {space}, which is {needed}") from error


def make_action_chooser(env: SingleAgentEnv, ops: MemoryOps, policy: Any, ahead: bool = False) -> tuple[Any, Any]:
    """(prepare, choose).

    `prepare(clock, stream)` is what the policy remembers before step number `clock + 1`.
    `choose(b, at, clock, stream, memory, row, p)` gives the action of step number `clock`, which it writes as number `at` of
    `b.action`, and what is remembered then. With `ahead` the random number of the next step is drawn in each.
    """
    if policy == GIVEN:
        return _nothing, _read_later
    keep = _keep(env, ops, in_space=policy == RANDOM)
    if policy == RANDOM:
        single, draw = _random(env)
        if not single:
            return _nothing, _by_steps(draw, keep)
        return _ahead(draw, keep) if ahead else _by_blocks(draw, keep)
    act = device_function(policy)

    @inline_function
    def choose(b: Any, at: int, clock: int, stream: Any, memory: Any, row: Any, p: Any) -> Any:
        return keep(b, at, act(row, _key(stream, clock, OWN), p)), memory

    return _nothing, choose


@inline_function
def _nothing(clock: int, stream: Any) -> int:
    return 0


@inline_function
def _read_later(b: Any, at: int, clock: int, stream: Any, memory: Any, row: Any, p: Any) -> Any:
    return 0, memory


@inline_function
def _key(stream: Any, clock: int, purpose: int) -> Any:
    return Words(stream.seed, stream.seed_high, stream.row, u32(clock + stream.episode), i32(purpose))


@inline_function
def _block(own: int, stream: Any) -> Any:
    """Four words, those of four steps by the row's own clock."""
    one, two, three, four = _philox(own >> u32(2), u32(i32(CHANCE)), u32(0), stream.seed_high, stream.seed, stream.row)
    return u32(one), u32(two), u32(three), u32(four)


def _by_blocks(draw: Any, keep: Any) -> tuple[Any, Any]:
    """Of a single number: a block of Philox, four words, lasts for four steps; that of the next one stands first."""

    @inline_function
    def prepare(clock: int, stream: Any) -> Any:
        own = u32(clock + u32(1) + stream.episode)
        words = _block(own, stream)
        for _ in range(i32(own & u32(3))):
            words = words[1], words[2], words[3], words[0]
        return words

    @inline_function
    def choose(b: Any, at: int, clock: int, stream: Any, words: Any, row: Any, p: Any) -> Any:
        own = u32(clock + stream.episode)
        if own & u32(3) == u32(0):
            words = _block(own, stream)
        return keep(b, at, draw(words[0])), (words[1], words[2], words[3], words[0])

    return prepare, choose


def _ahead(draw: Any, keep: Any) -> tuple[Any, Any]:
    """Likewise without a branch: the block of the next step is worked out in each, beside what the step itself waits for."""

    @inline_function
    def prepare(clock: int, stream: Any) -> Any:
        own = u32(clock + u32(1) + stream.episode)
        words, k = _block(own, stream), own & u32(3)
        one, two = words[1] if k == u32(1) else words[0], words[3] if k == u32(3) else words[2]
        return two if k >= u32(2) else one

    @inline_function
    def choose(b: Any, at: int, clock: int, stream: Any, word: Any, row: Any, p: Any) -> Any:
        return keep(b, at, draw(word)), prepare(clock, stream)

    return prepare, choose


def _by_steps(draw: Any, keep: Any) -> Any:
    """Of several numbers: blocks of the step's own."""

    @inline_function
    def choose(b: Any, at: int, clock: int, stream: Any, memory: Any, row: Any, p: Any) -> Any:
        return keep(b, at, draw(_key(stream, clock, CHANCE))), memory

    return choose


def _random(env: SingleAgentEnv) -> tuple[bool, Any]:
    """(whether an action is a single number, draw): `draw(word)` of it, else `draw(key)`, uniform over the action space."""
    space = env.spaces(env.params)[1]
    lows, highs = action_bounds(space)
    count, scalar = len(lows), isinstance(space, gym.spaces.Discrete)
    scope: dict[str, Any] = {"word": device_function(word), "unit": device_function(unit), "i32": i32, "i64": i64, "u64": u64}
    values = []
    for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
        drawn = "x" if count == 1 else f"word(x, {k})"
        scope |= {f"low_{k}": f32(low), f"span_{k}": f32(high) - f32(low)}
        if isinstance(space, gym.spaces.Box):
            values.append(f"low_{k} + span_{k} * unit({drawn})")
        else:  # scaled, as by `randint`
            values.append(f"i32(i64({low}) + i64((u64({drawn}) * u64({high - low + 1})) >> u64(32)))")
    source = f"def draw(x):\n    return {values[0] if scalar else f'({chr(44).join(values)},)'}\n"
    return count == 1, inline_function(generate_function("draw", source, **scope))


def _keep(env: SingleAgentEnv, ops: MemoryOps, in_space: bool) -> Any:
    """`keep(b, at, a)`: writes action `a` to `b.action`, and gives it as the environment gets it when it is played back.

    With `in_space` the space holds `a` for sure.
    """
    space = env.spaces(env.params)[1]
    s, dtype = make_schema(env), stored_action_dtype(space)
    names = [f"x{k}" for k in range(max(1, s.action.components))]
    values = [f"allowed_{k}({x})" for k, x in enumerate(names)]
    source = f"def keep(b, at, a):\n    {f'{chr(44).join(names)}, = a' if s.action.components else 'x0 = a'}\n"
    if not s.action.discrete or in_space:
        source += "".join(f"    {x} = {'i32' if s.action.discrete else 'f32'}({x})\n" for x in names)
        values = names
    else:
        for x in names:
            source += f"    {x} = i64({x} | 0)\n"  # for a float there is no such thing; it would be cut to an integer
            if dtype is u8:
                source += f"    {x} = {x} if {x} >= i64(0) and {x} <= i64({BYTE}) else i64({BYTE})\n"
            else:
                source += f"    {x} = min(max({x}, i64({-(2**31)})), i64({2**31 - 1}))\n"
    source += f"    store_row_streaming(b.action, at, ({''.join(f'dtype({x}),' for x in names)}))\n"
    source += f"    return {f'({chr(44).join(values)},)' if s.action.components else values[0]}\n"
    scope = {f"allowed_{k}": function for k, function in enumerate(make_action_clamps(space, np.int64))}
    return inline_function(
        generate_function(
            "keep", source, **scope, store_row_streaming=ops.store_row_streaming, dtype=dtype, f32=f32, i32=i32, i64=i64
        )
    )
