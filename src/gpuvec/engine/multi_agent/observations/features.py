"""The features of an agent's row: the author's functions, and how a row's parts are stored.

Letters: A agents per env, D features of a row, M neighbors, e an env, k its place in the block, i an agent, j a neighbor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Features, Work
from gpuvec.engine.layout.schema import MultiAgentSchema, feature_widths
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME
from gpuvec.spec import Time

f32, i32 = np.float32, np.int32


class ObservationFeatures(NamedTuple):
    """The sizes of a row, and the functions for its parts."""

    num_features: int  # D
    num_neighbors: int  # M; 0 if a neighbor has no features
    own_width: int  # an agent's own features, at the end of a row
    episode_time: DeviceFunction  # episode_time(t) -> Time
    self_features: DeviceFunction  # the author's self_features(i, s, t, p)
    other_features: DeviceFunction  # the author's other_features(i, j, s, t, p)
    own_features: DeviceFunction  # own_features(b, w, e, place, i) -> agent i's own features; its state is in that place
    store_own: DeviceFunction  # store_own(out, r, values): own features to the end of row r of buffer `out`


def make_observation_features(ctx: MultiAgentContext, access: StateAccess) -> ObservationFeatures:
    """The features for a context `ctx` whose state is reached by `access`."""
    other_width, own_width = feature_widths(ctx.env, ctx.schema)
    limit, params, state = ctx.step_limit, ctx.params, access.state
    self_features = device_function(ctx.schema.observation.self_features)

    @inline_function
    def episode_time(t: int) -> Time:
        return Time(i32(t), limit)  # type: ignore[arg-type]  # int32 in compiled code

    @inline_function
    def own_features(b: Batch, w: Work, e: int, place: int, i: int) -> Any:
        return self_features(i, state(b, w, e, place), episode_time(w.status[place, TIME]), params(b, e))

    return ObservationFeatures(
        num_features=ctx.schema.num_features,
        num_neighbors=ctx.schema.observation.max_neighbors if other_width else 0,
        own_width=own_width,
        episode_time=episode_time,
        self_features=self_features,
        other_features=_other_features(ctx.schema),
        own_features=own_features,
        store_own=_store_own(ctx, own_width),
    )


def _store_own(ctx: MultiAgentContext, own_width: int) -> DeviceFunction:
    """The function that stores own features; a row that has no others is stored in pieces as wide as it is aligned."""
    D, is_whole_row, like = ctx.schema.num_features, ctx.schema.has_only_self_features, row_of(f32, own_width)
    scatter_strided, store_row_streaming, to_floats = (
        ctx.array_ops.scatter_strided,
        ctx.ops.store_row_streaming,
        ctx.ops.to_floats,
    )

    @inline_function
    def store_own(out: int, r: int, values: Features) -> None:
        if not is_whole_row:
            scatter_strided(out, (r + 1) * D - own_width, 1, values)
        else:
            store_row_streaming(out, r, to_floats(values, like))

    return store_own


def _other_features(schema: MultiAgentSchema) -> DeviceFunction:
    """The author's function for a neighbor, or one that is never called."""
    if schema.observation.other_features is not None:
        return device_function(schema.observation.other_features)

    @inline_function
    def no_features(i: int, j: int, s: EnvState, t: Time, p: EnvParams) -> Features:
        return (f32(0.0),)

    return no_features
