"""The rules of Predators in plain Python, written from docs/rules/predators.md, without the package.

An animal is an object in a dictionary by its slot. The slots that mothers draw and the headings of newborns are random, and are
given to the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIRECTIONS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # (rows, columns) of a step, by the heading
TURNS = {1: 0, 2: -1, 3: 1}  # {action: change of the heading}


@dataclass
class Animal:
    """An animal of the model."""

    is_wolf: bool
    cell: tuple[int, int]
    heading: int
    energy: int


class PredatorsModel:
    """One world.

    Args:
        p: the parameters of the environment.
        state: {field: value} of a first state.
    """

    def __init__(self, p: Any, state: Mapping[str, Any]) -> None:
        self.p, self.num_slots = p, len(state["is_alive"])
        self.is_wolf = [kind == 0 for kind in state["role"]]
        y, x, heading, energy = (state[name].tolist() for name in ("y", "x", "heading", "energy"))
        self.animals = {
            i: Animal(self.is_wolf[i], (y[i], x[i]), heading[i], energy[i]) for i in np.flatnonzero(state["is_alive"]).tolist()
        }
        self.growth = state["grass"].astype(int).copy()

    def newborn_energy(self, is_wolf: bool) -> int:
        """Returns the energy of a newborn."""
        return int(self.p.wolf_birth_energy if is_wolf else self.p.sheep_birth_energy)

    def step(self, actions: NDArray[Any], nests: NDArray[Any], headings: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
        """Runs a step.

        Args:
            actions: (A,) the actions.
            nests: (A,) the slot that each animal draws if it is a mother.
            headings: (A,) the heading of an animal that is born in each slot.

        Returns:
            The rewards, (A,), and the slots of the mothers.
        """
        p, reward = self.p, np.zeros(self.num_slots)
        free = set(range(self.num_slots)) - self.animals.keys()
        for i, animal in self.animals.items():
            if actions[i] in TURNS:
                animal.heading = (animal.heading + TURNS[int(actions[i])]) % 4
                rows, columns = DIRECTIONS[animal.heading]
                animal.cell = ((animal.cell[0] + rows) % p.height, (animal.cell[1] + columns) % p.width)
        by_cell: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for i in sorted(self.animals):
            by_cell.setdefault(self.animals[i].cell, ([], []))[0 if self.animals[i].is_wolf else 1].append(i)
        food, prey = self._meals(by_cell)
        mothers = []
        for i in sorted(self.animals):
            animal = self.animals[i]
            reward[i] += p.food_reward * (food.get(i, 0) > 0)
            animal.energy = min(animal.energy - 1 + food.get(i, 0), p.max_energy)
            if i in prey or animal.energy <= 0:
                del self.animals[i]
                reward[i] -= p.death_penalty
            elif animal.energy >= 2 * self.newborn_energy(animal.is_wolf):
                mothers.append(i)
        for i in mothers:
            nest = int(nests[i])
            if nest in free:
                free.remove(nest)
                mother = self.animals[i]
                mother.energy -= self.newborn_energy(mother.is_wolf)
                newborn = Animal(mother.is_wolf, mother.cell, int(headings[nest]), self.newborn_energy(mother.is_wolf))
                self.animals[nest] = newborn
        return reward, mothers

    def _meals(self, by_cell: Mapping[tuple[int, int], tuple[list[int], list[int]]]) -> tuple[dict[int, int], set[int]]:
        """{animal that eats: energy}, and the sheep that are eaten; grows the grass."""
        p, food, prey, grazed = self.p, {}, set(), []
        for cell, (wolves, sheep) in by_cell.items():
            if wolves and sheep:
                food[wolves[0]] = p.wolf_food
                prey.add(sheep[0])
            elif sheep and self.growth[cell] == 0:
                food[sheep[0]] = p.sheep_food
                grazed.append(cell)
        self.growth = np.maximum(self.growth - 1, 0)
        for cell in grazed:
            self.growth[cell] = p.regrowth_steps
        return food, prey

    @property
    def is_over(self) -> bool:
        """Whether a kind has died out."""
        return len({animal.is_wolf for animal in self.animals.values()}) < 2

    def observations(self) -> NDArray[np.uint8]:
        """Returns the windows of all slots, (A, 5, H, W)."""
        p = self.p
        maps = np.zeros((3, p.height, p.width), int)
        maps[0] = 255 * (self.growth == 0)
        for animal in self.animals.values():
            maps[2 if animal.is_wolf else 1][animal.cell] += 64
        reach = max(p.view_ahead, p.view_behind, p.view_side)
        wide = np.pad(np.minimum(maps, 255), ((0, 0), (reach, reach), (reach, reach)), mode="wrap")
        size = (p.view_ahead + 1 + p.view_behind, 2 * p.view_side + 1)
        windows = np.zeros((self.num_slots, 5, *size), np.uint8)
        for i, animal in self.animals.items():
            y, x = animal.cell
            around = np.rot90(wide[:, y : y + 2 * reach + 1, x : x + 2 * reach + 1], animal.heading, axes=(1, 2))
            rows = slice(reach - p.view_ahead, reach + p.view_behind + 1)
            windows[i, :3] = around[:, rows, reach - p.view_side : reach + p.view_side + 1]
            windows[i, 3], windows[i, 4] = animal.energy, 255 * animal.is_wolf
        return windows
