"""Predators: wolves hunt sheep, sheep graze, and both are born and die on a map without borders.

Observation: an image (5, rows, columns) of uint8, the window around the animal, turned so that it looks up: `view_ahead` rows
    are ahead of it, `view_behind` behind, and `view_side` columns on each side. The channels are ripe grass (255), sheep and
    wolves (64 for each, at most 255), and in all pixels the own energy, and 255 for a wolf or 0 for a sheep. The image of a
    slot without an animal is 0.
Action: 0 stay, 1 step forward, 2 turn left and step forward, 3 turn right and step forward.
Reward: `food_reward` for an animal that eats, minus `death_penalty` for one that dies.
Termination: no sheep or no wolf is alive.
Parameters: `num_wolves` and `num_sheep` are slots; each holds an animal at the start with probability `initial_share`. An
    animal loses 1 unit of energy in a step and dies without energy. On each cell the wolf with the lowest index eats the sheep
    with the lowest index; if there is no wolf, that sheep eats the grass if it is ripe. Grass is ripe again after
    `regrowth_steps`. An animal with twice the energy of a newborn draws one of the slots of its kind; if that slot was free
    when the step began, and no mother with a lower index drew it too, a child is born there on its mother's cell, and its
    energy is taken from its mother.
Source: rules of this package in the manner of predator-prey models with grass (Lotka, 1925; Volterra, 1926; Wilensky, 1997,
    "NetLogo Wolf Sheep Predation"). docs/rules/predators.md has them in full.
"""

from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import (
    Bools,
    Ints,
    Key,
    MultiAgentEnv,
    Observation,
    Time,
    UInt8s,
    count_of,
    each,
    min_of,
    randint,
    uniform,
)
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one, require_finite, require_not_negative

WOLF, SHEEP = 0, 1  # roles
STAY, FORWARD, LEFT, RIGHT = 0, 1, 2, 3  # actions
NOBODY = 2**31 - 1  # the minimum of no indices


class State(NamedTuple):
    role: Ints
    agents_by_role: Ints
    is_alive: Bools
    y: Ints  # row of the map
    x: Ints  # column of the map
    heading: Ints  # 0 to a smaller row, 1 to a larger column, 2 to a larger row, 3 to a smaller column
    energy: Ints
    has_eaten: Bools  # in this step
    was_free: Bools  # whether the slot had no animal when the step began
    nest: Ints  # the slot that a mother draws for a child, or -1
    birthplace: Ints  # the number of a mother's cell in C order
    mother: Ints  # the lowest index of those that drew this slot, or NOBODY
    grass: Annotated[UInt8s, "cells"]  # steps until it is ripe
    first_wolf: Annotated[Ints, "cells"]  # the lowest index of the wolves on the cell after all have moved, or NOBODY
    first_sheep: Annotated[Ints, "cells"]
    wolves_here: Annotated[Ints, "cells"]  # the number of wolves at the end of the step
    sheep_here: Annotated[Ints, "cells"]
    wolves_alive: int
    sheep_alive: int


class Params(NamedTuple):
    num_wolves: int = 20  # slots
    num_sheep: int = 100  # slots
    height: int = 24  # cells
    width: int = 24  # cells
    initial_share: float = 0.5  # of the slots that hold an animal at the start, from 0 to 1
    wolf_food: int = 12  # energy of a sheep
    sheep_food: int = 4  # energy of the grass of a cell
    wolf_birth_energy: int = 20  # of a newborn wolf
    sheep_birth_energy: int = 8  # of a newborn sheep
    max_energy: int = 100  # of an animal, at most 255
    regrowth_steps: int = 20  # from 1 to 255
    food_reward: float = 1.0
    death_penalty: float = 1.0
    view_ahead: int = 5  # rows of the window
    view_behind: int = 2  # rows of the window
    view_side: int = 3  # columns of the window on each side


class Metrics(NamedTuple):
    mean_wolves: Annotated[float, "mean"]
    mean_sheep: Annotated[float, "mean"]


def agents(p: Params) -> int:
    return p.num_wolves + p.num_sheep


def roles(p: Params) -> dict[str, int]:
    return {"wolves": p.num_wolves, "sheep": p.num_sheep}


def sets(p: Params) -> dict[str, tuple[int, int]]:
    return {"cells": (p.height, p.width)}


def birth_energy(i: int, s: State, p: Params) -> int:
    """Returns the energy of a newborn of the kind of animal `i`."""
    return p.wolf_birth_energy if s.role[i] == WOLF else p.sheep_birth_energy


