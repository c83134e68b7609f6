"""One-agent environments: composes the author's functions into what happens to one env in a reset and in a step.

The result is target-independent: `ops` holds the operations through which it reads its buffers. A step is `open`, `turn` and
`close`; a rollout takes many turns in between.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.layout.action_access import make_action_reader
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import POOL_DRAW, make_rng_streams
from gpuvec.engine.layout.schema import SingleAgentSchema, make_schema
from gpuvec.engine.single_agent.step_branchless import straight
from gpuvec.random import Key, randint
from gpuvec.spec import SingleAgentEnv

f32, i32, u32, u64, b1 = np.float32, np.int32, np.uint32, np.uint64, np.bool_


class Game(NamedTuple):
    """What happens to one env, in parts. Between `open` and `close` all that is its own is in registers."""

    begin: Any  # begin(b, e, clock, r): resets env e if request r asks for it, and observes it
    open: Any  # open(b, e) -> (start, s, stream, p): the env as it lies in its buffers
    observe: Any  # observe(s, p) -> row of D floats
    play: Any  # play(b, e, start, t, s, stream, p, a) -> (s, row, reward, terminated): the author's own part of a step
    turn: Any  # turn(b, e, at, clock, start, s, stream, p, a) -> (start, s, row, reward, terminated, truncated): a step
    show: Any  # show(b, at, row, reward, terminated, truncated): writes what a turn returned, as row `at` of the outputs
    close: Any  # close(b, e, start, s): puts the env back


def compose(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps) -> tuple[Any, Any]:
    """(begin, advance) for one env: `begin` as in `Game`, `advance(b, e, clock)` is step number `clock`."""
    begin, open, _, _, turn, show, close = game(env, options, ops, ahead=True)

    @inline_function
    def advance(b: Any, e: int, clock: int) -> None:
        start, s, stream, p = open(b, e)
        start, s, seen, reward, terminated, truncated = turn(b, e, e, clock, start, s, stream, p, 0)
        close(b, e, start, s)
        show(b, e, seen, reward, terminated, truncated)

    return begin, advance


def game(
    env: SingleAgentEnv,
    options: KernelOptions,
    ops: MemoryOps,
    held: bool = False,
    chosen: bool = False,
    played: Any = None,
    branchless: bool = False,
    ahead: bool = False,
) -> Game:
    """The parts for one env.

    Args:
        env: the environment.
        options: what they are made for.
        ops: how they read their buffers.
        held: whether they play many steps, and so read the stream of random numbers once and write `start` once. In a single
            step most envs draw nothing and go on with their episode: then both happen where they are needed.
        chosen: whether the action is `a`; else it is read from `b.action`.
        played: a function as `play`, for a `turn` that finds what was worked out before.
        branchless: whether `turn` is `straight`: what few envs need is worked out in every step, and no branch is waited for.
        ahead: whether what all envs share of their streams is read along with the state, as on a GPU a warp has an env that
            draws more often than not.
    """
    s = make_schema(env)
    assert isinstance(s, SingleAgentSchema), "of a SingleAgentEnv"
    load, store, store_row, store_streaming, store_row_streaming = (
        ops.load,
        ops.store,
        ops.store_row,
        ops.store_streaming,
        ops.store_row_streaming,
    )
    atomic_min, any_in_sector = ops.atomic_min, ops.any_in_sector
    load_state, store_state = _state_access(env, s, ops)
    declared, pooled = _declared(env, s), _pooled(env, s, options, ops)
    params, reset_params = make_param_readers(env, options, ops)
    read_action, fault = make_action_reader(env.spaces(env.params)[1], s.action, options, ops)
    common, any_key, _, own_key, asked, reseed, share = make_rng_streams(ops)
    stream_of, key = (_held_streams if held else _common_streams if ahead else _read_streams)(common, any_key)
    action = _chosen if chosen else _given(read_action)
    reset, step, observe = (
        device_function(env.reset),
        device_function(env.step),
        _observed(device_function(env.observe), s.num_features, ops),
    )
    limit = i32(NO_STEP_LIMIT if options.max_episode_steps is None else options.max_episode_steps)
    same_step = options.autoreset is AutoresetMode.SAME_STEP
    next_step = options.autoreset is AutoresetMode.NEXT_STEP
    validate = options.validate

    @inline_function
    def first(b: Any, k: Any, p: Any) -> Any:
        """The first state of the episode with key `k`."""
        return pooled(b, declared(reset(k, p)), k)

    @inline_function
    def play(b: Any, e: int, start: int, t: int, s: Any, stream: Any, p: Any, a: Any) -> Any:
        s, gained, dead = step(s, action(b, e, a), key(b, e, stream, start, t), p)
        s = declared(s)
        return s, observe(s, p), f32(gained), bool(dead)

    made = played or play

    @inline_function
    def begin(b: Any, e: int, clock: int, r: Any) -> None:
        if e == 0:  # no row reads the shared stream in a reset, so its first may rewrite it
            share(b, clock, r)
        if asked(b, e, r):
            reseed(b, e, clock, r)
            store_state(b, e, first(b, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r)))
        store_row(b.obs, e, observe(load_state(b, e), params(b, e)))

    @inline_function
    def open(b: Any, e: int) -> Any:
        return load(b.start, e, u32), load_state(b, e), stream_of(b, e), params(b, e)

    @inline_function
    def moved(b: Any, e: int, start: int) -> int:
        """The new start of an env; in a single step few have one, so it is stored where that is found out."""
        if not held:
            store(b.start, e, u32(start), u32)
        return u32(start)

    @inline_function
    def turn(b: Any, e: int, at: int, clock: int, start: int, s: Any, stream: Any, p: Any, a: Any) -> Any:
        t = i32(clock - start)
        reward, terminated, truncated = f32(0.0), False, False
        if not same_step and t == i32(0):  # its episode ended in the last step
            if next_step:
                s = first(b, key(b, e, stream, start, i32(0)), p)
            else:
                start = moved(b, e, clock + u32(1))
                if validate:
                    atomic_min(b.faults, 1, u64(e) << u64(32))
            seen = observe(s, p)
        else:
            if validate:
                fault(b, e)
            s, seen, reward, terminated = made(b, e, start, t, s, stream, p, a)
            truncated = t >= limit
            over = terminated or truncated
            if same_step:
                store_streaming(b.final_mask, at, over, b1)
                if any_in_sector(over):  # by pairs: a 32-byte sector of two 16-byte rows is written whole and never read
                    store_row_streaming(b.final_obs, at, seen)
                if over:
                    start = moved(b, e, clock)
                    s = first(b, key(b, e, stream, start, i32(0)), p)
                    seen = observe(s, p)
            elif over:
                start = moved(b, e, clock + u32(1))
        return start, s, seen, reward, terminated, truncated

    if branchless and (next_step or same_step):

        @inline_function
        def drawn(b: Any, e: int, stream: Any, start: int, p: Any) -> Any:
            return first(b, key(b, e, stream, start, i32(0)), p)

        turn = straight(env, s, options, ops, limit, made, drawn, observe, fault)

    @inline_function
    def show(b: Any, at: int, seen: Any, reward: float, terminated: bool, truncated: bool) -> None:
        store_row_streaming(b.obs, at, seen)
        store_streaming(b.reward, at, reward, f32)
        store_streaming(b.terminated, at, terminated, b1)
        store_streaming(b.truncated, at, truncated, b1)

    @inline_function
    def close(b: Any, e: int, start: int, s: Any) -> None:
        if held:
            store(b.start, e, start, u32)
        store_state(b, e, s)

    return Game(begin, open, observe, play, turn, show, close)


@lru_cache(maxsize=16)
def _observed(look: Any, features: int, ops: MemoryOps) -> Any:
    """observe(s, p) -> row of D floats, of the compiled `look`. It is one function for all parts of an environment, as a wide
    one takes long to compile.
    """
    to_floats, numbers = ops.to_floats, row_of(f32, features)

    @inline_function
    def observe(s: Any, p: Any) -> Any:
        return to_floats(look(s, p), numbers)

    return observe


def _read_streams(common: Any, any_key: Any) -> tuple[Any, Any]:
    """(`stream_of(b, e)`, `key(b, e, stream, start, t)`) that read it when a number is drawn."""

    @inline_function
    def stream_of(b: Any, e: int) -> int:
        return 0

    @inline_function
    def key(b: Any, e: int, stream: int, start: int, t: int) -> Any:
        return any_key(b, e, common(b), start, t)

    return stream_of, key


def _common_streams(common: Any, any_key: Any) -> tuple[Any, Any]:
    """Likewise, but for what all envs share."""

    @inline_function
    def stream_of(b: Any, e: int) -> Any:
        return common(b)

    return stream_of, any_key


def _held_streams(common: Any, any_key: Any) -> tuple[Any, Any]:
    """Likewise with a stream that is read once: the key of clock 0, whose episode is minus the stream's origin."""

    @inline_function
    def stream_of(b: Any, e: int) -> Any:
        return any_key(b, e, common(b), u32(0), i32(0))

    @inline_function
    def key(b: Any, e: int, stream: Any, start: int, t: int) -> Any:
        return Key(stream.seed, stream.seed_high, stream.row, u32(start + stream.episode), i32(t))

    return stream_of, key


