"""The random-number stream of an env: the key of its draws, and what a reset makes of the stream.

`layout.buffers` describes the buffers `rng_streams` and `shared`.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.dtypes import b1, i32, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, RngStream
from gpuvec.random import Key

POOL_DRAW = 2**31 - 4  # the number with which a reset draws from the pool; authors' own are smaller
KEEP_STREAMS, ONE_SEED, SEED_EACH = 0, 1, 2  # Request.seeding: rows keep their streams, share a seed, have their own


class RngStreamAccess(NamedTuple):
    """The compiled functions that read and write random-number streams."""

    # load_shared(b) -> (whether it is in force, low word of the seed, high word, origin) of the stream that all rows share
    load_shared: DeviceFunction
    # key(b, e, shared, start, t) -> `Key` of env e at step t of the episode that began at clock `start`
    key: DeviceFunction
    # load(b, e) -> (low word of the seed, high word, row, origin) of the stream from which env e draws; without a branch
    load: DeviceFunction
    # own_key(b, e, start, t) -> `Key` as by `key`, from the env's own stream, which every reset by the user writes
    own_key: DeviceFunction
    # is_selected(b, e, r) -> whether reset request r is for env e
    is_selected: DeviceFunction
    # reseed(b, e, clock, r): writes the stream and the start of an env that is reset
    reseed: DeviceFunction
    # set_shared_seed(b, clock, r): writes the shared stream; called once in a reset
    set_shared_seed: DeviceFunction


def make_rng_streams(ops: MemoryOps) -> RngStreamAccess:
    """Compiles the functions on random-number streams for the buffers that `ops` reads and returns them."""
    return RngStreamAccess(*_make_readers(ops), *_make_writers(ops))


def _make_readers(ops: MemoryOps) -> tuple[DeviceFunction, DeviceFunction, DeviceFunction, DeviceFunction]:
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
        in_force, seed, high, origin = shared
        if in_force != u32(0):
            return Key(seed, high, u32(e), u32(start - origin), i32(t))
        return own_key(b, e, start, t)

    @inline_function
    def load(b: Batch, e: int) -> RngStream:
        (in_force, seed, high, origin), own = load_shared(b), load_row(b.rng_streams, e, words)
        return (seed, high, u32(e), origin) if in_force != u32(0) else own

    return load_shared, key, load, own_key


def _make_writers(ops: MemoryOps) -> tuple[DeviceFunction, DeviceFunction, DeviceFunction]:
    load, store, load_row, store_row = ops.load, ops.store, ops.load_row, ops.store_row
    words = row_of(u32, 4)

    @inline_function
    def is_selected(b: Batch, e: int, r: ResetRequest) -> bool:
        return r.masked == u32(0) or load(b.mask, e, b1)

    @inline_function
    def reseed(b: Batch, e: int, clock: int, r: ResetRequest) -> None:
        seed, high, row, origin = load_row(b.rng_streams, e, words)
        if r.seeding == u32(ONE_SEED):
            seed, high, row, origin = u32(r.seed), u32(r.seed_high), u32(e), u32(clock)
        elif r.seeding == u32(SEED_EACH) and load(b.seeds, 3 * e, u32) != u32(0):
            seed, high, row, origin = load(b.seeds, 3 * e + 1, u32), load(b.seeds, 3 * e + 2, u32), u32(0), u32(clock)
        else:
            origin = u32(origin - u32(1))
        store_row(b.rng_streams, e, (seed, high, row, origin))
        store(b.start, e, u32(clock), u32)

    @inline_function
    def set_shared_seed(b: Batch, clock: int, r: ResetRequest) -> None:
        all_rows = r.masked == u32(0)
        if all_rows and r.seeding == u32(ONE_SEED):
            store_row(b.shared, 0, (u32(1), u32(r.seed), u32(r.seed_high), u32(clock)))
        elif all_rows and r.seeding == u32(KEEP_STREAMS):
            store(b.shared, 3, u32(load(b.shared, 3, u32) - u32(1)), u32)
        else:
            store(b.shared, 0, u32(0), u32)

    return is_selected, reseed, set_shared_seed
