"""The features of an observation: the author's functions, and the function that stores an agent's own features.

Letters: D features of a row, M neighbors, e an env, i an agent, j a neighbor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Features, Work
from gpuvec.engine.layout.observation_widths import block_widths, feature_widths
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME
from gpuvec.observations import Time

f32, i32 = np.float32, np.int32


class ObservationFeatures(NamedTuple):
    """The sizes of the parts of a row, and the compiled functions for them."""

    num_features: int  # D
    num_neighbors: int  # M; 0 if a neighbor has no features
    num_self_features: int  # number of an agent's own features, at the end of a row
    block_widths: tuple[int, ...]  # the number of features of an element in each block
    episode_time: DeviceFunction  # episode_time(t) -> Time
    self_features: DeviceFunction  # the author's self_features(i, s, t, p)
    other_features: DeviceFunction  # the author's other_features(i, j, s, t, p)
    # compute_self_features(b, w, e, state_index, i) -> agent i's own features, from the state at that index of the work
    compute_self_features: DeviceFunction
    # store_self_features(out, r, values): stores own features at the end of row r of buffer `out`
    store_self_features: DeviceFunction


def make_observation_features(ctx: MultiAgentContext, access: StateAccess) -> ObservationFeatures:
    """Compiles the features for a context `ctx`, whose state `access` reads."""
    other_width, num_self_features = feature_widths(ctx.env, ctx.schema)
    limit, params, state = ctx.step_limit, ctx.params, access.state
    self_features = _self_features(ctx.schema)

    @inline_function
    def episode_time(t: int) -> Time:
        return Time(i32(t), limit)  # type: ignore[arg-type]  # int32 in compiled code

    @inline_function
    def compute_self_features(b: Batch, w: Work, e: int, state_index: int, i: int) -> Any:
        return self_features(i, state(b, w, e, state_index), episode_time(w.status[state_index, TIME]), params(b, e))

    return ObservationFeatures(
        num_features=ctx.schema.num_features,
        num_neighbors=ctx.schema.observation.max_neighbors if other_width else 0,
        num_self_features=num_self_features,
        block_widths=block_widths(ctx.env, ctx.schema),
        episode_time=episode_time,
        self_features=self_features,
        other_features=_other_features(ctx.schema),
        compute_self_features=compute_self_features,
        store_self_features=_make_store_self_features(ctx, num_self_features),
    )


def _make_store_self_features(ctx: MultiAgentContext, num_self_features: int) -> DeviceFunction:
    """`store_self_features` as in `ObservationFeatures`. A row without other features is stored with the widest stores."""
    D, is_whole_row, like = ctx.schema.num_features, ctx.schema.has_only_self_features, row_of(f32, num_self_features)
    scatter_strided, store_row_streaming = ctx.array_ops.scatter_strided, ctx.ops.store_row_streaming
    to_floats = ctx.ops.to_floats

    @inline_function
    def store_self_features(out: int, r: int, values: Features) -> None:
        if not is_whole_row:
            scatter_strided(out, (r + 1) * D - num_self_features, 1, values)
        else:
            store_row_streaming(out, r, to_floats(values, like))

    return store_self_features


def _self_features(schema: MultiAgentSchema) -> DeviceFunction:
    """The author's function for an agent itself, or one that is never called if observations are images."""
    if schema.observation.self_features is not None:
        return device_function(schema.observation.self_features)

    @inline_function
    def no_features(i: int, s: EnvState, t: Time, p: EnvParams) -> Features:
        return ()

    return no_features


def _other_features(schema: MultiAgentSchema) -> DeviceFunction:
    """The author's function for a neighbor, or one that is never called if there is none."""
    if schema.observation.other_features is not None:
        return device_function(schema.observation.other_features)

    @inline_function
    def no_features(i: int, j: int, s: EnvState, t: Time, p: EnvParams) -> Features:
        return (f32(0.0),)

    return no_features
