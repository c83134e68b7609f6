"""Functions of the elements of fields of index sets other than the agents: they save final values, and read the reset pool.

Letters: e an env, k its index in the block, c the number of an element of a field.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.engine.layout.schema import PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import POOL_ROW, StateAccess
from gpuvec.random import randint


def save_final_segments(ctx: MultiAgentContext, access: StateAccess, condition: DeviceFunction) -> list[Segment]:
    """Compiles the segments that save the last values of an episode for the kernel that writes final observations.

    Args:
        ctx: the context.
        access: access to the state.
        condition: `condition(w, k)` -> whether the episode of env k of the block ended.
    """
    if not (ctx.launch.split and ctx.same_step):
        return []
    segments = []
    for field, buffer in access.layout.set_fields.items():
        size = math.prod(buffer.shape)
        in_buffer, is_staged = f"load(b.state_{field}, e * {size} + c, t)", ctx.launch.stage_state
        element = _element_source(access, field, buffer) if is_staged else in_buffer
        source = "def save(b, w, e, k, c, clock):\n"
        source += f"    if condition(w, k): store(b.final_state_{field}, e * {size} + c, {element}, t)\n"
        scope = {"load": ctx.ops.load, "store": ctx.ops.store, "t": buffer.dtype, "condition": condition}
        save = inline_function(generate_function("save", source, **scope))
        segments.append(Segment(AGENTS, save, barrier=False, num_elements=size))
    return segments


def pool_element(ctx: MultiAgentContext, access: StateAccess, field: str) -> DeviceFunction:
    """Compiles `set_from_pool(b, w, e, k, c, key, p)`: sets element c of a field from a random state of the reset pool.

    Args:
        ctx: the context.
        access: access to the state.
        field: the name of the field.
    """
    buffer = access.layout.set_fields[field]
    size = math.prod(buffer.shape)
    if ctx.launch.stage_state:
        write = f"{_element_source(access, field, buffer)} = value"
    else:
        write = f"store(b.state_{field}, e * {size} + c, value, t)"
    lines = [f"value = load(b.pool_{field}, q * {size} + c, t)", write]
    return _set_from_pool(ctx, lines, store=ctx.ops.store, t=buffer.dtype)


def pool_scalars(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction | None:
    """Compiles `set_from_pool(b, w, e, k, c, key, p)`: sets the scalars that the reset pool holds, from a random state of it.

    It is None if the pool holds none. `key` is the key of a reset, so that all fields come from one state.

    Args:
        ctx: the context.
        access: access to the state.
    """
    scalars = {name: dtype for name, dtype in ctx.schema.stored_scalars.items() if name in ctx.options.pool}
    if not scalars:
        return None
    columns = access.layout.scalar_columns
    lines = [f"{columns[name].format('k')} = load(b.pool_{name}, q, t_{name})" for name in scalars]
    return _set_from_pool(ctx, lines, **{f"t_{name}": dtype for name, dtype in scalars.items()})


def _set_from_pool(ctx: MultiAgentContext, lines: list[str], **scope: Any) -> DeviceFunction:
    """`set_from_pool(b, w, e, k, c, key, p)`, which runs lines for a random row `q` of the reset pool."""
    source = f"def set_from_pool(b, w, e, k, c, key, p):\n    q = {POOL_ROW}\n" + "".join(f"    {line}\n" for line in lines)
    scope |= {"randint": device_function(randint), "POOL_DRAW": POOL_DRAW, "load": ctx.ops.load, "i32": np.int32}
    return inline_function(generate_function("set_from_pool", source, **scope))


def _element_source(access: StateAccess, field: str, buffer: Buffer) -> str:
    """The source of element c of a field in shared memory."""
    return f"w.{PACKED_BUFFERS[buffer.dtype]}[{access.layout.offsets[field]} + k * {math.prod(buffer.shape)} + c]"
