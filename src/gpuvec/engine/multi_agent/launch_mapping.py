"""The mapping of an environment of many agents to CUDA blocks, which depends on its size (design/0011)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpuvec.engine.layout.buffers import max_word_bytes
from gpuvec.engine.layout.schema import MultiAgentSchema

# The numbers are from a sweep on an H200.
# Agents of an env, and of all envs, up to which features are stored directly.
DIRECT_MAX_AGENTS, DIRECT_MAX_TOTAL = 16, 40_000
LARGE_ENV_AGENTS = 128  # an env with more agents gets more threads
STAGED_BYTES = 44 << 10  # for states and rows, of the 48 KB of shared memory that a block may have
TARGET_BLOCKS = 330  # enough blocks for all multiprocessors of a large GPU
LARGE_ENV_THREADS = 256  # per block of a large env, if there are many blocks
LARGE_ENV_BLOCKS_PER_SM = 8
SECTOR_ROWS = 8  # The size of so many rows of floats is a multiple of 32 bytes, a sector of memory.
# Agents of an env from which on a list of cells is faster than a search that visits all agents.
CELL_LIST_MIN_AGENTS = 512
MAX_CELLS = 8192  # With more cells, the rounding of positions would exceed `cell_list.MARGIN`.
MAX_AGENTS_PER_CELL = 32  # With more agents per cell on average, a list of cells is not faster.
CELL_SEARCH_THREADS = 256  # per block
IMAGE_THREADS, IMAGE_MAX_ENVS = 256, 128  # per block, if observations are images
IMAGE_BLOCKS_PER_SM = 4  # so that a thread has at most 64 registers
ROW_TILE_BYTES = 28 << 10  # of shared memory for rows, in the kernel that only writes observations


class MultiAgentLaunch(NamedTuple):
    """The shape of the launches of a step or a reset: one kernel or, if `split`, two or three."""

    envs_per_block: int
    threads_per_block: int
    split: bool  # whether a second kernel searches for neighbors, if there is a search, and a third writes the observations
    stage_state: bool  # whether the first kernel keeps the state in shared memory
    # The rows of observations in shared memory: those of all agents or one for each thread; those of a block if `split`; or 0.
    tile_rows: int = 0
    threads_per_row_block: int = 128  # of the third kernel, at least 4
    min_blocks_per_sm: int = 1  # of the first kernel; its registers are limited to fit so many blocks
    threads_per_search_block: int = 128  # of the second kernel, at least 32
    search_blocks_per_env: int = 0  # of the second kernel if it searches by cells; 0 if it visits all agents
    stage_final_state: bool = False  # whether final observations are written from a copy while the next episode begins


# One thread runs one env.
CPU_LAUNCH = MultiAgentLaunch(envs_per_block=1, threads_per_block=1, split=False, stage_state=False)


def count_cells(schema: MultiAgentSchema, list_bytes: int | None = None) -> int:
    """Returns the approximate number of cells of a list, or 0 if the search should visit all agents.

    Args:
        schema: the schema of the environment.
        list_bytes: the memory for the list; None if it is not limited.
    """
    if schema.search is None or not schema.search.position or schema.num_agents < CELL_LIST_MIN_AGENTS:
        return 0
    max_neighbors = schema.array_fields[schema.search.field].shape[1]
    capacity = MAX_CELLS if list_bytes is None else (list_bytes - 2 * schema.num_agents) // 8
    count = min(MAX_CELLS, max(1, 2 * schema.num_agents // max_neighbors), capacity)
    return count if count * MAX_AGENTS_PER_CELL >= schema.num_agents else 0


def make_multi_agent_launch(schema: MultiAgentSchema, num_envs: int) -> MultiAgentLaunch:
    """Returns the shape of the launches for an environment.

    Args:
        schema: the schema of the environment.
        num_envs: E.
    """
    agents = schema.num_agents
    if not schema.has_tile_rows:
        return _launch_without_tiles(schema, num_envs)
    if agents <= DIRECT_MAX_AGENTS and agents * num_envs <= DIRECT_MAX_TOTAL:
        rows = agents * max(1, schema.observation.max_neighbors)
        envs = max(1, min(96 // rows, -(-num_envs // TARGET_BLOCKS)))
        return MultiAgentLaunch(envs, 96, split=False, stage_state=True, stage_final_state=True)
    threads = _threads_per_block(_elements_per_env(schema), num_envs)
    envs = _envs_per_block(schema, threads)
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


def _launch_without_tiles(schema: MultiAgentSchema, num_envs: int) -> MultiAgentLaunch:
    """The launches for images, blocks and spaces by role: more threads than envs, as a thread computes few of their items."""
    # With few envs all multiprocessors get blocks. A power of two, so that most numbers of envs have the same kernels.
    envs_of_target = 1 << (-(-num_envs // TARGET_BLOCKS) - 1).bit_length()
    envs = min(IMAGE_MAX_ENVS, _envs_per_block(schema, IMAGE_THREADS), envs_of_target)
    stage_state = _state_bytes(schema, envs) <= STAGED_BYTES
    split = schema.search is not None or not stage_state
    # An env whose state does not fit into shared memory has many elements.
    threads = IMAGE_THREADS if stage_state else max(IMAGE_THREADS, _threads_per_block(_elements_per_env(schema), num_envs))
    blocks = IMAGE_BLOCKS_PER_SM if threads == IMAGE_THREADS else 1
    return MultiAgentLaunch(
        envs, threads, split, stage_state, threads_per_row_block=IMAGE_THREADS, min_blocks_per_sm=blocks
    )  # fmt: skip


def _elements_per_env(schema: MultiAgentSchema) -> int:
    """The number of agents, or of elements of the largest set with a field, whose work a block shares."""
    return max([schema.num_agents, *(int(np.prod(schema.sets[schema.field_sets[k]])) for k in schema.set_fields)])


def _envs_per_block(schema: MultiAgentSchema, threads: int) -> int:
    """The envs of a block: as many as have an agent for each thread, or as shared memory and copies of fields of sets allow."""
    envs = max(1, threads // schema.num_agents)
    if not schema.role_schemas and schema.action.is_long:
        envs = min(envs, max(1, STAGED_BYTES // (4 * schema.num_agents * schema.action.components)))
    if not schema.set_fields:
        return envs
    max_staged_envs = max(1, STAGED_BYTES // _state_bytes(schema, 1))
    if envs <= max_staged_envs:
        return envs
    # Fewer envs are better if their words are larger by more than the envs are fewer: two envs of 729 bytes are 729 words of
    # two bytes, and three are 2,187 words of one byte.
    sizes = [math.prod(b.shape) * np.dtype(b.dtype).itemsize for b in schema.set_fields.values()]
    return min(range(max_staged_envs, 0, -1), key=lambda count: sum(n / max_word_bytes(count * n) for n in sizes) / count)


def _threads_per_block(elements: int, num_envs: int) -> int:
    """The threads of a block of the first kernel: a large env has more, and most if there are few envs."""
    if elements <= LARGE_ENV_AGENTS:
        return 128
    return LARGE_ENV_THREADS if num_envs > TARGET_BLOCKS else min(1024, -(-elements // 128) * 128)


def _state_bytes(schema: MultiAgentSchema, envs: int) -> int:
    """The bytes of the states and the actions of so many `envs` in shared memory."""
    fields = (b for name, b in schema.array_fields.items() if name not in schema.search_fields)
    state = sum(int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize for b in fields)
    actions = 0 if schema.role_schemas else 4 * schema.num_agents * max(1, schema.action.components)
    return int(envs * (state + actions))
