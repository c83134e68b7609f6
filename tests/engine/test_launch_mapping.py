"""How games are laid over a GPU: what a launch can hold, for any size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.multi_agent.launch_mapping import make_multi_agent_launch
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.engine.multi_agent.shared_counters import cpu_shared_counters
from gpuvec.vector.env_params import apply_params
from gpuvec_envs import tag_continuous, tag_grid_world

SHARED = 48 << 10  # bytes that a block may have without asking for more


def shared_bytes(env, shape):
    program = make_program(
        env, KernelOptions(AutoresetMode.SAME_STEP, 100), cpu_memory_ops(), cpu_array_ops(), cpu_shared_counters(), shape
    )
    held = [program.arrays] + ([program.search.arrays] if program.search else [])
    return max(sum(math.prod(dims) * np.dtype(dtype).itemsize for dtype, dims in arrays.values()) for arrays in held)


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 10**6),
    runners=st.integers(1, 3000),
    seen=st.none() | st.integers(1, 20),
    grid=st.booleans(),
)
@example(num_envs=2000, runners=1023, seen=10, grid=False)  # the places of its search have 40 KB
@example(num_envs=50, runners=9999, seen=10, grid=False)
@example(num_envs=2, runners=19_999, seen=1, grid=False)
@example(num_envs=2, runners=59_999, seen=5, grid=False)
def test_a_block_fits(num_envs, runners, seen, grid):
    if grid:
        env = apply_params(tag_grid_world.ENV, {"num_taggers": runners, "use_full_observation": seen is None}, (), 1)[0]
    elif seen is None or seen >= runners:
        env = apply_params(tag_continuous.ENV, {"num_runners": runners}, (), 1)[0]
    else:
        few = {"use_full_observation": False, "num_other_agents_observed": seen}
        env = apply_params(tag_continuous.ENV, {"num_runners": runners, **few}, (), 1)[0]
    crowd = make_schema(env)
    shape = make_multi_agent_launch(crowd, num_envs)
    assert 1 <= shape.envs_per_block <= shape.threads_per_block <= 1024
    assert shape.threads_per_block % 32 == shape.threads_per_row_block % 32 == shape.threads_per_search_block % 32 == 0
    assert shared_bytes(env, shape) <= SHARED
    if shape.split:
        assert 4 * (shape.tile_rows * crowd.num_features + 8) <= SHARED
    elif shape.tile_rows:
        rounds = crowd.has_only_self_features and shape.tile_rows == shape.threads_per_block < crowd.agents_shape[0]
        assert shape.tile_rows == shape.envs_per_block * crowd.agents_shape[0] or rounds


@pytest.mark.parametrize(
    ("params", "num_envs", "split", "boxed"),
    [
        ({"num_runners": 4}, 2000, False, False),
        ({"num_runners": 4}, 65_536, False, True),
        ({"num_runners": 104}, 2000, True, True),
        ({"num_runners": 109, "use_full_observation": False, "num_other_agents_observed": 10}, 2000, True, True),
        ({"num_runners": 9999}, 50, True, False),  # a row of 280 KB
    ],
)
def test_sizes_choose_the_kernels(params, num_envs, split, boxed):
    shape = make_multi_agent_launch(make_schema(apply_params(tag_continuous.ENV, params, (), 1)[0]), num_envs)
    assert (shape.split, shape.tile_rows > 0) == (split, boxed)


@pytest.mark.parametrize(
    ("agents", "num_envs", "blocks"),
    [(110, 2000, 0), (511, 500, 0), (512, 500, 1), (10_000, 50, 6), (20_000, 1, 330), (40_000, 50, 0)],
)
def test_crowds_are_searched_by_cells(agents, num_envs, blocks):
    """Up to what shared memory holds."""
    few = {"num_runners": agents - 1, "use_full_observation": False, "num_other_agents_observed": 10}
    schema = make_schema(apply_params(tag_continuous.ENV, few, (), 1)[0])
    assert make_multi_agent_launch(schema, num_envs).search_blocks_per_env == blocks
