"""The author's functions, and access to state, parameters, actions and random-number streams, compiled for one env.

Generated code for the fields of a state, an observation and an action has no control flow.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, DType, EnvParams, EnvState, RngStream, Row
from gpuvec.engine.layout.action_access import action_bounds, action_expression, make_action_reader
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.episode_rules import rule_values
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import POOL_DRAW, make_rng_streams
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.random import Key, randint, unit, word
from gpuvec.spec import SingleAgentEnv


def make_state_functions(
    env: SingleAgentEnv, schema: SingleAgentSchema, options: KernelOptions, ops: MemoryOps
) -> tuple[DeviceFunction, DeviceFunction, DeviceFunction, DeviceFunction]:
    """Compiles `load_state`, `store_state`, `cast_state` and `replace_from_pool` of `EnvFunctions`.

    The float fields of an env are one row of a buffer. Each other field has a buffer of its own.

    Args:
        env: the environment.
        schema: has the names and dtypes of the fields.
        options: has the fields of the reset pool.
        ops: the operations on buffers.
    """
    scope = {"State": env.state, "load": ops.load, "store": ops.store, "store_row": ops.store_row, "f32": f32, "i32": i32}
    scope |= {"load_row": ops.load_row, "row_type": row_of(f32, len(schema.float_fields)), "draw": POOL_DRAW}
    scope |= {f"t_{k}": schema.non_float_fields.get(k, f32) for k in env.state._fields} | {"randint": device_function(randint)}
    values = {k: f"floats[{j}]" for j, k in enumerate(schema.float_fields)}
    values |= {k: f"load(b.state_{k}, e, t_{k})" for k in schema.non_float_fields}
    load = "def load_state(b, e):\n" + ("    floats = load_row(b.state, e, row_type)\n" if schema.float_fields else "")
    load += f"    return State({', '.join(values[k] for k in env.state._fields)})\n"
    store = "def store_state(b, e, s):\n"
    if schema.float_fields:
        store += f"    store_row(b.state, e, ({''.join(f'f32(s.{k}), ' for k in schema.float_fields)}))\n"
    store += "".join(f"    store(b.state_{k}, e, s.{k}, t_{k})\n" for k in schema.non_float_fields)
    cast = f"def cast_state(s):\n    return State({', '.join(f't_{k}(s.{k})' for k in env.state._fields)})\n"
    replace = "def replace_from_pool(b, s, key):\n"
    if options.pool:
        replace += "    q = randint(key, draw, 0, load(b.pool_size, 0, i32))\n"
    fields = (f"load(b.pool_{k}, q, t_{k})" if k in options.pool else f"s.{k}" for k in env.state._fields)
    replace += f"    return State({', '.join(fields)})\n"
    sources = {"load_state": load, "store_state": store, "cast_state": cast, "replace_from_pool": replace}
    functions = (inline_function(generate_function(name, source, **scope)) for name, source in sources.items())
    load_state, store_state, cast_state, replace_from_pool = functions
    return load_state, store_state, cast_state, replace_from_pool


class Selections(NamedTuple):
    """The compiled functions that return `x` if `c`, else `y`."""

    state: DeviceFunction  # state(c, x, y)
    obs: DeviceFunction  # obs(c, x, y)


def make_selections(env: SingleAgentEnv, schema: SingleAgentSchema) -> Selections:
    """Compiles the selections of a state and of an observation.

    Each number is selected by itself: a compiler may turn the selection of a whole into a branch.

    Args:
        env: the environment.
        schema: has the number of features.
    """
    fields = ", ".join(f"x.{k} if c else y.{k}" for k in env.state._fields)
    items = "".join(f"x[{j}] if c else y[{j}], " for j in range(schema.num_features))
    state = generate_function("select_state", f"def select_state(c, x, y):\n    return State({fields})\n", State=env.state)
    obs = generate_function("select_obs", f"def select_obs(c, x, y):\n    return ({items})\n")
    return Selections(inline_function(state), inline_function(obs))


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
    scope |= {f"t_{k}": schema.non_float_fields.get(k, f32) for k in env.state._fields}
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
        range_functions: for each component, `in_range(x)` -> the value that the environment gets for x; empty if that is x.
        ops: the operations on buffers.
    """
    names = [f"x{k}" for k in range(max(1, components))]
    unpacked = ", ".join(names) + ("," if components else "")
    source = f"def store_action(b, out_index, a):\n    {unpacked} = a\n"
    source += "".join(f"    {x} = convert({x})\n" for x in names)
    source += f"    store_row_streaming(b.action, out_index, ({''.join(f'dtype({x}),' for x in names)}))\n"
    values = [f"in_range_{k}({x})" for k, x in enumerate(names)] if range_functions else names
    source += f"    return {action_expression(values, components)}\n"
    scope = {f"in_range_{k}": function for k, function in enumerate(range_functions)}
    scope |= {"dtype": dtype, "convert": convert, "store_row_streaming": ops.store_row_streaming}
    return inline_function(generate_function("store_action", source, **scope))


# What the functions below read, beside the names of `layout.episode_rules`: those of an environment and of its random-number
# stream. The caller of `bind` replaces `load_stream`, `key`, `set_start` and `store_env` by other functions of this module.
ops: Any = None
functions: Any = None
rng_streams: Any = None
same_step = False


