"""Steps on a CPU, a block of envs at a time: first what all of them do alike, then what is made of it.

Physics is arithmetic without a branch, of which a compiler makes one instruction for eight envs, if nothing stands beside it
that few envs do: autoreset, which draws random numbers, or the end of an episode. So the author's step and observation are
worked out for all envs of a block, into a room of their own, and `turn` finds them there. That of an env which awaits its reset
is worked out too, and nobody looks at it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.batch import Variant
from gpuvec.engine.jit import generated, inline
from gpuvec.engine.memory import Access
from gpuvec.engine.signature import Signature, signature
from gpuvec.engine.single import game
from gpuvec.spec import Single

ENVS = 256  # of a block, whose room stays in the nearest cache
f32, i32 = np.float32, np.int32


class Steps(NamedTuple):
    """The functions of a block; `w` is the address of its room."""

    size: int  # bytes of the room
    ahead: Any  # ahead(b, w, e, k, clock): works out the step of env e, which is number k of the block
    settle: Any  # settle(b, w, e, k, at, clock): makes it, and writes what it returns as row `at` of the outputs


def compose(env: Single, variant: Variant, access: Access) -> Steps:
    """Those of `env`."""
    s = signature(env)
    assert isinstance(s, Signature), "of a Single"
    put, find, words = _room(env, s, access)
    plain, ready = game(env, variant, access), game(env, variant, access, played=find)
    open, play, turn, show, close = plain.open, plain.play, ready.turn, ready.show, ready.close

    @inline
    def ahead(b: Any, w: int, e: int, k: int, clock: int) -> None:
        start, s, stream, p = open(b, e)
        put(w, k, play(b, e, start, i32(clock - start), s, stream, p, 0))

    @inline
    def settle(b: Any, w: int, e: int, k: int, at: int, clock: int) -> None:
        start, s, stream, p = open(b, e)
        start, s, seen, reward, terminated, truncated = turn(b, e, at, clock, start, s, stream, p, (w, k))
        close(b, e, start, s)
        show(b, at, seen, reward, terminated, truncated)

    return Steps(4 * ENVS * words, ahead, settle)


def _room(env: Single, s: Signature, access: Access) -> tuple[Any, Any, int]:
    """(put, find, words): `put(w, k, result)` of `play`, and `find` in its place, over so many words for each env."""
    floats = [f"s.{k}" for k in s.floats] + [f"seen[{j}]" for j in range(s.features)] + ["reward"]
    whole = [f"s.{k}" for k in s.others] + ["terminated"]
    scope = {"State": env.state, "load": access.load, "store": access.store, "f32": f32, "i32": i32}
    scope |= {f"t_{k}": dtype for k, dtype in s.others.items()}
    at = {name: f"{ENVS * n} + k" for n, name in enumerate([*floats, *whole])}
    source = "def put(w, k, result):\n    s, seen, reward, terminated = result\n"
    source += "".join(f"    store(w, {at[name]}, {name}, f32)\n" for name in floats)
    source += "".join(f"    store(w, {at[name]}, i32({name}), i32)\n" for name in whole)
    put = inline(generated("put", source, **scope))

    take = {name: f"load(w, {place}, {'f32' if name in floats else 'i32'})" for name, place in at.items()}
    state = [take[f"s.{k}"] if k in s.floats else f"t_{k}({take[f's.{k}']})" for k in env.state._fields]
    seen = "".join(f"{take[f'seen[{j}]']}, " for j in range(s.features))
    source = "def find(b, e, start, t, old, stream, p, a):\n    w, k = a\n"
    source += f"    return State({', '.join(state)}), ({seen}), {take['reward']}, {take['terminated']} != 0\n"
    return put, inline(generated("find", source, **scope)), len(at)
