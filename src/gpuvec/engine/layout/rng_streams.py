"""The random-number stream of an env: the key of its draws, and the changes that a reset makes to the stream.

`layout.buffers` describes the buffers `rng_streams` and `shared`.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.dtypes import b1, i32, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, RngStream
from gpuvec.random import Key

# The number of the draw with which a reset selects a state of the pool. The numbers of authors' draws are smaller.
POOL_DRAW = 2**31 - 4
# The values of `Request.seeding`: rows keep their streams, have one seed in common, or have a seed each.
KEEP_STREAMS, ONE_SEED, SEED_EACH = 0, 1, 2


class RngStreamAccess(NamedTuple):
    """The compiled functions that read and write random-number streams.

    Attributes:
        load_shared: `load_shared(b)` returns the stream that all rows share as (whether it is valid, low word of the seed, high
            word, origin).
        key: `key(b, e, shared, start, t)` returns the `Key` of env e at step t of the episode that began at clock `start`.
        load: `load(b, e)` returns the stream from which env e draws as (low word of the seed, high word, row, origin), without
            a branch.
        own_key: `own_key(b, e, start, t)` returns the same as `key` from the env's own stream, which each reset by the user
            writes.
        is_selected: `is_selected(b, e, r)` returns whether reset request r is for env e.
        begin_episode: `begin_episode(b, e, clock, r)` writes the random stream and start of an env that a reset selects.
        set_shared_seed: `set_shared_seed(b, clock, r)` writes the shared stream. It is called once in a reset.
    """

    load_shared: DeviceFunction
    key: DeviceFunction
    load: DeviceFunction
    own_key: DeviceFunction
    is_selected: DeviceFunction
    begin_episode: DeviceFunction
    set_shared_seed: DeviceFunction


def make_rng_streams(ops: MemoryOps) -> RngStreamAccess:
    """Compiles the functions on random-number streams, which access buffers with `ops`."""
    load_row, words = ops.load_row, row_of(u32, 4)

    @inline_function
    def own_key(b: Batch, e: int, start: int, t: int) -> Key:
        seed, high, row, origin = load_row(b.rng_streams, e, words)
        return Key(seed, high, row, u32(start - origin), i32(t))

    @inline_function
    def load_shared(b: Batch) -> RngStream:
        return load_row(b.shared, 0, words)

    @inline_function
    def key(b: Batch, e: int, shared: RngStream, start: int, t: int) -> Key:
        is_valid, seed, high, origin = shared
        if is_valid != u32(0):
            return Key(seed, high, u32(e), u32(start - origin), i32(t))
        return own_key(b, e, start, t)

    @inline_function
    def load(b: Batch, e: int) -> RngStream:
        (is_valid, seed, high, origin), own_stream = load_shared(b), load_row(b.rng_streams, e, words)
        return (seed, high, u32(e), origin) if is_valid != u32(0) else own_stream

    @inline_function
    def is_selected(b: Batch, e: int, r: ResetRequest) -> bool:
        return r.masked == u32(0) or ops.load(b.mask, e, b1)

    @inline_function
    def begin_episode(b: Batch, e: int, clock: int, r: ResetRequest) -> None:
        seed, high, row, origin = load_row(b.rng_streams, e, words)
        if r.seeding == u32(ONE_SEED):
            seed, high, row, origin = u32(r.seed), u32(r.seed_high), u32(e), u32(clock)
        elif r.seeding == u32(SEED_EACH) and ops.load(b.seeds, 3 * e, u32) != u32(0):
            seed, high, row, origin = ops.load(b.seeds, 3 * e + 1, u32), ops.load(b.seeds, 3 * e + 2, u32), u32(0), u32(clock)
        else:
            origin = u32(origin - u32(1))
        ops.store_row(b.rng_streams, e, (seed, high, row, origin))
        ops.store(b.start, e, u32(clock), u32)

    @inline_function
    def set_shared_seed(b: Batch, clock: int, r: ResetRequest) -> None:
        all_rows = r.masked == u32(0)
        if all_rows and r.seeding == u32(ONE_SEED):
            ops.store_row(b.shared, 0, (u32(1), u32(r.seed), u32(r.seed_high), u32(clock)))
        elif all_rows and r.seeding == u32(KEEP_STREAMS):
            ops.store(b.shared, 3, u32(ops.load(b.shared, 3, u32) - u32(1)), u32)
        else:
            ops.store(b.shared, 0, u32(0), u32)

    return RngStreamAccess(load_shared, key, load, own_key, is_selected, begin_episode, set_shared_seed)
