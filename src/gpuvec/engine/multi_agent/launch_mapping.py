"""How an environment of many agents is mapped to CUDA blocks, a function of its size (design/0011)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.layout.schema import MultiAgentSchema

# The numbers come from one sweep on an H200.
DIRECT_MAX_AGENTS, DIRECT_MAX_TOTAL = 16, 40_000  # agents of an env, and of all: up to both, features are stored directly
LARGE_ENV_AGENTS = 128  # an env with more agents gets more threads
STAGED_BYTES = 44 << 10  # of the 48 KB of shared memory that a block may have: for its state, and for its rows
TARGET_BLOCKS = 330  # that keep all multiprocessors of a large GPU busy
LARGE_ENV_THREADS = 256  # per block of a large env, where there are many blocks
LARGE_ENV_BLOCKS_PER_SM = 8
SECTOR_ROWS = 8  # rows of floats that together end where a sector of memory, 32 bytes, ends
CELL_LIST_MIN_AGENTS = 512  # of an env; a list of cells is then faster than a search that visits all agents
MAX_CELLS = 8192  # with more, the rounding of positions would exceed `cell_list.MARGIN`
MAX_AGENTS_PER_CELL = 32  # on average, beyond which a list of cells is of no use
CELL_SEARCH_THREADS = 256  # per block
ROW_TILE_BYTES = 28 << 10  # of shared memory for rows, in a kernel that does nothing else


class MultiAgentLaunch(NamedTuple):
    """The shape of the launches of a step or a reset, which are one kernel or, if `split`, two or three."""

    envs_per_block: int
    threads_per_block: int
    split: bool  # whether a second kernel searches, if there is a search, and a last one writes the observations
    stage_state: bool  # whether the state is in shared memory while the first kernel runs
    tile_rows: int = 0  # rows assembled in shared memory: all, or one per thread, or those of a block if split; 0 for none
    threads_per_row_block: int = 128  # of the third kernel, at least 4
    min_blocks_per_sm: int = 1  # of the first kernel, for which a multiprocessor should have registers
    threads_per_search_block: int = 128  # of the second kernel, at least 32
    search_blocks_per_env: int = 0  # of the second kernel, which searches by cells; 0 if it visits all agents
    stage_final_state: bool = False  # whether final observations are written from a copy while the next episode begins


CPU_LAUNCH = MultiAgentLaunch(envs_per_block=1, threads_per_block=1, split=False, stage_state=False)  # one thread runs one env


def count_cells(schema: MultiAgentSchema, list_bytes: int | None = None) -> int:
    """The number of cells for a search by cells.

    Args:
        schema: of the environment.
        list_bytes: the memory for the list of cells; None for any.

    Returns:
        About how many cells the list has; 0 if a search that visits all agents is the better one, or the only one.
    """
    (agents,), search = schema.agents_shape, schema.search
    if search is None or not search.position or agents < CELL_LIST_MIN_AGENTS:
        return 0
    max_neighbors = schema.array_fields[search.field].shape[1]
    capacity = MAX_CELLS if list_bytes is None else (list_bytes - 2 * agents) // 8
    count = min(MAX_CELLS, max(1, 2 * agents // max_neighbors), capacity)
    return count if count * MAX_AGENTS_PER_CELL >= agents else 0


def make_multi_agent_launch(schema: MultiAgentSchema, num_envs: int) -> MultiAgentLaunch:
    """The launches for an environment.

    Args:
        schema: of the environment.
        num_envs: E.
    """
    (agents,) = schema.agents_shape
    if agents <= DIRECT_MAX_AGENTS and agents * num_envs <= DIRECT_MAX_TOTAL:
        rows = agents * max(1, schema.observation.max_neighbors)
        envs = max(1, min(96 // rows, -(-num_envs // TARGET_BLOCKS)))
        return MultiAgentLaunch(envs, 96, split=False, stage_state=True, stage_final_state=True)
    threads = _threads_per_block(agents, num_envs)
    envs = max(1, threads // agents)
    state_bytes = _state_bytes(schema, envs)
    if schema.search is None and state_bytes + 4 * envs * agents * schema.num_features <= STAGED_BYTES:
        if agents <= LARGE_ENV_AGENTS:
            return MultiAgentLaunch(envs, threads, split=False, stage_state=True, tile_rows=envs * agents)
        if threads > LARGE_ENV_THREADS:
            return MultiAgentLaunch(envs, threads, split=False, stage_state=True)
        tile_rows = min(threads, agents) if schema.has_only_self_features else 0
        return MultiAgentLaunch(envs, threads, False, True, tile_rows, min_blocks_per_sm=LARGE_ENV_BLOCKS_PER_SM)
    rows = min(ROW_TILE_BYTES // (4 * schema.num_features), 64)
    blocks = max(1, TARGET_BLOCKS // num_envs) if count_cells(schema, STAGED_BYTES) else 0
    return MultiAgentLaunch(
        envs,
        threads,
        split=True,
        stage_state=state_bytes <= STAGED_BYTES,
        tile_rows=rows - rows % SECTOR_ROWS if rows > SECTOR_ROWS else rows,
        threads_per_search_block=CELL_SEARCH_THREADS if blocks else 128,
        search_blocks_per_env=blocks,
    )


def _threads_per_block(agents: int, num_envs: int) -> int:
    """Threads of a block of the first kernel: more for one large env where there are few of them."""
    if agents <= LARGE_ENV_AGENTS:
        return 128
    return LARGE_ENV_THREADS if num_envs > TARGET_BLOCKS else min(1024, -(-agents // 128) * 128)


def _state_bytes(schema: MultiAgentSchema, envs: int) -> int:
    """Bytes of the state and the actions of that many envs in shared memory."""
    fields = (b for name, b in schema.array_fields.items() if name not in schema.search_fields)
    state = sum(int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize for b in fields)
    return int(envs * (state + 4 * schema.agents_shape[0] * max(1, schema.action.components)))
