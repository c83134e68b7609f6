"""A small environment with many agents whose numbers can be computed without a compiler, and functions that create it.

Agents stand on a line at whole numbers. Walkers move as their actions say; a walker at the place of a guard is caught and
leaves. All numbers are whole, so that float32 represents them exactly. On a slippery street agents also slip to any number, and
a guard catches walkers that are near. Tests of `check_env` replace lines of this file by wrong ones.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import (
    Bools,
    Floats,
    Ints,
    Key,
    MultiAgentEnv,
    NearestNeighbors,
    Observation,
    Time,
    all_of,
    any_of,
    argmin_of,
    count_of,
    normal,
    randint,
    register,
)  # fmt: skip

GUARD, WALKER = 0, 1
INF = np.inf


class Street(NamedTuple):
    x: Floats  # position
    is_out: Bools
    caught_by: Ints  # the guard that caught a walker in this step, or -1
    neighbors: Annotated[Ints, "agents", "num_observed", NearestNeighbors]
    role: Ints
    agents_by_role: Ints
    num_walking: int
    all_out: bool
    any_caught: bool
    leftmost: int  # the walker with the lowest position


class StreetParams(NamedTuple):
    guards: int = 1
    walkers: int = 3
    length: int = 20  # of the street
    num_observed: int = 2  # other agents that an agent observes
    observe_all: bool = False  # whether it observes all others
    reach: float = 0.5  # the distance below which a guard catches a walker
    noise: float = 0.1  # of a step on a slippery street


def agents(p: StreetParams) -> int:
    return p.guards + p.walkers


def reset(i: int, s: Street, key: Key, p: StreetParams) -> None:
    s.x[i] = randint(key, i, 0, p.length)
    s.is_out[i] = False
    s.caught_by[i] = -1


def move(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    s.caught_by[i] = -1
    if not s.is_out[i]:
        s.x[i] = min(max(s.x[i] + np.float32(action - 1), 0.0), np.float32(p.length))


def slip(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    """Moves an agent of a slippery street."""
    s.caught_by[i] = -1
    if not s.is_out[i]:
        x = s.x[i] + p.strides[action] + p.noise * normal(key, 2 * i)
        s.x[i] = min(max(x, 0.0), np.float32(p.length))


def catch(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    if s.role[i] == WALKER and not s.is_out[i]:
        nearest = p.reach
        for k in range(p.guards):
            j = s.agents_by_role[k]
            distance_to_guard = abs(s.x[j] - s.x[i])
            if distance_to_guard < nearest:
                nearest = distance_to_guard
                s.caught_by[i] = j


def leave(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    if s.caught_by[i] >= 0:
        s.is_out[i] = True


def is_walking(i: int, s: Street, p: StreetParams) -> bool:
    return s.role[i] == WALKER and not s.is_out[i]


def is_guard_or_out(i: int, s: Street, p: StreetParams) -> bool:
    return s.role[i] == GUARD or s.is_out[i]


def is_caught(i: int, s: Street, p: StreetParams) -> bool:
    return s.caught_by[i] >= 0


def walker_position(i: int, s: Street, p: StreetParams) -> float:
    return s.x[i] if s.role[i] == WALKER else INF


def reward(i: int, s: Street, t: Time, p: StreetParams) -> float:
    """A walker loses 1 when it is caught, which the guard gains; while it walks it gains 0.5 per step."""
    if s.role[i] == WALKER:
        return -1.0 if s.caught_by[i] >= 0 else 0.0 if s.is_out[i] else 0.5
    count = 0
    for k in range(p.guards, p.guards + p.walkers):
        if s.caught_by[s.agents_by_role[k]] == i:
            count += 1
    return np.float32(count)


def terminated(i: int, s: Street, p: StreetParams) -> bool:
    return s.num_walking == 0


def active(i: int, s: Street, p: StreetParams) -> bool:
    return not s.is_out[i]


def distance(i: int, j: int, s: Street, p: StreetParams) -> float:
    return INF if i == j or s.is_out[j] else abs(s.x[i] - s.x[j])


def mask(i: int, s: Street, p: StreetParams) -> bool:
    return not s.is_out[i]


def other_features(i: int, slot: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float]:
    j = s.neighbors[i, slot]
    if j < 0:
        return -100.0, -1.0
    return s.x[j] - s.x[i], np.float32(s.role[j])


def features_of_all(i: int, slot: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float]:
    j = slot + 1 if slot >= i else slot
    return s.x[j] - s.x[i], np.float32(s.role[j]) + (2.0 if s.is_out[j] else 0.0)


def self_features(i: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float, float]:
    return s.x[i], np.float32(s.num_walking), np.float32(t.step) / np.float32(t.limit)


def observation(p: StreetParams) -> Observation:
    if p.observe_all:
        return Observation(self_features, features_of_all, p.guards + p.walkers - 1)
    nearest = NearestNeighbors("neighbors", distance, mask, position=("x",), squared=False)
    return Observation(self_features, other_features, p.num_observed, nearest)


def spaces(p: StreetParams) -> tuple[Box, Discrete]:
    slots = p.guards + p.walkers - 1 if p.observe_all else p.num_observed
    low, high = [-np.inf] * 2 * slots + [0.0, 0.0, 0.0], [np.inf] * (2 * slots + 1) + [p.walkers, 1.0]
    return Box(np.array(low, np.float32), np.array(high, np.float32)), Discrete(3)


NUM_WALKING = count_of("num_walking", is_walking)
STREET = MultiAgentEnv(
    state=Street,
    params=StreetParams(),
    spaces=spaces,
    agents=agents,
    reset=reset,
    phases=(
        move, catch, any_of("any_caught", is_caught), leave, NUM_WALKING,
        all_of("all_out", is_guard_or_out), argmin_of("leftmost", walker_position),
    ),
    reward=reward,
    terminated=terminated,
    observation=observation,
    active=active,
    roles=lambda p: {"guard": p.guards, "walker": p.walkers},
    structural=("guards", "walkers", "num_observed", "observe_all"),
    max_episode_steps=50,
)  # fmt: skip

SLIPPERY_STREET = dataclasses.replace(
    STREET,
    params=StreetParams(guards=2, length=10),
    phases=(slip, catch, leave, NUM_WALKING),
    tables=lambda p: {"strides": np.array([-0.5, 0.0, 0.5], np.float32)},
)

# A copy of this file registers the environment of this one.
register("tests/Street-v0", "tests.support.street_env:STREET")


def make(num_envs: int, device: str = "cpu", **kwargs: Any) -> Any:
    """Returns `num_envs` streets that return NumPy arrays, on a GPU CuPy arrays."""
    from tests.support.vector_envs import make_envs

    kwargs.setdefault("max_episode_steps", 50)
    return make_envs("tests.support.street_env:STREET", num_envs, device, **kwargs)
