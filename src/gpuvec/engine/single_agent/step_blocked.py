"""Steps on a CPU, a block of envs at a time: first what all of them do alike, then what is made of it.

Physics is arithmetic without a branch, of which a compiler makes one instruction for eight envs, if nothing stands beside it
that few envs do: autoreset, which draws random numbers, or the end of an episode. So the author's step and observation are
worked out for all envs of a block, into a room of their own, and leave it as if every episode went on. Then `turn` finds those
there that do not. That of an env which awaits its reset is worked out too, and nobody looks at it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.layout.schema import SingleAgentSchema, make_schema
from gpuvec.engine.single_agent.step import game
from gpuvec.spec import SingleAgentEnv

WIDE = 32  # features from which on a loop copies them: as many statements take LLVM a time that grows with their square
ENVS = 256  # of a block, whose room stays in the nearest cache
f32, i32, i64, b1 = np.float32, np.int32, np.int64, np.bool_


class Steps(NamedTuple):
    """The functions of a block; `w` is the address of its room."""

    size: int  # bytes of the room
    ahead: Any  # ahead(b, w, e, k, clock): works out the step of env e, which is number k of the block
    settle: Any  # settle(b, w, e, count, at, clock): makes those of `count` envs from e on; their outputs begin at row `at`


def compose(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps) -> Steps:
    """Those of `env`."""
    s = make_schema(env)
    assert isinstance(s, SingleAgentSchema), "of a SingleAgentEnv"
    room = _room(env, s, ops)
    put, find, goes_on = room.put, room.find, room.goes_on
    state, seen_of, reward_of = room.state, room.seen, room.reward
    listed = ENVS * room.words  # where the numbers of envs that do more than go on begin: so no branch is guessed wrong
    plain, ready = game(env, options, ops), game(env, options, ops, played=find)
    open, play, turn, show, close = plain.open, plain.play, ready.turn, ready.show, ready.close
    load, store, store_streaming, store_row_streaming = (
        ops.load,
        ops.store,
        ops.store_streaming,
        ops.store_row_streaming,
    )
    features, column_of = s.num_features, ENVS * len(s.float_fields)  # where the observation's columns begin in the room
    is_wide = features >= WIDE
    limit = i32(NO_STEP_LIMIT if options.max_episode_steps is None else options.max_episode_steps)
    same_step = options.autoreset is AutoresetMode.SAME_STEP
    # Whether all are written as if they went on, and then the others anew: one that is never reset would lose its state.
    at_once = options.autoreset is not AutoresetMode.DISABLED and not options.validate

    @inline_function
    def ahead(b: Any, w: int, e: int, k: int, clock: int) -> None:
        start, s, stream, p = open(b, e)
        t = i32(clock - start)
        put(w, k, play(b, e, start, t, s, stream, p, 0), t < limit and (same_step or t != i32(0)))

    @inline_function
    def settle(b: Any, w: int, e: int, count: int, at: int, clock: int) -> None:
        if at_once:  # in loops of few arrays each, which a compiler can tell apart
            for k in range(count):
                close(b, e + k, 0, state(w, k))
                if not is_wide:
                    store_row_streaming(b.obs, at + k, seen_of(w, k))
            if is_wide:
                for k in range(count):
                    for j in range(features):
                        store_streaming(b.obs, i64(at + k) * features + j, load(w, column_of + ENVS * j + k, f32), f32)
            for k in range(count):
                store_streaming(b.reward, at + k, reward_of(w, k), f32)
            for k in range(count):
                store_streaming(b.terminated, at + k, False, b1)
            for k in range(count):
                store_streaming(b.truncated, at + k, False, b1)
            if same_step:
                for k in range(count):
                    store_streaming(b.final_mask, at + k, False, b1)
        rare = 0
        for k in range(count):
            store(w, listed + rare, i32(k), i32)
            rare += 0 if at_once and goes_on(w, k) else 1
        for j in range(rare):
            k = load(w, listed + j, i32)
            start, s, stream, p = open(b, e + k)
            start, s, seen, reward, terminated, truncated = turn(b, e + k, at + k, clock, start, s, stream, p, (w, k))
            close(b, e + k, start, s)
            show(b, at + k, seen, reward, terminated, truncated)

    return Steps(4 * (listed + ENVS), ahead, settle)


class Room(NamedTuple):
    """What reads and writes the room of a block: its functions of (w, k) are of env number k."""

    words: int  # for each env
    put: Any  # put(w, k, result, on) stores the result of `play`
    find: Any  # a function as `play`, with (w, k) for an action, that gives what was put there
    state: Any  # parts of it, as each number that is loaded takes time to compile
    seen: Any
    reward: Any
    goes_on: Any  # whether the env's episode does, which it did before as well if `on`


def _room(env: SingleAgentEnv, s: SingleAgentSchema, ops: MemoryOps) -> Room:
    numbers = [f"s.{k}" for k in s.float_fields] + ["reward"]
    whole = [f"s.{k}" for k in s.non_float_fields] + ["terminated", "on"]
    scope = {"State": env.state, "load": ops.load, "store": ops.store, "f32": f32, "i32": i32}
    scope |= {f"t_{k}": dtype for k, dtype in s.non_float_fields.items()} | {"seen_like": row_of(f32, s.num_features)}
    scope |= {"load_column": ops.load_column, "store_column": ops.store_column}
    # An observation has as many places as features, between the state and the reward: a statement each would compile slowly.
    first = len(s.float_fields)
    places = [*range(first), *range(first + s.num_features, len(numbers) + s.num_features + len(whole))]
    at = {name: f"{ENVS * n} + k" for n, name in zip(places, [*numbers, *whole], strict=True)}
    column = f"{ENVS * first} + k, {ENVS}"
    source = "def put(w, k, result, on):\n    s, seen, reward, terminated = result\n    on = on and not terminated\n"
    source += "".join(f"    store(w, {at[name]}, {name}, f32)\n" for name in numbers[:-1])
    source += f"    store_column(w, {column}, seen)\n    store(w, {at['reward']}, reward, f32)\n"
    source += "".join(f"    store(w, {at[name]}, i32({name}), i32)\n" for name in whole)
    put = inline_function(generate_function("put", source, **scope))

    take = {name: f"load(w, {place}, {'f32' if name in numbers else 'i32'})" for name, place in at.items()}
    fields = [take[f"s.{k}"] if k in s.float_fields else f"t_{k}({take[f's.{k}']})" for k in env.state._fields]
    parts = {
        "state": f"State({', '.join(fields)})",
        "seen": f"load_column(w, {column}, seen_like)",
        "reward": take["reward"],
        "terminated": f"{take['terminated']} != 0",
        "goes_on": f"{take['on']} != 0",
    }
    made = {
        k: inline_function(generate_function(k, f"def {k}(w, k):\n    return {part}\n", **scope)) for k, part in parts.items()
    }
    state, seen, reward, terminated = (made[k] for k in ("state", "seen", "reward", "terminated"))

    @inline_function
    def find(b: Any, e: int, start: int, t: int, old: Any, stream: Any, p: Any, a: Any) -> Any:
        w, k = a
        return state(w, k), seen(w, k), reward(w, k), terminated(w, k)

    return Room(len(at) + s.num_features, put, find, state, seen, reward, made["goes_on"])