class EnvFunctions(NamedTuple):
    """The compiled functions of an environment, each for one env."""

    env: SingleAgentEnv
    schema: SingleAgentSchema
    # load_state(b, e) -> s
    load_state: DeviceFunction
    # store_state(b, e, s): writes the state
    store_state: DeviceFunction
    # cast_state(s) -> s with fields of the declared types; an expression such as `s.count + 1` has another
    cast_state: DeviceFunction
    # replace_from_pool(b, s, key) -> s with the fields of the reset pool from a random state of the pool
    replace_from_pool: DeviceFunction
    # params(b, e) -> p
    params: DeviceFunction
    # reset_params(b, e, r) -> p with the values that reset request r passes
    reset_params: DeviceFunction
    # load_action(b, e) -> action
    load_action: DeviceFunction
    # report_invalid_action(b, e): reports the action of env e if its space does not allow it
    report_invalid_action: DeviceFunction
    # reset(key, p) -> s, and step(s, action, key, p) -> (s, reward, terminated): the author's, with results of any number type
    reset: DeviceFunction
    step: DeviceFunction
    # observe(s, p) -> observation, a tuple of D float32
    observe: DeviceFunction


def make_env_functions(spec: KernelSpec, ops: MemoryOps) -> EnvFunctions:
    """Compiles the functions of an environment.

    Args:
        spec: what the kernels are compiled from.
        ops: the operations on buffers.
    """
    assert isinstance(spec.schema, SingleAgentSchema), "the schema of a SingleAgentEnv"
    return EnvFunctions(
        spec.env,
        spec.schema,
        *make_state_functions(spec.env, spec.schema, spec.options, ops),
        *make_param_readers(spec.env, spec.options, ops),
        *make_action_reader(spec.env.spaces(spec.env.params)[1], spec.schema.action, spec.options, ops),
        device_function(spec.env.reset),
        device_function(spec.env.step),
        _make_observe(device_function(spec.env.observe), spec.schema.num_features, ops),
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


def env_values(functions: EnvFunctions, options: KernelOptions, ops: MemoryOps) -> dict[str, Any]:
    """Returns the values with which `bind` compiles functions on envs, for a step in which a thread has one env."""
    return rule_values(options, ops) | {"functions": functions, "rng_streams": make_rng_streams(ops)}


def register_values() -> dict[str, Any]:
    """Returns values for `bind` of functions that make many steps in a row: the stream is read, and the start written, once."""
    return {"load_stream": load_first_key, "key": key_in_registers, "set_start": keep_start, "store_env": store_env_and_start}


def load_env(b: Batch, e: int) -> Any:
    """Returns (start, s, stream, p) of an env; `start` is the clock at which its episode began."""
    return ops.load(b.start, e, u32), functions.load_state(b, e), load_stream(b, e), functions.params(b, e)


def load_stream(b: Batch, e: int) -> RngStream:
    """Returns the shared stream, since in most warps some env draws a number; an env's own one is read when it draws."""
    return rng_streams.load_shared(b)


def key(b: Batch, e: int, stream: RngStream, start: int, t: int) -> Key:
    """Returns the key at step t of the episode that began at clock `start`."""
    return rng_streams.key(b, e, stream, start, t)


def load_nothing(b: Batch, e: int) -> RngStream:
    """As `load_stream`, for `key_read_late`."""
    return 0


def key_read_late(b: Batch, e: int, stream: RngStream, start: int, t: int) -> Key:
    """As `key`; reads the stream when a number is drawn."""
    return rng_streams.key(b, e, rng_streams.load_shared(b), start, t)


def load_first_key(b: Batch, e: int) -> RngStream:
    """As `load_stream`: the key at clock 0, whose `episode` is minus the stream's origin."""
    return rng_streams.key(b, e, rng_streams.load_shared(b), u32(0), i32(0))


def key_in_registers(b: Batch, e: int, stream: RngStream, start: int, t: int) -> Key:
    """As `key`, from the result of `load_first_key`."""
    return Key(stream.seed, stream.seed_high, stream.row, u32(start + stream.episode), i32(t))


def set_start(b: Batch, e: int, start: int) -> int:
    """Writes the new start of an env, which few envs have in a step, and returns it as uint32."""
    ops.store(b.start, e, u32(start), u32)
    return u32(start)


def store_env(b: Batch, e: int, start: int, s: EnvState) -> None:
    """Writes the state of an env, whose start `set_start` has written."""
    functions.store_state(b, e, s)


def keep_start(b: Batch, e: int, start: int) -> int:
    """As `set_start`, for a start that `store_env_and_start` writes."""
    return u32(start)


def store_env_and_start(b: Batch, e: int, start: int, s: EnvState) -> None:
    """Writes the state and the start of an env."""
    ops.store(b.start, e, start, u32)
    functions.store_state(b, e, s)


def new_state(b: Batch, episode_key: Key, p: EnvParams) -> EnvState:
    """Returns the first state of the episode with that key; the fields of the reset pool come from the pool."""
    return functions.replace_from_pool(b, functions.cast_state(functions.reset(episode_key, p)), episode_key)


def first_state(b: Batch, e: int, stream: RngStream, start: int, p: EnvParams) -> EnvState:
    """Returns the first state of the episode that begins at clock `start`."""
    return new_state(b, key(b, e, stream, start, i32(0)), p)


def store_final(b: Batch, out_index: int, ended: bool, obs: Row) -> None:
    """Writes row `out_index` of `final_mask`, and of `final_obs` if the episode ended; in SAME_STEP alone."""
    if same_step:
        ops.store_streaming(b.final_mask, out_index, ended, b1)
        # If one of two 16-byte rows in a 32-byte sector is needed, both are written: a sector that is written whole is not
        # read from memory first.
        if ops.any_in_sector(ended):
            ops.store_row_streaming(b.final_obs, out_index, obs)
