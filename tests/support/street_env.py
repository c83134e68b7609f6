"""A small game of many agents whose every number can be told in advance, and the ways in which tests make it.

Agents stand on a line at whole numbers. Walkers go where their action says; a walker that a guard meets is out. Everything
is a whole number, so that float32 loses nothing.
"""

from __future__ import annotations

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
    randint,
    register,
)  # fmt: skip

GUARD, WALKER = 0, 1


class Street(NamedTuple):
    x: Floats  # the place
    out: Bools
    met: Ints  # the guard that a walker met in this step, -1 without
    near: Annotated[Ints, "seen", NearestNeighbors]
    role: Ints
    agents_by_role: Ints
    left: int  # walkers that are not out
    all_out: bool
    some_met: bool
    first: int  # the agent furthest to the left, guards aside


class StreetParams(NamedTuple):
    guards: int = 1
    walkers: int = 3
    length: int = 20  # of the street
    seen: int = 2  # others that an agent sees
    full: bool = False  # whether it sees all


def agents(p: StreetParams) -> int:
    return p.guards + p.walkers


def reset(i: int, s: Street, key: Key, p: StreetParams) -> None:
    s.x[i] = randint(key, i, 0, p.length)
    s.out[i] = False
    s.met[i] = -1


def walk(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    s.met[i] = -1
    if not s.out[i]:
        s.x[i] = min(max(s.x[i] + np.float32(action - 1), 0.0), np.float32(p.length))


def meet(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    if s.role[i] == WALKER and not s.out[i]:
        for k in range(p.guards):
            j = s.agents_by_role[k]
            if s.x[j] == s.x[i] and s.met[i] < 0:
                s.met[i] = j


def leave(i: int, s: Street, action: int, key: Key, p: StreetParams) -> None:
    if s.met[i] >= 0:
        s.out[i] = True


def walks(i: int, s: Street, p: StreetParams) -> bool:
    return s.role[i] == WALKER and not s.out[i]


def outside(i: int, s: Street, p: StreetParams) -> bool:
    return s.role[i] == GUARD or s.out[i]


def caught(i: int, s: Street, p: StreetParams) -> bool:
    return s.met[i] >= 0


def place(i: int, s: Street, p: StreetParams) -> float:
    return s.x[i] if s.role[i] == WALKER else np.float32(np.inf)


def reward(i: int, s: Street, t: Time, p: StreetParams) -> float:
    """A walker pays 1 when it is met, which its guard gets; who walks gets 0.5."""
    if s.role[i] == WALKER:
        return -1.0 if s.met[i] >= 0 else 0.0 if s.out[i] else 0.5
    count = 0
    for k in range(p.guards, p.guards + p.walkers):
        if s.met[s.agents_by_role[k]] == i:
            count += 1
    return np.float32(count)


def terminated(i: int, s: Street, p: StreetParams) -> bool:
    return s.left == 0


def active(i: int, s: Street, p: StreetParams) -> bool:
    return not s.out[i]


def distance(i: int, j: int, s: Street, p: StreetParams) -> float:
    return np.float32(np.inf) if i == j or s.out[j] else abs(s.x[i] - s.x[j])


def seeks(i: int, s: Street, p: StreetParams) -> bool:
    return not s.out[i]


def other_features(i: int, slot: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float]:
    j = s.near[i, slot]
    if j < 0:
        return -100.0, -1.0
    return s.x[j] - s.x[i], np.float32(s.role[j])


def see_all(i: int, slot: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float]:
    j = slot + 1 if slot >= i else slot
    return s.x[j] - s.x[i], np.float32(s.role[j]) + (2.0 if s.out[j] else 0.0)


def observe(i: int, s: Street, t: Time, p: StreetParams) -> tuple[float, float, float]:
    return s.x[i], np.float32(s.left), np.float32(t.step) / np.float32(t.limit)


def observation(p: StreetParams) -> Observation:
    if p.full:
        return Observation(observe, see_all, p.guards + p.walkers - 1)
    nearest = NearestNeighbors("near", distance, seeks, position=("x",), squared=False)
    return Observation(observe, other_features, p.seen, nearest)


def spaces(p: StreetParams) -> tuple[Box, Discrete]:
    slots = p.guards + p.walkers - 1 if p.full else p.seen
    return Box(-np.inf, np.inf, (2 * slots + 3,)), Discrete(3)


STREET = MultiAgentEnv(
    state=Street,
    params=StreetParams(),
    spaces=spaces,
    agents=agents,
    reset=reset,
    phases=(
        walk, meet, any_of("some_met", caught), leave, count_of("left", walks), all_of("all_out", outside),
        argmin_of("first", place),
    ),
    reward=reward,
    terminated=terminated,
    observation=observation,
    active=active,
    roles=lambda p: {"guard": p.guards, "walker": p.walkers},
    structural=("guards", "walkers", "seen", "full"),
    max_episode_steps=50,
)  # fmt: skip

register("tests/Street-v0", STREET)


def make(num_envs: int, device: str = "cpu", **kwargs: Any) -> Any:
    """The street, as rows of NumPy or CuPy arrays."""
    from gpuvec import VectorEnv

    kwargs.setdefault("output", "cupy" if device == "cuda" else "numpy")
    kwargs.setdefault("max_episode_steps", 50)
    return VectorEnv("tests.support.street_env:STREET", num_envs, device=device, **kwargs)
