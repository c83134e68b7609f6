"""Loads the data of one env into registers and stores it: for a single step, and for many steps in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from gpuvec.engine.compiler.dtypes import i32, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvState, RngStream
from gpuvec.engine.layout.rng_streams import RngStreamAccess, make_rng_streams
from gpuvec.engine.single_agent.env_functions import EnvFunctions
from gpuvec.random import Key


class StreamReader(NamedTuple):
    """The compiled functions that read the random-number stream of an env."""

    # load(b, e) -> the values of the stream that the caller keeps in registers
    load: DeviceFunction
    # key(b, e, stream, start, t) -> `Key` at step t of the episode that began at clock `start`
    key: DeviceFunction


# One of the next three functions, which differ in when the buffers are read.
ReadStream: TypeAlias = Callable[[RngStreamAccess], StreamReader]


def read_stream_lazily(rng_streams: RngStreamAccess) -> StreamReader:
    """Compiles reading the stream only when a number is drawn: in a single step, most envs draw none.

    Args:
        rng_streams: the functions that read random-number streams.
    """
    load_shared, shared_key = rng_streams.load_shared, rng_streams.key

    @inline_function
    def load(b: Batch, e: int) -> RngStream:
        return 0

    @inline_function
    def key(b: Batch, e: int, stream: RngStream, start: int, t: int) -> Key:
        return shared_key(b, e, load_shared(b), start, t)

    return StreamReader(load, key)


def read_shared_stream_early(rng_streams: RngStreamAccess) -> StreamReader:
    """Compiles reading the shared stream with the state, and the env's own stream when a number is drawn.

    In most warps some env draws a number, so that the shared stream is needed.

    Args:
        rng_streams: the functions that read random-number streams.
    """
    load_shared = rng_streams.load_shared

    @inline_function
    def load(b: Batch, e: int) -> RngStream:
        return load_shared(b)

    return StreamReader(load, rng_streams.key)


def keep_stream_in_registers(rng_streams: RngStreamAccess) -> StreamReader:
    """Compiles reading the stream once: the key at clock 0, whose `episode` is minus the stream's origin.

    Args:
        rng_streams: the functions that read random-number streams.
    """
    load_shared, shared_key = rng_streams.load_shared, rng_streams.key

    @inline_function
    def load(b: Batch, e: int) -> RngStream:
        return shared_key(b, e, load_shared(b), u32(0), i32(0))

    @inline_function
    def key(b: Batch, e: int, stream: RngStream, start: int, t: int) -> Key:
        return Key(stream.seed, stream.seed_high, stream.row, u32(start + stream.episode), i32(t))

    return StreamReader(load, key)


class EnvAccess(NamedTuple):
    """The compiled functions that load and store one env; `start` is the clock at which its episode began."""

    # load_env(b, e) -> (start, s, stream, p)
    load_env: DeviceFunction
    # key(b, e, stream, start, t) -> `Key` at step t of the episode
    key: DeviceFunction
    # set_start(b, e, start) -> the new start of an env as uint32
    set_start: DeviceFunction
    # store_env(b, e, start, s): writes the state, and the start if `set_start` does not write it
    store_env: DeviceFunction


def access_for_one_step(functions: EnvFunctions, ops: MemoryOps, read_stream: ReadStream) -> EnvAccess:
    """Compiles the access for a single step, in which `set_start` writes the start: it changes in few envs.

    Args:
        functions: the functions of the environment.
        ops: the operations on buffers.
        read_stream: determines when the random-number stream is read.
    """
    load_env, key = _make_load_env(functions, ops, read_stream)
    store, store_state = ops.store, functions.store_state

    @inline_function
    def set_start(b: Batch, e: int, start: int) -> int:
        store(b.start, e, u32(start), u32)
        return u32(start)

    @inline_function
    def store_env(b: Batch, e: int, start: int, s: EnvState) -> None:
        store_state(b, e, s)

    return EnvAccess(load_env, key, set_start, store_env)


def keep_env_in_registers(functions: EnvFunctions, ops: MemoryOps) -> EnvAccess:
    """Compiles the access for many steps in a row: the stream is read once, and `store_env` writes the start.

    Args:
        functions: the functions of the environment.
        ops: the operations on buffers.
    """
    load_env, key = _make_load_env(functions, ops, keep_stream_in_registers)
    store, store_state = ops.store, functions.store_state

    @inline_function
    def set_start(b: Batch, e: int, start: int) -> int:
        return u32(start)

    @inline_function
    def store_env(b: Batch, e: int, start: int, s: EnvState) -> None:
        store(b.start, e, start, u32)
        store_state(b, e, s)

    return EnvAccess(load_env, key, set_start, store_env)


def _make_load_env(functions: EnvFunctions, ops: MemoryOps, read_stream: ReadStream) -> tuple[DeviceFunction, DeviceFunction]:
    """`load_env` and `key` as in `EnvAccess`."""
    load, load_state, params = ops.load, functions.load_state, functions.params
    load_stream, key = read_stream(make_rng_streams(ops))

    @inline_function
    def load_env(b: Batch, e: int) -> Any:
        return load(b.start, e, u32), load_state(b, e), load_stream(b, e), params(b, e)

    return load_env, key