@inline_function
def _chosen(b: Any, e: int, a: Any) -> Any:
    return a


def _given(read_action: Any) -> Any:
    @inline_function
    def action(b: Any, e: int, a: Any) -> Any:
        return read_action(b, e)

    return action


def _state_access(env: SingleAgentEnv, s: SingleAgentSchema, ops: MemoryOps) -> tuple[Any, Any]:
    """`load_state(b, e) -> State` and `store_state(b, e, s)`: float fields lie side by side, the others apart."""
    scope = {"State": env.state, "load": ops.load, "store": ops.store, "store_row": ops.store_row, "f32": f32}
    scope |= {"load_row": ops.load_row, "floats": row_of(f32, len(s.float_fields))} | {
        f"t_{k}": dtype for k, dtype in s.non_float_fields.items()
    }
    take = {k: f"w[{j}]" for j, k in enumerate(s.float_fields)} | {
        k: f"load(b.state_{k}, e, t_{k})" for k in s.non_float_fields
    }
    load = "def load_state(b, e):\n" + ("    w = load_row(b.state, e, floats)\n" if s.float_fields else "")
    load += f"    return State({', '.join(take[k] for k in env.state._fields)})\n"
    store = "def store_state(b, e, s):\n"
    if s.float_fields:
        store += f"    store_row(b.state, e, ({''.join(f'f32(s.{k}), ' for k in s.float_fields)}))\n"
    store += "".join(f"    store(b.state_{k}, e, s.{k}, t_{k})\n" for k in s.non_float_fields)
    return inline_function(generate_function("load_state", load, **scope)), inline_function(
        generate_function("store_state", store, **scope)
    )


