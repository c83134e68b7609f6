"""The search for nearest agents equals a stable sort of all distances, with and without a cell list, at any positions."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.support import street_env
from tests.support.arrays import host, on_device
from tests.support.street_env import STREET

from gpuvec import Bools, Floats, Ints, MultiAgentEnv, NearestNeighbors, Observation, VectorEnv, randint
from gpuvec.engine.compiler.array_ops import bitonic_merge_pairs, merge_exchange_pairs
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.multi_agent import launch_mapping
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.errors import AuthoringError
from gpuvec.vector.env_params import apply_params

INF = math.inf
GRID_SPACING = 1 / 64  # Coordinates are multiples of it below 16, so squared distances are exact in float32.


class PointState(NamedTuple):
    x: Floats
    y: Floats
    is_hidden: Bools  # neither searches nor is observed
    neighbors: Annotated[Ints, "agents", "max_neighbors", NearestNeighbors]


class Params(NamedTuple):
    num_agents: int = 20
    max_neighbors: int = 3


def reset(i, s, key, p):
    s.x[i] = np.float32(randint(key, 3 * i, 0, 1024)) * GRID_SPACING
    s.y[i] = np.float32(randint(key, 3 * i + 1, 0, 1024)) * GRID_SPACING
    s.is_hidden[i] = randint(key, 3 * i + 2, 0, 8) == 0


def keep_position(i, s, action, key, p):
    s.x[i] = s.x[i]


def distance(i, j, s, p):
    return (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2 if i != j and not s.is_hidden[j] else INF


def is_searching(i, s, p):
    return not s.is_hidden[i]


def negative_distance(i, j, s, p):
    return -((s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2) if i != j and not s.is_hidden[j] else INF


def other_features(i, slot, s, t, p):
    return (np.float32(s.neighbors[i, slot]),)


def distance_along_x(i, j, s, p):
    return abs(s.x[i] - s.x[j]) if i != j and not s.is_hidden[j] else INF


def chebyshev_distance_squared(i, j, s, p):
    return max((s.x[i] - s.x[j]) ** 2, (s.y[i] - s.y[j]) ** 2) if i != j and not s.is_hidden[j] else INF


def weighted_distance(i, j, s, p):
    return (s.x[i] - s.x[j]) ** 2 + 4.0 * (s.y[i] - s.y[j]) ** 2 if i != j else INF


def observation(distance, position=(), squared=None):
    search = NearestNeighbors("neighbors", distance, is_searching, position, squared)
    return lambda p: Observation(lambda i, s, t, p: (s.x[i],), other_features, p.max_neighbors, search)


POINTS = MultiAgentEnv(
    state=PointState,
    params=Params(),
    spaces=lambda p: (Box(-1.0, INF, (p.max_neighbors + 1,)), Discrete(2)),
    agents=lambda p: p.num_agents,
    reset=reset,
    phases=(keep_position,),
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    observation=observation(distance, ("x", "y"), squared=True),
    structural=("num_agents", "max_neighbors"),
    max_episode_steps=1,
)


FARTHEST = dataclasses.replace(POINTS, observation=observation(negative_distance))


def expected_neighbors(x, y, is_hidden, max_neighbors, sign=1):
    """(rows, max_neighbors): the nearest agents of some agents, or with sign -1 the farthest; -1 where there is none."""
    rows = compared_agents(len(x))
    with np.errstate(all="ignore"):
        distances = sign * ((x[rows, None] - x) ** 2 + (y[rows, None] - y) ** 2)
    distances[:, is_hidden] = distances[np.isnan(distances)] = INF
    distances[np.arange(len(rows)), rows] = INF
    order = np.argsort(distances, axis=1, kind="stable")[:, :max_neighbors]
    return np.where(np.isinf(np.take_along_axis(distances, order, 1)) | is_hidden[rows, None], -1, order)


def compared_agents(count):
    """The agents whose neighbors are compared: all, or some hundreds."""
    return np.arange(0, count, max(1, count // 500))


def scattered(rng, count):
    return rng.integers(0, 1024, (2, count)).astype(np.float32) * np.float32(GRID_SPACING)


def scattered_and_nonfinite(rng, count):
    positions = scattered(rng, count)
    positions[rng.integers(0, 2, count // 3), rng.integers(0, count, count // 3)] = rng.choice([np.nan, INF, -INF], count // 3)
    return positions


POSITIONS: dict[str, Any] = {
    "scattered": scattered,
    "on integers": lambda rng, count: rng.integers(0, 5, (2, count)),
    "at one point": lambda rng, count: np.full((2, count), 3.25),
    "at two points": lambda rng, count: np.full((2, count), 1e6) * rng.integers(0, 2, count),
    "on a line": lambda rng, count: scattered(rng, count) * [[0.0], [1.0]],
    "on a diagonal": lambda rng, count: scattered(rng, count)[:1].repeat(2, 0),
    # Squares of integers below 4096 are exact; otherwise the fused products of a GPU might order far agents differently.
    "clustered with two far away": lambda rng, count: (
        rng.integers(0, 4, (2, count)) + np.where(np.arange(count) < 2, 4000.0, 0.0)
    ),
    "shifted below zero": lambda rng, count: scattered(rng, count) - 8.0,
    "squares underflow": lambda rng, count: scattered(rng, count) * 2.0**-100,
    "squares overflow": lambda rng, count: rng.integers(-3, 4, (2, count)) * 2.0**100,
    "differences overflow": lambda rng, count: rng.choice([-1.0, 1.0], (2, count)) * 2.0**127,
    "some not finite": scattered_and_nonfinite,
    "all NaN": lambda rng, count: np.full((2, count), np.nan),
}


def check_neighbors(device, num_agents, max_neighbors, positions, num_envs=2, env=POINTS, sign=1):
    """Compares the neighbors in the final observation of an episode and in the first observation of the next one."""
    kwargs = {"output": "cupy" if device == "cuda" else "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 1}
    envs = VectorEnv(env, num_envs, device=device, **kwargs, num_agents=num_agents, max_neighbors=max_neighbors)
    envs.reset(seed=num_agents)
    rng = np.random.default_rng(max_neighbors)
    x, y = np.stack([POSITIONS[positions](rng, num_agents) for _ in range(num_envs)], 1).astype(np.float32)
    is_hidden = rng.random((num_envs, num_agents)) < 0.2
    envs.set_state({name: on_device(envs, values) for name, values in {"x": x, "y": y, "is_hidden": is_hidden}.items()})
    obs, *_, info = host(envs.step(on_device(envs, np.zeros((num_envs, num_agents), np.int32))))
    state = host(envs.get_state())
    rows = compared_agents(num_agents)
    for e in range(num_envs):
        np.testing.assert_array_equal(
            info["final_obs"][e, rows, :max_neighbors], expected_neighbors(x[e], y[e], is_hidden[e], max_neighbors, sign)
        )
        first_state = state["x"][e], state["y"][e], state["is_hidden"][e].astype(bool)
        np.testing.assert_array_equal(obs[e, rows, :max_neighbors], expected_neighbors(*first_state, max_neighbors, sign))
    envs.close()


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("num_agents", [110, 600])
def test_neighbors_at_any_positions(device, num_agents, positions):
    schema = make_schema(apply_params(POINTS, {"num_agents": num_agents}, (), 1)[0])
    assert (launch_mapping.count_cells(schema) == 0) == (num_agents == 110)
    check_neighbors(device, num_agents, 10, positions)


@pytest.mark.first_variants(1)  # more agents than 512 take a cell list, as those of the test above
@pytest.mark.parametrize(("num_agents", "max_neighbors"), [(2, 1), (9, 8), (65, 40), (513, 1), (8, 3), (512, 20)])
def test_any_number_of_agents_and_neighbors(device, num_agents, max_neighbors):
    check_neighbors(device, num_agents, max_neighbors, "scattered")


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize("positions", ["scattered", "on integers", "some not finite", "differences overflow"])
@pytest.mark.parametrize(
    ("num_agents", "launch_config"),
    [
        (21, MultiAgentLaunch(2, 8, True, False, 0, 8, threads_per_search_block=8)),  # two envs share a search block
        (7, MultiAgentLaunch(1, 8, True, True, 4, 8, threads_per_search_block=32)),
        (40, MultiAgentLaunch(1, 8, True, False, 0, 8, threads_per_search_block=8, search_blocks_per_env=1)),
        (41, MultiAgentLaunch(1, 8, True, False, 0, 8, threads_per_search_block=4, search_blocks_per_env=3)),
    ],
)
def test_search_kernels_in_the_simulator(simulator, monkeypatch, num_agents, launch_config, positions):
    monkeypatch.setattr(launch_mapping, "CELL_LIST_MIN_AGENTS", 40)
    monkeypatch.setattr(
        "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda schema, num_envs: launch_config
    )
    check_neighbors(simulator, num_agents, 3, positions)


def test_negative_distances(backend, monkeypatch):
    if backend == "simulator":
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
            lambda schema, num_envs: MultiAgentLaunch(2, 8, True, False, 0, 8, threads_per_search_block=8),
        )
    check_neighbors(backend, 21, 3, "on integers", env=FARTHEST, sign=-1)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("positions", POSITIONS)
    @pytest.mark.parametrize(("num_agents", "blocks_per_env"), [(2000, 1), (2000, 7), (10_000, 3)])
    def test_many_agents(self, gpu, monkeypatch, num_agents, blocks_per_env, positions):
        """At one point, one cell lists all 10,000 agents, and each agent visits the whole list."""
        make_launch = launch_mapping.make_multi_agent_launch
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
            lambda *args: make_launch(*args)._replace(search_blocks_per_env=blocks_per_env),
        )
        check_neighbors(gpu, num_agents, 10, positions)

    def test_repetition_finds_equal_neighbors(self, gpu):
        for _ in range(20):
            check_neighbors(gpu, 1025, 10, "on integers", num_envs=33)


class TestPosition:
    """The position of a search names fields whose differences bound the distance from below."""

    def test_cell_list_needs_many_agents_and_a_position(self):
        schema = make_schema(apply_params(POINTS, {"num_agents": 10_000}, (), 1)[0])
        assert launch_mapping.count_cells(schema) == 6666
        assert launch_mapping.count_cells(schema, list_bytes=10) == 0
        assert launch_mapping.count_cells(make_schema(dataclasses.replace(POINTS, params=Params(num_agents=100)))) == 0
        undeclared = dataclasses.replace(POINTS, params=Params(num_agents=10_000), observation=observation(distance))
        assert launch_mapping.count_cells(make_schema(undeclared)) == 0

    @pytest.mark.first_variants(2)
    @pytest.mark.parametrize(
        ("distance", "squared"), [(distance_along_x, False), (chebyshev_distance_squared, True), (weighted_distance, True)]
    )
    def test_cell_list_with_any_distance_that_is_not_less(self, device, distance, squared):
        """The cell list finds the neighbors that the comparison of all agents finds."""
        observations = []
        for position in ((), ("x",)):
            point_env = dataclasses.replace(POINTS, observation=observation(distance, position, squared if position else None))
            env = VectorEnv(
                point_env, 2, device=device, output="cupy" if device == "cuda" else "numpy", num_agents=600, max_neighbors=7
            )
            observations.append(host(env.reset(seed=3)[0]))
            env.close()
        np.testing.assert_array_equal(*observations)

    @pytest.mark.parametrize(
        ("position", "squared", "message"),
        [
            (("z",), True, r"the search has 'z' in its position; it must be a Floats field with one element .*: x, y\."),
            (("x", "is_hidden"), True, "the search has 'is_hidden' in its position; it must be a Floats field"),
            (("neighbors",), True, "the search has 'neighbors' in its position; it must be a Floats field"),
            ("x", True, r"position='x'; it must be a tuple: position=\('x',\)\."),
            (("x",), None, r"position=\('x',\) and squared=None; give both: squared=True if the distance is not less than"),
            ((), True, r"position=\(\) and squared=True; give both"),
        ],
    )
    def test_invalid_position_is_refused(self, position, squared, message):
        env = dataclasses.replace(POINTS, observation=observation(distance, position, squared))
        with pytest.raises(AuthoringError, match=message):
            VectorEnv(env, 2, device="cpu")

    def test_integer_position_is_refused(self):
        env = dataclasses.replace(STREET, observation=lambda p: Observation(
            street_env.self_features, street_env.other_features, p.num_observed,
            NearestNeighbors("neighbors", street_env.distance, position=("caught_by",), squared=False)))  # fmt: skip
        with pytest.raises(
            AuthoringError, match=r"the search has 'caught_by' in its position; it must be a Floats field .*: x"
        ):
            VectorEnv(env, 2, device="cpu")


def apply_network(pairs, values):
    """The values after the compare-and-exchange operations of a sorting network."""
    result = list(values)
    for a, b in pairs:
        result[a], result[b] = min(result[a], result[b]), max(result[a], result[b])
    return result


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 10, 11])
def test_sorting_networks_sort_all_zeros_and_ones(count):
    """Such a network sorts all values: Knuth, "The Art of Computer Programming", volume 3, section 5.3.4, theorem Z."""
    for number in range(2**count):
        values = [number >> k & 1 for k in range(count)]
        assert apply_network(merge_exchange_pairs(count), values) == sorted(values)
    for start in range(count + 1):
        for end in range(start, count + 1):
            values = [int(start <= k < end) for k in range(count)]
            assert apply_network(bitonic_merge_pairs(0, count), values) == sorted(values)
