"""An environment whose agents join and leave according to a table: `COMES` says in which steps each agent is active."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Floats, Key, MultiAgentEnv, Observation, Time, register

COMES = np.array(  # [agent, steps since the start]
    [
        [1, 1, 1, 1, 1, 1, 1],  # is always active
        [0, 0, 1, 1, 1, 1, 1],  # joins
        [1, 1, 0, 0, 1, 1, 1],  # leaves, and joins again
        [1, 0, 0, 0, 0, 0, 0],  # leaves for good
    ],
    np.bool_,
)


class Visit(NamedTuple):
    steps: Floats
    inside: Bools


class VisitParams(NamedTuple):
    gain: float = 1.0


class Timetable(VisitParams):
    comes: Bools


def reset(i: int, s: Visit, key: Key, p: Timetable) -> None:
    s.steps[i], s.inside[i] = 0.0, p.comes[i, 0]


def attend(i: int, s: Visit, action: int, key: Key, p: Timetable) -> None:
    s.steps[i] += 1.0
    s.inside[i] = p.comes[i, min(np.int32(s.steps[i]), 6)]


def observe(i: int, s: Visit, t: Time, p: Timetable) -> tuple[float, float]:
    return s.steps[i], 1.0 if s.inside[i] else 0.0


VISITS = MultiAgentEnv(
    state=Visit,
    params=VisitParams(),
    spaces=lambda p: (Box(0.0, np.inf, (2,)), Discrete(2)),
    agents=lambda p: len(COMES),
    reset=reset,
    phases=(attend,),
    reward=lambda i, s, t, p: p.gain,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(observe),
    active=lambda i, s, p: s.inside[i],
    tables=lambda p: {"comes": COMES},
    max_episode_steps=6,
)

register("tests/Visits-v0", VISITS)