def reset_animal(i: int, s: State, key: Key, p: Params) -> None:
    s.is_alive[i] = uniform(key, 5 * i, 0.0, 1.0) < p.initial_share
    s.y[i], s.x[i] = randint(key, 5 * i + 1, 0, p.height), randint(key, 5 * i + 2, 0, p.width)
    s.heading[i] = randint(key, 5 * i + 3, 0, 4)
    s.energy[i] = randint(key, 5 * i + 4, 1, 2 * birth_energy(i, s, p)) if s.is_alive[i] else 0
    s.has_eaten[i], s.was_free[i] = False, False
    s.nest[i], s.birthplace[i], s.mother[i] = -1, 0, NOBODY


def reset_cell(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    y, x = cell
    s.grass[cell] = max(randint(key, y * p.width + x, -p.regrowth_steps, p.regrowth_steps), 0)
    s.first_wolf[cell], s.first_sheep[cell] = NOBODY, NOBODY


def wrap(position: int, size: int) -> int:
    """Returns a coordinate on the map that is at most `size` away from it."""
    return position + size if position < 0 else position - size if position >= size else position


def row_step(heading: int) -> int:
    """Returns the change of the row of a step forward."""
    return heading - 1 if heading % 2 == 0 else 0


def column_step(heading: int) -> int:
    """Returns the change of the column of a step forward."""
    return 0 if heading % 2 == 0 else 2 - heading


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.was_free[i] = not s.is_alive[i]
    if s.is_alive[i] and action != STAY:
        heading = (s.heading[i] + (3 if action == LEFT else 1 if action == RIGHT else 0)) % 4
        s.heading[i] = heading
        s.y[i], s.x[i] = wrap(s.y[i] + row_step(heading), p.height), wrap(s.x[i] + column_step(heading), p.width)


def number(i: int, s: State, p: Params) -> int:
    return i


def is_animal(i: int, s: State, p: Params) -> bool:
    return bool(s.is_alive[i])


def is_wolf(i: int, s: State, p: Params) -> bool:
    return bool(s.is_alive[i] and s.role[i] == WOLF)


def is_sheep(i: int, s: State, p: Params) -> bool:
    return bool(s.is_alive[i] and s.role[i] == SHEEP)


def wolf_cell(i: int, s: State, p: Params) -> tuple[int, int]:
    return s.y[i] if is_wolf(i, s, p) else -1, s.x[i]


def sheep_cell(i: int, s: State, p: Params) -> tuple[int, int]:
    return s.y[i] if is_sheep(i, s, p) else -1, s.x[i]


def live(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.nest[i], s.has_eaten[i] = -1, False
    if not s.is_alive[i]:
        return
    y, x = s.y[i], s.x[i]
    wolf, sheep = s.first_wolf[y, x], s.first_sheep[y, x]
    is_prey = False
    if s.role[i] == WOLF:
        first, count = 0, p.num_wolves
        s.has_eaten[i] = wolf == i and sheep != NOBODY
        food = p.wolf_food if s.has_eaten[i] else 0
    else:
        first, count = p.num_wolves, p.num_sheep
        is_prey = sheep == i and wolf != NOBODY
        s.has_eaten[i] = sheep == i and not is_prey and s.grass[y, x] == 0
        food = p.sheep_food if s.has_eaten[i] else 0
    s.energy[i] = 0 if is_prey else min(s.energy[i] - 1 + food, p.max_energy)
    if s.energy[i] <= 0:
        s.is_alive[i] = False
    elif s.energy[i] >= 2 * birth_energy(i, s, p):
        s.nest[i] = s.agents_by_role[first + randint(key, 2 * i, 0, count)]
        s.birthplace[i] = y * p.width + x


def grow(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    if s.grass[cell] > 0:
        s.grass[cell] -= 1
    elif s.first_sheep[cell] != NOBODY and s.first_wolf[cell] == NOBODY:
        s.grass[cell] = p.regrowth_steps


def nest_of(i: int, s: State, p: Params) -> int:
    return int(s.nest[i])


def give_birth(i: int, s: State, action: int, key: Key, p: Params) -> None:
    mother, nest = s.mother[i], s.nest[i]
    if s.was_free[i] and mother != NOBODY:
        s.is_alive[i], s.energy[i] = True, birth_energy(i, s, p)
        s.y[i], s.x[i] = s.birthplace[mother] // p.width, s.birthplace[mother] % p.width
        s.heading[i] = randint(key, 2 * i + 1, 0, 4)
    elif nest >= 0 and s.was_free[nest] and s.mother[nest] == i:
        s.energy[i] -= birth_energy(i, s, p)


def reward(i: int, s: State, t: Time, p: Params) -> float:
    food = p.food_reward if s.has_eaten[i] else 0.0
    return food if s.is_alive[i] or s.was_free[i] else food - p.death_penalty


def terminated(i: int, s: State, p: Params) -> bool:
    return s.wolves_alive == 0 or s.sheep_alive == 0


def pixel(i: int, cell: tuple[int, int], s: State, t: Time, p: Params) -> tuple[int, int, int, int, int]:
    if not s.is_alive[i]:
        return 0, 0, 0, 0, 0
    distance, side = p.view_ahead - cell[0], cell[1] - p.view_side
    down, right = row_step(s.heading[i]), column_step(s.heading[i])
    # The direction to the right of (down, right) is (right, -down).
    y = wrap(s.y[i] + distance * down + side * right, p.height)
    x = wrap(s.x[i] + distance * right - side * down, p.width)
    grass = 255 if s.grass[y, x] == 0 else 0
    kind = 255 if s.role[i] == WOLF else 0
    return grass, min(64 * s.sheep_here[y, x], 255), min(64 * s.wolves_here[y, x], 255), s.energy[i], kind


def metrics(s: State, p: Params) -> Metrics:
    return Metrics(np.float32(s.wolves_alive), np.float32(s.sheep_alive))  # type: ignore[arg-type]  # float32


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0, 255, (5, p.view_ahead + 1 + p.view_behind, 2 * p.view_side + 1), np.uint8), Discrete(4)


def field_ranges(p: Params) -> dict[str, tuple[int, int]]:
    last = p.num_wolves + p.num_sheep - 1
    return {
        "y": (0, p.height - 1),
        "x": (0, p.width - 1),
        "heading": (0, 3),
        "energy": (0, p.max_energy),
        "nest": (-1, last),
        "birthplace": (0, p.height * p.width - 1),
    }


def check(p: Params) -> None:
    """Raises ValueError for parameters that make no sense together."""
    names = ("num_wolves", "num_sheep", "wolf_birth_energy", "sheep_birth_energy", "regrowth_steps", "max_energy")
    require_at_least_one(p, *names)
    require_not_negative(p, "wolf_food", "sheep_food", "view_ahead", "view_behind", "view_side", "initial_share")
    require_finite(p, "food_reward", "death_penalty")
    reach = max(p.view_ahead, p.view_behind, p.view_side, 1)
    for name, value, low, high in (
        ("initial_share", p.initial_share, 0, 1),
        ("regrowth_steps", p.regrowth_steps, 1, 255),
        ("max_energy", p.max_energy, 2 * max(p.wolf_birth_energy, p.sheep_birth_energy), 255),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; it must be from {low} to {high}.")
    if min(p.height, p.width) < reach:
        raise ValueError(
            f"height and width are {p.height} and {p.width}; a window that reaches {reach} cells needs a map of at least "
            f"{reach} x {reach} cells."
        )


def list_animals(animals: list[int]) -> str:
    """Returns indices as text, the first three of many."""
    return ", ".join(map(str, animals[:3])) + (f" and {len(animals) - 3} more" if len(animals) > 3 else "")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns the births and the deaths of a step, each cause as one event."""
    is_prey = (s.role == SHEEP) & (s.first_sheep[s.y, s.x] == np.arange(agents(p))) & (s.first_wolf[s.y, s.x] != NOBODY)
    died, born, is_wolf_slot = before.is_alive & ~s.is_alive, s.is_alive & ~before.is_alive, s.role == WOLF
    changes = (
        ("death", "sheep eaten", died & is_prey),
        ("death", "sheep starved", died & ~is_prey & ~is_wolf_slot),
        ("death", "wolves starved", died & is_wolf_slot),
        ("birth", "sheep born", born & ~is_wolf_slot),
        ("birth", "wolves born", born & is_wolf_slot),
    )
    by_cause = [(kind, text, np.flatnonzero(mask).tolist()) for kind, text, mask in changes]
    return [(kind, f"{text}: {list_animals(animals)}", tuple(animals)) for kind, text, animals in by_cause if animals]


CENSUS = (
    count_of("wolves_here", is_animal, at=wolf_cell), count_of("sheep_here", is_animal, at=sheep_cell),
    count_of("wolves_alive", is_wolf), count_of("sheep_alive", is_sheep),
)  # fmt: skip
ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    sets=sets,
    reset=(reset_animal, each("cells", reset_cell), *CENSUS),
    phases=(
        move,
        min_of("first_wolf", number, at=wolf_cell),
        min_of("first_sheep", number, at=sheep_cell),
        live,
        each("cells", grow),
        min_of("mother", number, at=nest_of),
        give_birth,
        *CENSUS,
    ),
    reward=reward,
    terminated=terminated,
    active=is_animal,
    observation=lambda p: Observation(pixel=pixel),
    metrics=metrics,
    structural=("num_wolves", "num_sheep", "height", "width", "view_ahead", "view_behind", "view_side"),
    field_ranges=field_ranges,
    check=check,
    draw=pictures.predators,
    events=events,
    action_names=("stay", "forward", "turn left", "turn right"),
    max_episode_steps=500,
    render_fps=10,
)
