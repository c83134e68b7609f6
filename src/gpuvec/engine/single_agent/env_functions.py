"""The author's functions, and access to state, parameters, actions and random-number streams, compiled for one env.

Generated code for the fields of a state, an observation and an action has no control flow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from gpuvec.engine.compiler.dtypes import f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, DType, EnvParams, EnvState, RngStream, Row
from gpuvec.engine.layout.action_access import action_bounds, action_expression, make_action_reader
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import POOL_DRAW, RngStreamAccess, make_rng_streams
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.random import Key, randint, unit, word
from gpuvec.spec import SingleAgentEnv


def _field_dtypes(env: SingleAgentEnv, schema: SingleAgentSchema) -> dict[str, Any]:
    """The names of the dtypes of the state's fields in generated code."""
    return {f"t_{k}": schema.non_float_fields.get(k, f32) for k in env.state._fields}


def make_state_access(env: SingleAgentEnv, schema: SingleAgentSchema, ops: MemoryOps) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles `load_state(b, e)` -> s and `store_state(b, e, s)`.

    The float fields of an env are one row of a buffer. Each other field has a buffer of its own.

    Args:
        env: the environment.
        schema: has the names and dtypes of the fields.
        ops: the operations on buffers.
    """
    scope = {"State": env.state, "load": ops.load, "store": ops.store, "store_row": ops.store_row, "f32": f32}
    scope |= {"load_row": ops.load_row, "row_type": row_of(f32, len(schema.float_fields))} | _field_dtypes(env, schema)
    values = {k: f"floats[{j}]" for j, k in enumerate(schema.float_fields)}
    values |= {k: f"load(b.state_{k}, e, t_{k})" for k in schema.non_float_fields}
    load = "def load_state(b, e):\n" + ("    floats = load_row(b.state, e, row_type)\n" if schema.float_fields else "")
    load += f"    return State({', '.join(values[k] for k in env.state._fields)})\n"
    store = "def store_state(b, e, s):\n"
    if schema.float_fields:
        store += f"    store_row(b.state, e, ({''.join(f'f32(s.{k}), ' for k in schema.float_fields)}))\n"
    store += "".join(f"    store(b.state_{k}, e, s.{k}, t_{k})\n" for k in schema.non_float_fields)
    load_state = inline_function(generate_function("load_state", load, **scope))
    return load_state, inline_function(generate_function("store_state", store, **scope))


def make_state_cast(env: SingleAgentEnv, schema: SingleAgentSchema) -> DeviceFunction:
    """Compiles `cast_state(s)`: the state with fields of the declared types; an expression such as `s.count + 1` has another.

    Args:
        env: the environment.
        schema: has the dtypes of its state.
    """
    fields = ", ".join(f"t_{k}(s.{k})" for k in env.state._fields)
    source = f"def cast_state(s):\n    return State({fields})\n"
    return inline_function(generate_function("cast_state", source, State=env.state, **_field_dtypes(env, schema)))


def make_pool_reader(env: SingleAgentEnv, schema: SingleAgentSchema, options: KernelOptions, ops: MemoryOps) -> DeviceFunction:
    """Compiles `replace_from_pool(b, s, key)`: `s` with the fields of the reset pool from a random state of the pool.

    Args:
        env: the environment.
        schema: has the dtypes of its state.
        options: has the fields of the pool.
        ops: the operations on buffers.
    """
    scope = {"State": env.state, "load": ops.load, "randint": device_function(randint), "i32": i32, "draw": POOL_DRAW}
    values = {k: f"load(b.pool_{k}, q, t_{k})" if k in options.pool else f"s.{k}" for k in env.state._fields}
    source = "def replace_from_pool(b, s, key):\n"
    if options.pool:
        source += "    q = randint(key, draw, 0, load(b.pool_size, 0, i32))\n"
    source += f"    return State({', '.join(values[k] for k in env.state._fields)})\n"
    return inline_function(generate_function("replace_from_pool", source, **scope, **_field_dtypes(env, schema)))


def make_selections(env: SingleAgentEnv, schema: SingleAgentSchema) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles `select_state(c, x, y)` and `select_obs(c, x, y)`, which return the state or observation `x` if `c`, else `y`.

    Each number is selected by itself: a compiler may turn the selection of a whole into a branch.

    Args:
        env: the environment.
        schema: has the number of features.
    """
    fields = ", ".join(f"x.{k} if c else y.{k}" for k in env.state._fields)
    items = "".join(f"x[{j}] if c else y[{j}], " for j in range(schema.num_features))
    state = generate_function("select_state", f"def select_state(c, x, y):\n    return State({fields})\n", State=env.state)
    obs = generate_function("select_obs", f"def select_obs(c, x, y):\n    return ({items})\n")
    return inline_function(state), inline_function(obs)


