"""A small environment of reductions with `at`: ships on a map, harbors, and trades between pairs of ships.

Each kind of reduction is there, from and to several sets. Values are infinite, nan, -0.0 or equal for some elements, and some
elements contribute nowhere.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import (
    Bools,
    Floats,
    Ints,
    Key,
    MultiAgentEnv,
    Observation,
    Time,
    all_of,
    any_of,
    argmin_of,
    count_of,
    each,
    max_of,
    min_of,
    randint,
    sum_of,
    uniform,
)  # fmt: skip

INFINITE, NOT_A_NUMBER = math.inf, math.nan


class Harbor(NamedTuple):
    y: Ints  # the row of each ship; -1 if it is at sea
    x: Ints
    cargo: Ints
    speed: Floats  # some are nan, infinite or -0.0 in an episode
    goods: Annotated[Ints, "pairs"]  # what ship i sells to ship j
    depth: Annotated[Floats, "map"]
    ships: Annotated[Ints, "map"]
    load: Annotated[Ints, "map"]
    first_ship: Annotated[Ints, "map"]
    slowest: Annotated[Ints, "map"]
    least_speed: Annotated[Floats, "map"]
    most_speed: Annotated[Floats, "map"]
    is_busy: Annotated[Bools, "map"]
    all_loaded: Annotated[Bools, "map"]
    bought: Ints  # the sum of what all ships sell to ship j
    best_seller: Ints  # the ship that sells the most to ship j
    deepest: Annotated[Ints, "columns"]  # the cell of each column with the greatest depth
    least_load: Annotated[Ints, "columns"]
    largest_ship: Ints  # the largest cargo of the ships whose number modulo 2 is that of ship i


class Params(NamedTuple):
    ships: int = 6
    height: int = 3
    width: int = 4


def reset_ship(i: int, s: Harbor, key: Key, p: Params) -> None:
    s.y[i], s.x[i] = randint(key, 3 * i, -1, p.height), randint(key, 3 * i + 1, 0, p.width)
    s.cargo[i] = randint(key, 3 * i + 2, -3, 4)
    s.speed[i] = 0.0


def reset_pair(pair: tuple[int, int], s: Harbor, key: Key, p: Params) -> None:
    i, j = pair
    s.goods[i, j] = randint(key, i * p.ships + j, 0, 3)


def reset_cell(cell: tuple[int, int], s: Harbor, key: Key, p: Params) -> None:
    y, x = cell
    s.depth[y, x] = np.float32(randint(key, y * p.width + x, -2, 3))


def sail(i: int, s: Harbor, action: int, key: Key, p: Params) -> None:
    s.y[i], s.x[i] = randint(key, 4 * i, -1, p.height), randint(key, 4 * i + 1, 0, p.width)
    s.cargo[i] += action - 1
    number = randint(key, 4 * i + 2, 0, 6)
    # Whole speeds are often equal.
    s.speed[i] = -0.0 if number == 0 else np.float32(randint(key, 4 * i + 3, -2, 3))


def trade(pair: tuple[int, int], s: Harbor, action: int, key: Key, p: Params) -> None:
    i, j = pair
    s.goods[i, j] = randint(key, i * p.ships + j, 0, 3) if i != j else 0


def silt(cell: tuple[int, int], s: Harbor, key: Key, p: Params) -> None:
    y, x = cell
    s.depth[y, x] = uniform(key, y * p.width + x, -1.0, 1.0)


def place(i: int, s: Harbor, p: Params) -> tuple[int, int]:
    return s.y[i], s.x[i]


def is_there(i: int, s: Harbor, p: Params) -> bool:
    return True


def cargo(i: int, s: Harbor, p: Params) -> int:
    return s.cargo[i]


def number(i: int, s: Harbor, p: Params) -> int:
    return i


def speed(i: int, s: Harbor, p: Params) -> float:
    """The speed, infinite or nan for some cargoes."""
    return INFINITE if s.cargo[i] == 2 else NOT_A_NUMBER if s.cargo[i] == 3 else s.speed[i]


def is_heavy(i: int, s: Harbor, p: Params) -> bool:
    return s.cargo[i] > 1


def is_loaded(i: int, s: Harbor, p: Params) -> bool:
    return s.cargo[i] != 0


def goods(pair: tuple[int, int], s: Harbor, p: Params) -> int:
    return s.goods[pair]


def less_goods(pair: tuple[int, int], s: Harbor, p: Params) -> float:
    return np.float32(-s.goods[pair])


def buyer(pair: tuple[int, int], s: Harbor, p: Params) -> int:
    return pair[1] if pair[0] != pair[1] else -1


def less_depth(cell: tuple[int, int], s: Harbor, p: Params) -> float:
    return -s.depth[cell]


def column(cell: tuple[int, int], s: Harbor, p: Params) -> int:
    return cell[1]


def load_of(cell: tuple[int, int], s: Harbor, p: Params) -> int:
    return s.load[cell]


def parity(i: int, s: Harbor, p: Params) -> int:
    return i % 2


SCATTERS = (
    count_of("ships", is_there, at=place), sum_of("load", cargo, at=place), min_of("first_ship", number, at=place),
    argmin_of("slowest", speed, at=place), min_of("least_speed", speed, at=place), max_of("most_speed", speed, at=place),
    any_of("is_busy", is_heavy, at=place), all_of("all_loaded", is_loaded, at=place),
    sum_of("bought", goods, "pairs", at=buyer), argmin_of("best_seller", less_goods, over="pairs", at=buyer),
    argmin_of("deepest", less_depth, "map", at=column), min_of("least_load", load_of, "map", at=column),
    max_of("largest_ship", cargo, at=parity),
)  # fmt: skip


def features(i: int, s: Harbor, t: Time, p: Params) -> tuple[float, float]:
    return np.float32(s.bought[i]), np.float32(s.best_seller[i])


HARBOR = MultiAgentEnv(
    state=Harbor,
    params=Params(),
    spaces=lambda p: (Box(-np.inf, np.inf, (2,)), Discrete(3)),
    agents=lambda p: p.ships,
    sets=lambda p: {"map": (p.height, p.width), "columns": p.width},
    reset=(reset_ship, each("pairs", reset_pair), each("map", reset_cell), *SCATTERS),
    phases=(sail, each("pairs", trade), each("map", silt), *SCATTERS),
    reward=lambda i, s, t, p: np.float32(s.bought[i]),
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(features),
    structural=("ships", "height", "width"),
    max_episode_steps=10,
)
