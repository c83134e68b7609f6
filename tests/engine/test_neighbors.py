"""The search for nearest agents: what a stable sort of all distances finds, by a walk or by cells, wherever the agents are."""

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
from gpuvec.engine.compiler.sorting_network import bitonic_merge_pairs, merge_exchange_pairs
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.multi_agent import launch_mapping
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.errors import AuthoringError
from gpuvec.vector.env_params import apply_params

INF = math.inf
STEP = 1 / 64  # places are multiples of it and less than 16, so that squares of distances are exact in float32


class Meadow(NamedTuple):
    x: Floats
    y: Floats
    gone: Bools  # neither looks nor is seen
    near: Annotated[Ints, "seen", NearestNeighbors]


class Params(NamedTuple):
    sheep: int = 20
    seen: int = 3


def reset(i, s, key, p):
    s.x[i], s.y[i] = np.float32(randint(key, 3 * i, 0, 1024)) * STEP, np.float32(randint(key, 3 * i + 1, 0, 1024)) * STEP
    s.gone[i] = randint(key, 3 * i + 2, 0, 8) == 0


def graze(i, s, action, key, p):
    s.x[i] = s.x[i]


def distance(i, j, s, p):
    return (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2 if i != j and not s.gone[j] else INF


def seeks(i, s, p):
    return not s.gone[i]


def closeness(i, j, s, p):
    return -((s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2) if i != j and not s.gone[j] else INF


def other_features(i, slot, s, t, p):
    return (np.float32(s.near[i, slot]),)


def along_x(i, j, s, p):
    return abs(s.x[i] - s.x[j]) if i != j and not s.gone[j] else INF


def largest(i, j, s, p):
    return max((s.x[i] - s.x[j]) ** 2, (s.y[i] - s.y[j]) ** 2) if i != j and not s.gone[j] else INF


def weighted(i, j, s, p):
    return (s.x[i] - s.x[j]) ** 2 + 4.0 * (s.y[i] - s.y[j]) ** 2 if i != j else INF


def observation(distance, position=(), squared=None):
    look = NearestNeighbors("near", distance, seeks, position, squared)
    return lambda p: Observation(lambda i, s, t, p: (s.x[i],), other_features, p.seen, look)


MEADOW = MultiAgentEnv(
    state=Meadow,
    params=Params(),
    spaces=lambda p: (Box(-1.0, INF, (p.seen + 1,)), Discrete(2)),
    agents=lambda p: p.sheep,
    reset=reset,
    phases=(graze,),
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    observation=observation(distance, ("x", "y"), squared=True),
    structural=("sheep", "seen"),
    max_episode_steps=1,
)


FARTHEST = dataclasses.replace(MEADOW, observation=observation(closeness))


def nearest(x, y, gone, seen, sign=1):
    """(rows, K): of some agents those nearest to each, or with sign -1 furthest from it, -1 where there is nobody."""
    some = sample(len(x))
    with np.errstate(all="ignore"):
        found = sign * ((x[some, None] - x) ** 2 + (y[some, None] - y) ** 2)
    found[:, gone] = found[np.isnan(found)] = INF
    found[np.arange(len(some)), some] = INF
    order = np.argsort(found, axis=1, kind="stable")[:, :seen]
    return np.where(np.isinf(np.take_along_axis(found, order, 1)) | gone[some, None], -1, order)


def sample(count):
    """Agents whose rows are looked at: all, or some hundreds."""
    return np.arange(0, count, max(1, count // 500))


def scattered(rng, count):
    return rng.integers(0, 1024, (2, count)).astype(np.float32) * np.float32(STEP)


def with_strays(rng, count):
    found = scattered(rng, count)
    found[rng.integers(0, 2, count // 3), rng.integers(0, count, count // 3)] = rng.choice([np.nan, INF, -INF], count // 3)
    return found


PLACES: dict[str, Any] = {
    "scattered": scattered,
    "on whole numbers": lambda rng, count: rng.integers(0, 5, (2, count)),
    "at one place": lambda rng, count: np.full((2, count), 3.25),
    "at two places": lambda rng, count: np.full((2, count), 1e6) * rng.integers(0, 2, count),
    "on a line": lambda rng, count: scattered(rng, count) * [[0.0], [1.0]],
    "on a diagonal": lambda rng, count: scattered(rng, count)[:1].repeat(2, 0),
    # whole numbers below 4096, of which squares are exact: else a GPU's fused products might order the far ones otherwise
    "in a crowd and far away": lambda rng, count: rng.integers(0, 4, (2, count)) + np.where(np.arange(count) < 2, 4000.0, 0.0),
    "below zero": lambda rng, count: scattered(rng, count) - 8.0,
    "too near for squares": lambda rng, count: scattered(rng, count) * 2.0**-100,
    "too far for squares": lambda rng, count: rng.integers(-3, 4, (2, count)) * 2.0**100,
    "too far for differences": lambda rng, count: rng.choice([-1.0, 1.0], (2, count)) * 2.0**127,
    "some nowhere": with_strays,
    "all nowhere": lambda rng, count: np.full((2, count), np.nan),
}


def check(device, sheep, seen, kind, num_envs=2, game=MEADOW, sign=1):
    """What is seen at the end of an episode, where agents were put, and at the beginning of the next."""
    kwargs = {"output": "cupy" if device == "cuda" else "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 1}
    env = VectorEnv(game, num_envs, device=device, **kwargs, sheep=sheep, seen=seen)
    env.reset(seed=sheep)
    rng = np.random.default_rng(seen)
    x, y = np.stack([PLACES[kind](rng, sheep) for _ in range(num_envs)], 1).astype(np.float32)
    gone = rng.random((num_envs, sheep)) < 0.2
    env.set_state({name: on_device(env, values) for name, values in {"x": x, "y": y, "gone": gone}.items()})
    obs, *_, info = host(env.step(on_device(env, np.zeros((num_envs, sheep), np.int32))))
    state = host(env.get_state())
    some = sample(sheep)
    for e in range(num_envs):
        np.testing.assert_array_equal(info["final_obs"][e, some, :seen], nearest(x[e], y[e], gone[e], seen, sign))
        now = state["x"][e], state["y"][e], state["gone"][e].astype(bool)
        np.testing.assert_array_equal(obs[e, some, :seen], nearest(*now, seen, sign))
    env.close()


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("sheep", [110, 600])
def test_wherever_they_are(device, sheep, kind):
    assert (launch_mapping.count_cells(make_schema(apply_params(MEADOW, {"sheep": sheep}, (), 1)[0])) == 0) == (sheep == 110)
    check(device, sheep, 10, kind)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("sheep", "seen"), [(2, 1), (7, 6), (8, 3), (9, 8), (65, 1), (65, 40), (511, 2), (512, 20), (513, 1)])
def test_any_number(device, sheep, seen):
    check(device, sheep, seen, "scattered")


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["scattered", "on whole numbers", "some nowhere", "too far for differences"])
@pytest.mark.parametrize(
    ("sheep", "shape"),
    [
        (21, MultiAgentLaunch(2, 8, True, False, 0, 8, threads_per_search_block=8)),  # two envs share a block that searches
        (7, MultiAgentLaunch(1, 8, True, True, 4, 8, threads_per_search_block=32)),
        (40, MultiAgentLaunch(1, 8, True, False, 0, 8, threads_per_search_block=8, search_blocks_per_env=1)),
        (41, MultiAgentLaunch(1, 8, True, False, 0, 8, threads_per_search_block=4, search_blocks_per_env=3)),
    ],
)
def test_kernels_of_their_own(simulator, monkeypatch, sheep, shape, kind):
    monkeypatch.setattr(launch_mapping, "CELL_LIST_MIN_AGENTS", 40)
    monkeypatch.setattr("gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda crowd, num_envs: shape)
    check(simulator, sheep, 3, kind)


def test_distances_below_zero(backend, monkeypatch):
    if backend == "simulator":
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
            lambda crowd, num_envs: MultiAgentLaunch(2, 8, True, False, 0, 8, threads_per_search_block=8),
        )
    check(backend, 21, 3, "on whole numbers", game=FARTHEST, sign=-1)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize("kind", PLACES)
    @pytest.mark.parametrize(("sheep", "parts"), [(2000, 1), (2000, 7), (10_000, 3)])
    def test_crowds(self, gpu, monkeypatch, sheep, parts, kind):
        """At one place 10,000 are a list in one cell, which each of them walks."""
        asked = launch_mapping.make_multi_agent_launch
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
            lambda *given: asked(*given)._replace(search_blocks_per_env=parts),
        )
        check(gpu, sheep, 10, kind)

    def test_the_same_in_every_repetition(self, gpu):
        for _ in range(20):
            check(gpu, 1025, 10, "on whole numbers", num_envs=33)


class TestPosition:
    """Fields that bound a distance from below, as the search declares them."""

    def test_cells_are_for_many_agents_whose_position_is_declared(self):
        schema = make_schema(apply_params(MEADOW, {"sheep": 10_000}, (), 1)[0])
        assert launch_mapping.count_cells(schema) == 6666
        assert launch_mapping.count_cells(schema, list_bytes=10) == 0
        assert launch_mapping.count_cells(make_schema(dataclasses.replace(MEADOW, params=Params(sheep=100)))) == 0
        undeclared = dataclasses.replace(MEADOW, params=Params(sheep=10_000), observation=observation(distance))
        assert launch_mapping.count_cells(make_schema(undeclared)) == 0

    @pytest.mark.first_variants(2)
    @pytest.mark.parametrize(("distance", "squared"), [(along_x, False), (largest, True), (weighted, True)])
    def test_any_distance_that_is_not_less(self, device, distance, squared):
        """What a walk over all agents finds, by cells of the declared fields."""
        found = []
        for declared in ((), ("x",)):
            game = dataclasses.replace(MEADOW, observation=observation(distance, declared, squared if declared else None))
            env = VectorEnv(game, 2, device=device, output="cupy" if device == "cuda" else "numpy", sheep=600, seen=7)
            found.append(host(env.reset(seed=3)[0]))
            env.close()
        np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize(
        ("position", "squared", "message"),
        [
            (("z",), True, r"the search has 'z' in its position; it must be a Floats field with one element .*: x, y\."),
            (("x", "gone"), True, "the search has 'gone' in its position; it must be a Floats field"),
            (("near",), True, "the search has 'near' in its position; it must be a Floats field"),
            ("x", True, r"position='x'; it must be a tuple: position=\('x',\)\."),
            (("x",), None, r"position=\('x',\) and squared=None; give both: squared=True if the distance is not less than"),
            ((), True, r"position=\(\) and squared=True; give both"),
        ],
    )
    def test_what_cannot_be_a_position_is_refused(self, position, squared, message):
        game = dataclasses.replace(MEADOW, observation=observation(distance, position, squared))
        with pytest.raises(AuthoringError, match=message):
            VectorEnv(game, 2, device="cpu")

    def test_ints_are_refused(self):
        game = dataclasses.replace(STREET, observation=lambda p: Observation(
            street_env.self_features, street_env.other_features, p.num_observed,
            NearestNeighbors("neighbors", street_env.distance, position=("caught_by",), squared=False)))  # fmt: skip
        with pytest.raises(
            AuthoringError, match=r"the search has 'caught_by' in its position; it must be a Floats field .*: x"
        ):
            VectorEnv(game, 2, device="cpu")


def sorted_by(pairs, values):
    found = list(values)
    for a, b in pairs:
        found[a], found[b] = min(found[a], found[b]), max(found[a], found[b])
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 10, 11])
def test_what_sorts_zeros_and_ones_sorts_everything(count):
    """Knuth, "The Art of Computer Programming", volume 3, section 5.3.4, theorem Z."""
    for bits in range(2**count):
        values = [bits >> k & 1 for k in range(count)]
        assert sorted_by(merge_exchange_pairs(count), values) == sorted(values)
    for rise in range(count + 1):
        for fall in range(rise, count + 1):
            values = [int(rise <= k < fall) for k in range(count)]
            assert sorted_by(bitonic_merge_pairs(0, count), values) == sorted(values)
