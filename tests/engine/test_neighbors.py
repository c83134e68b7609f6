"""The search for nearest agents: what a stable sort of all distances finds, by a walk or by cells, wherever the agents are."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.support.arrays import host, on_device

from gpuvec import Bools, Floats, Ints, MultiAgentEnv, NearestNeighbors, Observation, VectorEnv, randint
from gpuvec.engine.compiler.sorting_network import bitonic_merge_pairs, merge_exchange_pairs
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.multi_agent import launch_mapping
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors.metric import Metric, metric
from gpuvec.vector.env_params import apply_params
from gpuvec_envs import tag_continuous

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


def observation(distance):
    look = NearestNeighbors("near", distance, seeks)
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
    observation=observation(distance),
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
    assert (launch_mapping.cells(make_schema(apply_params(MEADOW, {"sheep": sheep}, (), 1)[0])) is None) == (sheep == 110)
    check(device, sheep, 10, kind)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("sheep", "seen"), [(2, 1), (7, 6), (8, 3), (9, 8), (65, 1), (65, 40), (511, 2), (512, 20), (513, 1)])
def test_any_number(device, sheep, seen):
    check(device, sheep, seen, "scattered")


@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["scattered", "on whole numbers", "some nowhere", "too far for differences"])
@pytest.mark.parametrize(
    ("sheep", "shape"),
    [
        (21, MultiAgentLaunch(2, 8, True, False, 0, 8, seekers=8)),  # two envs share a block that searches
        (7, MultiAgentLaunch(1, 8, True, True, 4, 8, seekers=32)),
        (40, MultiAgentLaunch(1, 8, True, False, 0, 8, seekers=8, parts=1)),
        (41, MultiAgentLaunch(1, 8, True, False, 0, 8, seekers=4, parts=3)),
    ],
)
def test_kernels_of_their_own(simulator, monkeypatch, sheep, shape, kind):
    monkeypatch.setattr(launch_mapping, "CROWDED", 40)
    monkeypatch.setattr("gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda crowd, num_envs: shape)
    check(simulator, sheep, 3, kind)


def test_distances_below_zero(backend, monkeypatch):
    if backend == "simulator":
        monkeypatch.setattr(
            "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
            lambda crowd, num_envs: MultiAgentLaunch(2, 8, True, False, 0, 8, seekers=8),
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
            lambda *given: asked(*given)._replace(parts=parts),
        )
        check(gpu, sheep, 10, kind)

    def test_the_same_in_every_repetition(self, gpu):
        for _ in range(20):
            check(gpu, 1025, 10, "on whole numbers", num_envs=33)


class TestMetric:
    """What is known of a distance, from its code."""

    FIELDS = ("x", "y", "z", "gone", "playing")

    @pytest.mark.parametrize(
        ("distance", "expected"),
        [
            (distance, Metric(("x", "y"), True)),
            (tag_continuous.distance, Metric(("x", "y"), True)),
            (lambda i, j, s, p: abs(s.x[j] - s.x[i]) if p.far > 2.0 or s.gone[i] == s.gone[j] else INF, Metric(("x",), False)),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) * (s.x[i] - s.x[j]) + (s.z[j] - s.z[i]) ** 2, Metric(("x", "z"), True)),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) * (s.x[j] - s.x[i]), None),  # less for those further away
            (lambda i, j, s, p: s.x[i] - s.x[j], None),
            (lambda i, j, s, p: (s.x[i] - s.y[j]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[0]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[i]) ** 2, None),
            (lambda i, j, s, p: (s.x[i + 1] - s.x[j]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) ** 3, None),
            (lambda i, j, s, p: p.weight * (s.x[i] - s.x[j]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) ** 2 - (s.y[i] - s.y[j]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) ** 2 if s.gone[j] else 5.0, None),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) ** 2 if s.gone[j] else (s.y[i] - s.y[j]) ** 2, None),
            (lambda i, j, s, p: (s.x[i] - s.x[j]) ** 2 if s.gone[j] else -INF, None),
            (lambda i, j, s, p: max(abs(s.x[i] - s.x[j]), abs(s.y[i] - s.y[j])), None),
            (lambda i, j, s, p: math.sqrt((s.x[i] - s.x[j]) ** 2), None),
            (lambda i, j, s, p: INF, None),
        ],
    )
    def test_it_is_found(self, distance, expected):
        assert metric(distance, self.FIELDS) == expected

    def test_cells_are_for_crowds_whose_places_are_floats(self):
        crowd = make_schema(apply_params(MEADOW, {"sheep": 10_000}, (), 1)[0])
        assert launch_mapping.cells(crowd) == (Metric(("x", "y"), True), 6666)
        assert launch_mapping.cells(crowd, room=10) is None
        whole = {k: b._replace(dtype=np.int32) if k == "x" else b for k, b in crowd.array_fields.items()}
        assert launch_mapping.cells(crowd._replace(array_fields=whole)) is None
        look = dataclasses.replace(MEADOW, params=Params(sheep=100))
        assert launch_mapping.cells(make_schema(look)) is None


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
