"""How a game of many agents is laid over a GPU: one function of its size, from one sweep on an H200 (design/0011)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.neighbors.metric import Metric, metric

SMALL, FEW = 16, 40_000  # agents of an env, and of all envs, up to which features go straight to their places
LARGE = 128  # agents of an env, from which on it is walked by more threads
STAGED_BYTES = 44 << 10  # of shared memory, of which a block may have 48 KB, for its state, and for its rows
BLOCKS = 330  # that keep all multiprocessors of a large GPU busy
SHARED_BY = 256  # threads that share one, where there are many
RESIDENT = 8  # blocks of a large game that a multiprocessor has at a time
SECTOR_ROWS = 8  # rows of floats that together end where a sector of memory, 32 bytes, ends
CROWDED = 512  # agents of an env, from which on a list of cells finds neighbours sooner than a walk over all
CELLS = 8192  # at most; more would take more than `cells.MARGIN` for the rounding of places
CROWDED_CELL = 32  # agents in a cell on average, beyond which the list is of no use
SEEKERS = 256  # threads per block that searches by cells
TILE_BYTES = 28 << 10  # of shared memory for rows of a kernel that does nothing else


class MultiAgentLaunch(NamedTuple):
    """The shape of the launches."""

    envs: int  # per block
    threads: int  # per block
    split: bool  # whether a second kernel searches and a third writes the observations
    stage: bool  # whether the state is in shared memory while the first runs
    tile: int = 0  # rows put together in shared memory, if not split all or one of each thread; 0: they go straight
    writers: int = 128  # threads per block of the second and third, at least 4
    resident: int = 1  # blocks of the first that a multiprocessor should have registers for
    seekers: int = 128  # threads per block of the second, at least 32
    parts: int = 0  # blocks per env of the second, which search by cells; 0: they walk over all agents
    aside: bool = False  # whether last observations that need no search are written while the next episode begins, from a copy


ONE_BY_ONE = MultiAgentLaunch(envs=1, threads=1, split=False, stage=False)  # of a CPU


def cells(schema: MultiAgentSchema, room: int | None = None) -> tuple[Metric, int] | None:
    """By what and in how many cells neighbours are searched for; None if by a walk over all. `room`: bytes for the list."""
    (agents,), look = schema.agents_shape, schema.search
    if look is None or agents < CROWDED:
        return None
    known = metric(author_function(look.distance), (*schema.array_fields, *schema.scalar_fields))
    if known is None or any(
        schema.array_fields.get(field) != Buffer(np.float32, schema.agents_shape) for field in known.fields
    ):
        return None
    places = schema.array_fields[look.field].shape[1]
    count = min(CELLS, max(1, 2 * agents // places), CELLS if room is None else (room - 2 * agents) // 8)
    return (known, count) if count * CROWDED_CELL >= agents else None


def make_multi_agent_launch(schema: MultiAgentSchema, num_envs: int) -> MultiAgentLaunch:
    """The one for `num_envs` games."""
    (agents,) = schema.agents_shape
    if agents <= SMALL and agents * num_envs <= FEW:
        slots = agents * max(1, schema.observation.max_neighbors)
        envs = max(1, min(96 // slots, -(-num_envs // BLOCKS)))
        return MultiAgentLaunch(envs, threads=96, split=False, stage=True, aside=True)
    threads = 128 if agents <= LARGE else SHARED_BY if num_envs > BLOCKS else min(1024, -(-agents // 128) * 128)
    envs = max(1, threads // agents)
    state = envs * sum(
        int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize
        for k, b in schema.array_fields.items()
        if k not in schema.search_fields
    )
    state += 4 * envs * agents * max(1, schema.action.components)
    if schema.search is None and state + 4 * envs * agents * schema.num_features <= STAGED_BYTES:
        if agents > LARGE:
            if threads > SHARED_BY:
                return MultiAgentLaunch(envs, threads, split=False, stage=True)
            tile = min(threads, agents) if schema.has_only_self_features else 0
            return MultiAgentLaunch(envs, threads, split=False, stage=True, tile=tile, resident=RESIDENT)
        return MultiAgentLaunch(envs, threads, split=False, stage=True, tile=envs * agents)
    rows = min(TILE_BYTES // (4 * schema.num_features), 64)
    tile = rows - rows % SECTOR_ROWS if rows > SECTOR_ROWS else rows
    parts = max(1, BLOCKS // num_envs) if cells(schema, STAGED_BYTES) else 0
    seekers = SEEKERS if parts else 128
    return MultiAgentLaunch(envs, threads, True, state <= STAGED_BYTES, tile, seekers=seekers, parts=parts)