def make_batch_change(batch: Any, arguments: str, **addresses: str) -> DeviceFunction:
    """Compiles `change(b, ...)`, which returns the batch with other addresses.

    Args:
        batch: the NamedTuple class of the batch.
        arguments: the parameters of the function, which begin with `b`.
        addresses: {member: source of the expression of its address}.
    """
    members = ", ".join(addresses.get(name, f"b.{name}") for name in batch._fields)
    source = f"def change({arguments}):\n    return Batch({members})\n"
    return inline_function(generate_function("change", source, Batch=batch, u64=u64))


class BlockScratch(NamedTuple):
    """The compiled functions on the scratch memory of a block of envs: `w` is its address, `k` is an env's index in the block.

    It has a column of 4-byte words for each number of the result of a step, so that a loop over envs reads contiguous memory.
    """

    words_per_env: int
    obs_column: int  # index of the first word of the observations
    # store_result(w, k, result, continues): `result` is that of `env_step`; `continues` is false if the env awaits its reset or
    # is truncated
    store_result: DeviceFunction
    # load_state(w, k) -> s. Each part of a result has a function of its own: each number that is loaded takes time to compile.
    load_state: DeviceFunction
    # load_obs(w, k) -> obs
    load_obs: DeviceFunction
    # load_reward(w, k) -> reward
    load_reward: DeviceFunction
    # load_terminated(w, k) -> terminated
    load_terminated: DeviceFunction
    # load_continues(w, k) -> whether the episode continues: also false if it is terminated
    load_continues: DeviceFunction


def make_block_scratch(env: SingleAgentEnv, schema: SingleAgentSchema, ops: MemoryOps, block_size: int) -> BlockScratch:
    """Compiles the functions on the scratch memory of a block.

    Args:
        env: the environment.
        schema: has the fields of its state and the number of features.
        ops: the operations on buffers.
        block_size: the number of envs of a block.
    """
    floats = [f"s.{k}" for k in schema.float_fields]
    numbers, integers = [*floats, "reward"], [*(f"s.{k}" for k in schema.non_float_fields), "terminated", "continues"]
    # The observation has a column for each feature, after the state's floats. One statement for each would compile slowly.
    obs_start = len(floats)
    columns = [*range(obs_start), *range(obs_start + schema.num_features, len(numbers) + schema.num_features + len(integers))]
    index = {name: f"{block_size * n} + k" for n, name in zip(columns, [*numbers, *integers], strict=True)}
    obs_index = f"{block_size * obs_start} + k, {block_size}"

    store = "def store_result(w, k, result, continues):\n"
    store += "    s, obs, reward, terminated = result\n    continues = continues and not terminated\n"
    store += "".join(f"    store(w, {index[name]}, {name}, f32)\n" for name in floats)
    store += f"    store_column(w, {obs_index}, obs)\n    store(w, {index['reward']}, reward, f32)\n"
    store += "".join(f"    store(w, {index[name]}, i32({name}), i32)\n" for name in integers)

    value = {name: f"load(w, {i}, {'f32' if name in numbers else 'i32'})" for name, i in index.items()}
    fields = [value[f"s.{k}"] if k in schema.float_fields else f"t_{k}({value[f's.{k}']})" for k in env.state._fields]
    parts = {
        "state": f"State({', '.join(fields)})",
        "obs": f"load_column(w, {obs_index}, row_type)",
        "reward": value["reward"],
        "terminated": f"{value['terminated']} != 0",
        "continues": f"{value['continues']} != 0",
    }
    sources = {"store_result": store} | {f"load_{k}": f"def load_{k}(w, k):\n    return {v}\n" for k, v in parts.items()}
    scope = {"State": env.state, "load": ops.load, "store": ops.store, "f32": f32, "i32": i32}
    scope |= {"load_column": ops.load_column, "store_column": ops.store_column, "row_type": row_of(f32, schema.num_features)}
    scope |= _field_dtypes(env, schema)
    functions = (inline_function(generate_function(name, source, **scope)) for name, source in sources.items())
    return BlockScratch(len(index) + schema.num_features, block_size * obs_start, *functions)


