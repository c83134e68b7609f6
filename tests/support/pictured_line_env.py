"""Agents on a line, each of which observes a picture of its own place and of its target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Ints, Key, MultiAgentEnv, Observation, Time, randint, register

SIZE = 5  # of the line and of the pictures


class Line(NamedTuple):
    place: Ints
    target: Ints


class LineParams(NamedTuple):
    agents: int = 2


def reset(i: int, s: Line, key: Key, p: LineParams) -> None:
    s.place[i] = 0
    s.target[i] = randint(key, i, 1, SIZE)


def move(i: int, s: Line, action: int, key: Key, p: LineParams) -> None:
    s.place[i] = min(max(s.place[i] + 2 * action - 1, 0), SIZE - 1)


def pixel(i: int, cell: tuple[int, int], s: Line, t: Time, p: LineParams) -> tuple[float, float]:
    _, column = cell
    return 1.0 if s.place[i] == column else 0.0, 1.0 if s.target[i] == column else 0.0


PICTURED_LINE = MultiAgentEnv(
    state=Line,
    params=LineParams(),
    spaces=lambda p: (Box(0, 1, (2, SIZE, SIZE), np.uint8), Discrete(2)),
    agents=lambda p: p.agents,
    reset=reset,
    phases=(move,),
    reward=lambda i, s, t, p: 1.0 if s.place[i] == s.target[i] else 0.0,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(pixel=pixel),
    structural=("agents",),
    max_episode_steps=10,
)

register("tests/PicturedLine-v0", PICTURED_LINE)
