"""Both tag games behind one surface, on plain Python and in a batch, with agents put where a test wants them."""

from functools import lru_cache

import gymnasium
import numpy as np
import pytest
from tests.support.arrays import host, step
from tests.support.reference_player import Outcome, Player

from gpuvec import Key
from gpuvec_envs import tag_continuous, tag_grid_world

MODULES = {"gpuvec/TagGridWorld-v0": tag_grid_world, "gpuvec/TagContinuous-v0": tag_continuous}
GRID, CONTINUOUS = MODULES


def make_vec(name, device, **options):
    """A batch that returns torch tensors on a GPU, elsewhere NumPy arrays, which is what the simulator knows."""
    return gymnasium.make_vec(name, device=device, output="torch" if device == "cuda" else "numpy", **options)


@lru_cache
def batch(name, device, structural):
    """One env whose other parameters are stored, so that tests share its kernels."""
    env = MODULES[name].ENV
    stored = tuple(k for k in env.params._fields if k not in env.structural)
    return make_vec(name, device, num_envs=1, autoreset_mode="Disabled", per_env=stored, **dict(structural))


class Batch:
    """An env of a batch, with the methods of a `Player`. Of those with the same structure one can be played at a time."""

    def __init__(self, name, device, **params):
        env = MODULES[name].ENV
        stored = {k: params.pop(k, default) for k, default in env.params._asdict().items() if k not in env.structural}
        self.env = batch(name, device, tuple(sorted(params.items())))
        for parameter, value in stored.items():
            self.env.set_attr(parameter, value)
        self.env.reset(seed=0)
        self.set_state({"role": Player(env, **params).s.role})  # they outlast a reset
        self.env.reset(seed=0)

    def set_state(self, fields):
        self.env.set_state({name: np.asarray(values)[None] for name, values in fields.items()})

    def get_state(self):
        return {name: values[0] for name, values in host(self.env.get_state()).items()}

    def step(self, actions):
        *arrays, info = step(self.env, np.asarray(actions)[None])
        return Outcome(*(values[0] for values in arrays), info["agent_mask"][0], info["agent_terminated"][0])


def key(row, seed=0):
    return Key(seed=np.uint32(seed), seed_high=np.uint32(0), row=np.uint32(row), episode=np.uint32(0), step=np.int32(0))


def player(name, **params):
    """A `Player` at the start that the first env of a batch has with seed 0."""
    game = Player(MODULES[name].ENV, **params)
    game.reset(key(0))
    return game


# Most games have the same structure, which a batch compiles once: four or five agents, episodes of eight steps.


def grid(make, cells, **params):
    """Agents in these cells of a grid with numbers 0 to 4, the runner last."""
    game = make(GRID, **{"num_taggers": len(cells) - 1, "grid_length": 4, "max_episode_steps": 8} | params)
    x, y = np.transpose(cells)
    game.set_state({"x": x, "y": y})
    return game


STRUCTURE = {"max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 0.5, "min_turn": -0.5, "max_episode_steps": 8}
REWARDS = {"tagging_distance": 0.1, "tag_reward_for_tagger": 10.0, "tag_penalty_for_runner": -5.0}


def field(make, places, speed=0.0, heading=0.0, taggers=1, **params):
    """Agents at these places of a square of side 10, who tag at a distance below 1."""
    game = make(CONTINUOUS, num_taggers=taggers, num_runners=len(places) - taggers, **STRUCTURE | REWARDS | params)
    x, y = np.transpose(np.float32(places))
    full = lambda value: np.broadcast_to(np.float32(value), x.shape)
    game.set_state({"x": x, "y": y, "speed": full(speed), "heading": full(heading), "acceleration": full(0.0)})
    return game


def idle(game):
    """Actions of five agents that leave speeds and headings as they are."""
    return game.step(np.zeros((5, 2), np.int32))


near = lambda values: pytest.approx(np.asarray(values, float), rel=1e-6, abs=1e-6)
