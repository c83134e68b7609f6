"""A small environment whose state has fields of every index set: grass on a grid, sheep, gifts between pairs, and the weather.

All numbers but those of the weather are whole, so that float32 represents them exactly.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import (
    Bools,
    Features,
    Floats,
    Int8s,
    Ints,
    Key,
    MultiAgentEnv,
    Observation,
    Time,
    UInt8s,
    any_of,
    argmin_of,
    assign,
    each,
    max_of,
    min_of,
    randint,
    register,
    sum_of,
    uniform,
)  # fmt: skip


class Meadow(NamedTuple):
    y: Ints  # the row of each sheep
    x: Ints
    eaten: Floats  # grass that a sheep has eaten
    grass: Annotated[Int8s, "cells"]  # (height, width), from 0 to 3
    layers: Annotated[UInt8s, "cells", 2]  # (height, width, 2): how often grass was eaten, and how often it grew
    gifts: Annotated[Floats, "pairs"]  # (A, A): what sheep i gave to sheep j
    visited: Annotated[Bools, "agents", "num_marks"]  # (A, N): the marks that a sheep has passed
    rain: Annotated[Floats, "world", 3]  # of the last three steps
    temperature: float
    days: int
    is_dry: bool
    total_grass: int
    most_grass: int
    mean_eaten: float
    least_eaten: float
    greenest: int  # the first cell with the most grass
    any_bare: bool


class Params(NamedTuple):
    sheep: int = 3
    height: int = 3
    width: int = 5
    num_marks: int = 2
    warming: float = 0.1
    observe_sets: bool = False  # whether a sheep observes all pairs and cells
    image_bytes: int = 0  # of a channel of an image: 1 for uint8, 4 for float32; 0 for features


def reset_sheep(i: int, s: Meadow, key: Key, p: Params) -> None:
    s.y[i], s.x[i] = randint(key, 2 * i, 0, p.height), randint(key, 2 * i + 1, 0, p.width)
    s.eaten[i] = 0.0
    for k in range(p.num_marks):
        s.visited[i, k] = False


def reset_cell(cell: tuple[int, int], s: Meadow, key: Key, p: Params) -> None:
    y, x = cell
    s.grass[cell] = randint(key, y * p.width + x, 0, 4)
    s.layers[y, x, 0], s.layers[y, x, 1] = 0, 0


def reset_pair(pair: tuple[int, int], s: Meadow, key: Key, p: Params) -> None:
    s.gifts[pair] = 0.0


def reset_rain(s: Meadow, key: Key, p: Params) -> None:
    for k in range(3):
        s.rain[k] = uniform(key, k, 0.0, 1.0)


def first_weather(s: Meadow, key: Key, p: Params) -> tuple[float, int, bool]:
    return 10.0 + s.rain[0], 0, False


def move(i: int, s: Meadow, action: int, key: Key, p: Params) -> None:
    s.x[i] = (s.x[i] + (1 if action == 1 else 0)) % p.width
    s.y[i] = (s.y[i] + (1 if action == 2 else 0)) % p.height
    if s.x[i] < p.num_marks:
        s.visited[i, s.x[i]] = True


def give(pair: tuple[int, int], s: Meadow, action: int, key: Key, p: Params) -> None:
    i, j = pair
    s.gifts[i, j] = np.float32(action) if i != j else np.float32(randint(key, i, 0, 3))


def graze(cell: tuple[int, int], s: Meadow, key: Key, p: Params) -> None:
    y, x = cell
    visitors = 0
    for i in range(p.sheep):
        if s.y[i] == y and s.x[i] == x:
            visitors += 1
    if visitors > 0:
        s.grass[y, x] = max(s.grass[y, x] - visitors, 0)
        s.layers[y, x, 0] = (s.layers[y, x, 0] + 1) % 256
    elif s.grass[y, x] < 3 and randint(key, y * p.width + x, 0, 4) == 0:
        s.grass[y, x] += 1
        s.layers[y, x, 1] = (s.layers[y, x, 1] + 1) % 256


def eat(i: int, s: Meadow, action: int, key: Key, p: Params) -> None:
    s.eaten[i] += np.float32(s.layers[s.y[i], s.x[i], 0])


def fall(s: Meadow, key: Key, p: Params) -> None:
    s.rain[2], s.rain[1] = s.rain[1], s.rain[0]
    s.rain[0] = uniform(key, 0, 0.0, 1.0)


def weather(s: Meadow, key: Key, p: Params) -> tuple[float, int, bool]:
    return s.temperature + p.warming * s.rain[0], s.days + 1, s.rain[0] + s.rain[1] + s.rain[2] < 1.0


def grass_of(cell: tuple[int, int], s: Meadow, p: Params) -> int:
    return s.grass[cell]


def is_bare(cell: tuple[int, int], s: Meadow, p: Params) -> bool:
    return s.grass[cell] == 0


def less_grass(cell: tuple[int, int], s: Meadow, p: Params) -> float:
    return -np.float32(s.grass[cell])


def share_eaten(i: int, s: Meadow, p: Params) -> float:
    return s.eaten[i] / np.float32(p.sheep)


def eaten_by(i: int, s: Meadow, p: Params) -> float:
    return s.eaten[i]


def allowed(i: int, action: int, s: Meadow, p: Params) -> bool:
    """A sheep may not leave the last column to the right, nor the first row downwards on a dry day."""
    return (action != 1 or s.x[i] < p.width - 1) and (action != 2 or not s.is_dry or s.y[i] > 0)


class Metrics(NamedTuple):
    grass: float
    mean_rain: Annotated[float, "mean"]
    total_rain: Annotated[float, "sum"]
    least_grass: Annotated[float, "min"]
    warmest: Annotated[float, "max"]


def metrics(s: Meadow, p: Params) -> Metrics:
    grass = np.float32(s.total_grass)
    return Metrics(grass, s.rain[0], s.rain[0], grass, s.temperature)  # type: ignore[arg-type]  # float32


def reward(i: int, s: Meadow, t: Time, p: Params) -> float:
    received = np.float32(0.0)
    for j in range(p.sheep):
        received += s.gifts[j, i]
    return received + np.float32(s.total_grass) * 0.125 + s.mean_eaten


def terminated(i: int, s: Meadow, p: Params) -> bool:
    return s.total_grass < 6 or (s.is_dry and s.days > 12)


def features(i: int, s: Meadow, t: Time, p: Params) -> tuple[float, float, float, float, float, float, float, float]:
    here = np.float32(s.grass[s.y[i], s.x[i]])
    marks = np.float32(s.visited[i, 0]) + np.float32(s.visited[i, 1])
    return here, marks, s.temperature, s.rain[2], s.mean_eaten, s.least_eaten, np.float32(s.greenest), np.float32(s.most_grass)


def pixel(i: int, cell: tuple[int, int], s: Meadow, t: Time, p: Params) -> tuple[int, int, int]:
    """The grass, the number of sheep, and the sheep itself."""
    y, x = cell
    count = 0
    for j in range(p.sheep):
        count += 1 if s.y[j] == y and s.x[j] == x else 0
    return 60 * s.grass[cell], count, 200 if s.y[i] == y and s.x[i] == x else t.step


def gift_feature(i: int, pair: tuple[int, int], s: Meadow, t: Time, p: Params) -> tuple[float]:
    return (s.gifts[pair] + (10.0 if pair[0] == i else 0.0),)


def cell_features(i: int, cell: tuple[int, int], s: Meadow, t: Time, p: Params) -> tuple[float, float]:
    y, x = cell
    return np.float32(s.grass[cell]), np.float32(abs(s.y[i] - y) + abs(s.x[i] - x))


def observation(p: Params) -> Observation:
    if p.image_bytes:
        return Observation(pixel=pixel)
    if p.observe_sets:
        return Observation(features, blocks=(Features("pairs", gift_feature), Features("cells", cell_features)))
    return Observation(features)


def spaces(p: Params) -> tuple[Box, Discrete]:
    if p.observe_sets:
        return Box(-np.inf, np.inf, (8 + p.sheep**2 + 2 * p.height * p.width,)), Discrete(3)
    if p.image_bytes:
        return Box(0, 255, (3, p.height, p.width), np.uint8 if p.image_bytes == 1 else np.float32), Discrete(3)
    return Box(-np.inf, np.inf, (8,)), Discrete(3)


MEADOW = MultiAgentEnv(
    state=Meadow,
    params=Params(),
    spaces=spaces,
    agents=lambda p: p.sheep,
    sets=lambda p: {"cells": (p.height, p.width)},
    reset=(
        reset_sheep, each("cells", reset_cell), each("pairs", reset_pair), each("world", reset_rain),
        assign(("temperature", "days", "is_dry"), first_weather), sum_of("total_grass", grass_of, "cells"),
    ),
    phases=(
        move, each("pairs", give), each("cells", graze), eat, each("world", fall),
        assign(("temperature", "days", "is_dry"), weather),
        sum_of("total_grass", grass_of, "cells"), max_of("most_grass", grass_of, "cells"), sum_of("mean_eaten", share_eaten),
        min_of("least_eaten", eaten_by), argmin_of("greenest", less_grass, "cells"), any_of("any_bare", is_bare, "cells"),
    ),
    reward=reward,
    terminated=terminated,
    allowed=allowed,
    metrics=metrics,
    observation=observation,
    structural=("sheep", "height", "width", "num_marks", "observe_sets", "image_bytes"),
    cuda_c="meadow.cu",
    max_episode_steps=20,
)  # fmt: skip

register("tests/Meadow-v0", MEADOW)


def make(num_envs: int, device: str = "cpu", **kwargs: Any) -> Any:
    """Returns `num_envs` meadows that return NumPy arrays, on a GPU CuPy arrays."""
    from tests.support.vector_envs import make_envs

    return make_envs("tests.support.meadow_env:MEADOW", num_envs, device, **kwargs)
