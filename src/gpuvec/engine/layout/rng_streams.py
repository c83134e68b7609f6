"""Which random numbers an env draws: its key, and what a reset makes of it. `batch` says what the buffers mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.random import Key

i32, u32, b1 = np.int32, np.uint32, np.bool_
POOL_DRAW = 2**31 - 4  # the number with which a reset draws from the pool; authors' own are smaller
KEEP_STREAMS, ONE_SEED, SEED_EACH = 0, 1, 2  # Request.seeding: rows keep their streams, share a seed, have their own


class Streams(NamedTuple):
    """The functions of composed code that deal with keys."""

    common: Any  # common(b): the row of what all rows share: is it in force?, seed, its high word, origin
    key: Any  # key(b, e, common, start, t): of env e at step t of the episode that began at clock `start`
    stream: Any  # stream(b, e): the seed, its high word, row and origin with which env e draws; nothing waits in between
    own: Any  # own(b, e, start, t): likewise from the env's own stream, which every reset by the user writes
    asked: Any  # asked(b, e, r): whether request r is for env e
    reseed: Any  # reseed(b, e, clock, r): writes the stream and the start of an env that is reset
    share: Any  # share(b, clock, r): writes what rows share; once in a reset


def make_rng_streams(ops: MemoryOps) -> Streams:
    """Their versions for the buffers that `ops` reads."""
    load, store, load_row, store_row, *_ = ops
    words = row_of(u32, 4)

    @inline_function
    def own(b: Any, e: int, start: int, t: int) -> Any:
        seed, high, row, origin = load_row(b.rng_streams, e, words)
        return Key(seed, high, row, u32(start - origin), i32(t))

    @inline_function
    def common(b: Any) -> Any:
        return load_row(b.shared, 0, words)

    @inline_function
    def key(b: Any, e: int, common: Any, start: int, t: int) -> Any:
        in_force, seed, high, origin = common
        if in_force != u32(0):
            return Key(seed, high, u32(e), u32(start - origin), i32(t))
        return own(b, e, start, t)

    @inline_function
    def stream(b: Any, e: int) -> Any:
        (in_force, seed, high, origin), mine = common(b), load_row(b.rng_streams, e, words)
        return (seed, high, u32(e), origin) if in_force != u32(0) else mine

    @inline_function
    def asked(b: Any, e: int, r: Any) -> bool:
        return r.masked == u32(0) or load(b.mask, e, b1)

    @inline_function
    def share(b: Any, clock: int, r: Any) -> None:
        whole = r.masked == u32(0)
        if whole and r.seeding == u32(ONE_SEED):
            store_row(b.shared, 0, (u32(1), u32(r.seed), u32(r.seed_high), u32(clock)))
        elif whole and r.seeding == u32(KEEP_STREAMS):
            store(b.shared, 3, u32(load(b.shared, 3, u32) - u32(1)), u32)
        else:
            store(b.shared, 0, u32(0), u32)

    @inline_function
    def reseed(b: Any, e: int, clock: int, r: Any) -> None:
        seed, high, row, origin = load_row(b.rng_streams, e, words)
        if r.seeding == u32(ONE_SEED):
            seed, high, row, origin = u32(r.seed), u32(r.seed_high), u32(e), u32(clock)
        elif r.seeding == u32(SEED_EACH) and load(b.seeds, 3 * e, u32) != u32(0):
            seed, high, row, origin = load(b.seeds, 3 * e + 1, u32), load(b.seeds, 3 * e + 2, u32), u32(0), u32(clock)
        else:
            origin = u32(origin - u32(1))
        store_row(b.rng_streams, e, (seed, high, row, origin))
        store(b.start, e, u32(clock), u32)

    return Streams(common, key, stream, own, asked, reseed, share)