def make_random_action(env: SingleAgentEnv) -> DeviceFunction:
    """Compiles `draw(x)` -> action, uniformly distributed over the action space.

    For an action of one number, `x` is a random uint32. For an action of several numbers, it is a `Key`.

    Args:
        env: the environment.
    """
    space = env.spaces(env.params)[1]
    lows, highs = action_bounds(space)
    scope: dict[str, Any] = {"word": device_function(word), "unit": device_function(unit), "i32": i32, "i64": i64, "u64": u64}
    values = []
    for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
        random_word = "x" if len(lows) == 1 else f"word(x, {k})"
        scope |= {f"low_{k}": f32(low), f"span_{k}": f32(high) - f32(low)}
        if isinstance(space, gym.spaces.Box):
            values.append(f"low_{k} + span_{k} * unit({random_word})")
        else:  # The word is scaled as in `randint`.
            values.append(f"i32(i64({low}) + i64((u64({random_word}) * u64({high - low + 1})) >> u64(32)))")
    components = 0 if isinstance(space, gym.spaces.Discrete) else len(values)
    source = f"def draw(x):\n    return {action_expression(values, components)}\n"
    return inline_function(generate_function("draw", source, **scope))


def make_store_action(
    components: int, dtype: DType, convert: DeviceFunction, range_functions: list[DeviceFunction], ops: MemoryOps
) -> DeviceFunction:
    """Compiles `store_action(b, out_index, a)`, which writes action `a` as row `out_index` of `b.action`.

    It returns the action that the environment gets if that row is replayed.

    Args:
        components: K; 0 for an action that is a scalar.
        dtype: the dtype of `b.action`.
        convert: `convert(x)` -> component x in the range of `dtype`.
        range_functions: for each component, `in_range(x)` -> the value that the environment gets for x.
        ops: the operations on buffers.
    """
    names = [f"x{k}" for k in range(max(1, components))]
    unpacked = ", ".join(names) + ("," if components else "")
    source = f"def store_action(b, out_index, a):\n    {unpacked} = a\n"
    source += "".join(f"    {x} = convert({x})\n" for x in names)
    source += f"    store_row_streaming(b.action, out_index, ({''.join(f'dtype({x}),' for x in names)}))\n"
    values = [f"in_range_{k}({x})" for k, x in enumerate(names)]
    source += f"    return {action_expression(values, components)}\n"
    scope = {f"in_range_{k}": function for k, function in enumerate(range_functions)}
    scope |= {"dtype": dtype, "convert": convert, "store_row_streaming": ops.store_row_streaming}
    return inline_function(generate_function("store_action", source, **scope))


class EnvFunctions(NamedTuple):
    """The compiled functions of an environment, each for one env."""

    env: SingleAgentEnv
    schema: SingleAgentSchema
    # load_state(b, e) -> s
    load_state: DeviceFunction
    # store_state(b, e, s): writes the state
    store_state: DeviceFunction
    # params(b, e) -> p
    params: DeviceFunction
    # reset_params(b, e, r) -> p with the values that reset request r passes
    reset_params: DeviceFunction
    # load_action(b, e) -> action
    load_action: DeviceFunction
    # report_invalid_action(b, e): reports the action of env e if its space does not allow it
    report_invalid_action: DeviceFunction
    # reset(b, key, p) -> first state of the episode with that key; the fields of the reset pool come from the pool
    reset: DeviceFunction
    # step(s, action, key, p) -> (s, reward, terminated): the author's function, whose results may have any number type
    step: DeviceFunction
    # cast_state(s) -> s with fields of the declared types
    cast_state: DeviceFunction
    # observe(s, p) -> observation, a tuple of D float32
    observe: DeviceFunction


def make_env_functions(env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps) -> EnvFunctions:
    """Compiles the functions of `env`.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        ops: the operations on buffers.
    """
    schema = make_schema(env)
    assert isinstance(schema, SingleAgentSchema), "the schema of a SingleAgentEnv"
    author_reset, cast_state = device_function(env.reset), make_state_cast(env, schema)
    replace_from_pool = make_pool_reader(env, schema, options, ops)

    @inline_function
    def reset(b: Batch, key: Key, p: EnvParams) -> EnvState:
        return replace_from_pool(b, cast_state(author_reset(key, p)), key)

    return EnvFunctions(
        env,
        schema,
        *make_state_access(env, schema, ops),
        *make_param_readers(env, options, ops),
        *make_action_reader(env.spaces(env.params)[1], schema.action, options, ops),
        reset,
        device_function(env.step),
        cast_state,
        _make_observe(device_function(env.observe), schema.num_features, ops),
    )


# All kernels of an environment share one function: with many features it takes long to compile.
@lru_cache(maxsize=16)
def _make_observe(author_observe: DeviceFunction, num_features: int, ops: MemoryOps) -> DeviceFunction:
    """`observe` as in `EnvFunctions`."""
    to_floats, row_type = ops.to_floats, row_of(f32, num_features)

    @inline_function
    def observe(s: EnvState, p: EnvParams) -> Row:
        return to_floats(author_observe(s, p), row_type)

    return observe


# Loads the data of one env into registers and stores it: for a single step, and for many steps in a row.


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
