"""The mapping of multi-agent environments to blocks and threads stays within the limits of a GPU at every size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.multi_agent.context import cpu_shared_counters
from gpuvec.engine.multi_agent.launch_mapping import make_multi_agent_launch
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.registration import registered_envs
from gpuvec.vector.env_params import apply_params
from gpuvec_envs import breakout, tag_continuous, tag_grid_world

MAX_SHARED_BYTES = 48 << 10  # per block, without opting in to more


def shared_bytes(env, launch_config):
    """The shared memory of a block in bytes."""
    operations = cpu_memory_ops(), cpu_array_ops(), cpu_shared_counters()
    program = make_program(make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, 100)), *operations, launch_config)
    array_groups = [program.arrays] + ([program.search.arrays] if program.search else [])
    return max(sum(math.prod(dims) * np.dtype(dtype).itemsize for dtype, dims in arrays.values()) for arrays in array_groups)


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 10**6),
    runners=st.integers(1, 3000),
    max_neighbors=st.none() | st.integers(1, 20),
    grid=st.booleans(),
)
@example(num_envs=2000, runners=1023, max_neighbors=10, grid=False)  # The positions of the search occupy 40 KB.
@example(num_envs=50, runners=9999, max_neighbors=10, grid=False)
@example(num_envs=2, runners=19_999, max_neighbors=1, grid=False)
@example(num_envs=2, runners=59_999, max_neighbors=5, grid=False)
def test_block_stays_within_the_limits(num_envs, runners, max_neighbors, grid):
    if grid:
        params = {"num_taggers": runners, "use_full_observation": max_neighbors is None}
        env = apply_params(tag_grid_world.ENV, params, (), 1)[0]
    elif max_neighbors is None or max_neighbors >= runners:
        env = apply_params(tag_continuous.ENV, {"num_runners": runners}, (), 1)[0]
    else:
        params = {"num_runners": runners, "use_full_observation": False, "num_other_agents_observed": max_neighbors}
        env = apply_params(tag_continuous.ENV, params, (), 1)[0]
    schema = make_schema(env)
    config = make_multi_agent_launch(schema, num_envs)
    assert 1 <= config.envs_per_block <= config.threads_per_block <= 1024
    assert config.threads_per_block % 32 == config.threads_per_row_block % 32 == config.threads_per_search_block % 32 == 0
    assert shared_bytes(env, config) <= MAX_SHARED_BYTES
    if config.split:
        assert 4 * (config.tile_rows * schema.num_features + 8) <= MAX_SHARED_BYTES
    elif config.tile_rows:
        (num_agents,) = schema.agents_shape
        has_row_per_thread = schema.has_only_self_features and config.tile_rows == config.threads_per_block < num_agents
        assert config.tile_rows == config.envs_per_block * num_agents or has_row_per_thread


@pytest.mark.parametrize(
    ("params", "num_envs", "split", "tile"),
    [
        ({"num_runners": 4}, 2000, False, False),
        ({"num_runners": 4}, 65_536, False, True),
        ({"num_runners": 104}, 2000, True, True),
        ({"num_runners": 109, "use_full_observation": False, "num_other_agents_observed": 10}, 2000, True, True),
        ({"num_runners": 9999}, 50, True, False),  # an observation of 280 KB
    ],
)
def test_sizes_choose_split_and_tiled_kernels(params, num_envs, split, tile):
    config = make_multi_agent_launch(make_schema(apply_params(tag_continuous.ENV, params, (), 1)[0]), num_envs)
    assert (config.split, config.tile_rows > 0) == (split, tile)


@pytest.mark.parametrize(
    ("agents", "num_envs", "blocks"),
    [(110, 2000, 0), (511, 500, 0), (512, 500, 1), (10_000, 50, 6), (20_000, 1, 330), (40_000, 50, 0)],
)
def test_many_agents_are_searched_by_cell_list(agents, num_envs, blocks):
    """Beyond the capacity of shared memory, the search compares all pairs."""
    params = {"num_runners": agents - 1, "use_full_observation": False, "num_other_agents_observed": 10}
    schema = make_schema(apply_params(tag_continuous.ENV, params, (), 1)[0])
    assert make_multi_agent_launch(schema, num_envs).search_blocks_per_env == blocks


@pytest.mark.parametrize(("num_envs", "envs_per_block"), [(1, 1), (331, 2), (4096, 16), (65_536, 128)])
def test_a_few_envs_with_images_are_distributed_over_all_multiprocessors(num_envs, envs_per_block):
    assert make_multi_agent_launch(make_schema(breakout.ENV), num_envs).envs_per_block == envs_per_block


@pytest.mark.parametrize(
    ("name", "params", "envs", "threads"),
    [
        ("Breakout-v0", {}, 128, 256),
        ("ConnectFour-v0", {}, 128, 256),
        ("EpidemicEconomy-v0", {}, 4, 256),
        ("Predators-v0", {}, 2, 256),
        # Three worlds would fit into shared memory, but their fields of 729 bytes would be copied byte by byte.
        ("RICE-N-v0", {}, 2, 256),
        ("RICE-N-v0", {"negotiation": True}, 2, 256),
        ("SimpleSpeakerListener-v0", {}, 128, 256),
        ("SimpleSpread-v0", {}, 42, 128),
        ("TagContinuous-v0", {}, 11, 128),
        ("TagGridWorld-v0", {}, 11, 128),
    ],
)
def test_blocks_of_bundled_environments(name, params, envs, threads):
    env = apply_params(registered_envs("gpuvec")[name], params, (), 1)[0]
    config = make_multi_agent_launch(make_schema(env), 65_536)
    assert (config.envs_per_block, config.threads_per_block) == (envs, threads)
