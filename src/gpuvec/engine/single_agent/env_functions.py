"""The author's functions, and access to state, parameters and actions, compiled for one env."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gpuvec.engine.compiler.dtypes import f32
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Row
from gpuvec.engine.layout.action_access import make_action_reader
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.engine.single_agent.field_access import make_pool_reader, make_state_access, make_state_cast
from gpuvec.random import Key
from gpuvec.spec import SingleAgentEnv


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


def make_env_functions(spec: KernelSpec, ops: MemoryOps) -> EnvFunctions:
    """Compiles the functions of an environment.

    Args:
        spec: what the kernels are compiled from.
        ops: the operations on buffers.
    """
    env, options, schema = spec.env, spec.options, spec.schema
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