def _declared(env: SingleAgentEnv, s: SingleAgentSchema) -> Any:
    """`declared(s)`: a state whose fields have the types that the class says; `s.count + 1` makes an int64, say."""
    scope = {"State": env.state} | {f"t_{k}": s.non_float_fields.get(k, f32) for k in env.state._fields}
    fields = ", ".join(f"t_{k}(s.{k})" for k in env.state._fields)
    return inline_function(generate_function("declared", f"def declared(s):\n    return State({fields})\n", **scope))


def _pooled(env: SingleAgentEnv, s: SingleAgentSchema, options: KernelOptions, ops: MemoryOps) -> Any:
    """`pooled(b, s, k)`: state `s` with the pool's fields from that state of the pool which key `k` draws."""
    scope = {"State": env.state, "load": ops.load, "randint": device_function(randint), "i32": i32, "draw": POOL_DRAW}
    scope |= {f"t_{k}": s.non_float_fields.get(k, f32) for k in env.state._fields}
    take = {k: f"load(b.pool_{k}, q, t_{k})" if k in options.pool else f"s.{k}" for k in env.state._fields}
    source = "def pooled(b, s, k):\n"
    if options.pool:
        source += "    q = randint(k, draw, 0, load(b.pool_size, 0, i32))\n"
    source += f"    return State({', '.join(take[k] for k in env.state._fields)})\n"
    return inline_function(generate_function("pooled", source, **scope))
