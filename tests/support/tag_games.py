"""Both Tag games with one interface, in plain Python and as one env of a batch, with agents where a test puts them."""

from functools import lru_cache

import gymnasium
import numpy as np
import pytest
from tests.support.arrays import host, step
from tests.support.reference_game import ReferenceGame, StepResult

from gpuvec import Key
from gpuvec_envs import tag_continuous, tag_grid_world

MODULES = {"gpuvec/TagGridWorld-v0": tag_grid_world, "gpuvec/TagContinuous-v0": tag_continuous}
GRID, CONTINUOUS = MODULES


def make_vec(name, device, **options):
    """Returns a vector environment with torch tensors on a GPU, else with NumPy arrays, which the simulator needs."""
    return gymnasium.make_vec(name, device=device, output="torch" if device == "cuda" else "numpy", **options)


@lru_cache
def make_batch(name, device, structural_params):
    """Returns one env whose other parameters are stored per env, so that tests share its kernels."""
    env = MODULES[name].ENV
    stored = tuple(k for k in env.params._fields if k not in env.structural)
    return make_vec(name, device, num_envs=1, autoreset_mode="Disabled", per_env=stored, **dict(structural_params))


class BatchedGame:
    """An env of a batch with the methods of a `ReferenceGame`.

    Games with the same structural parameters share the env, so that only one of them can be used at a time.
    """

    def __init__(self, name, device, **params):
        env = MODULES[name].ENV
        stored = {k: params.pop(k, default) for k, default in env.params._asdict().items() if k not in env.structural}
        self.env = make_batch(name, device, tuple(sorted(params.items())))
        for parameter, value in stored.items():
            self.env.set_attr(parameter, value)
        self.env.reset(seed=0)
        self.set_state({"role": ReferenceGame(env, **params).s.role})  # a reset keeps the roles of the game before
        self.env.reset(seed=0)

    def set_state(self, fields):
        self.env.set_state({name: np.asarray(values)[None] for name, values in fields.items()})

    def get_state(self):
        return {name: values[0] for name, values in host(self.env.get_state()).items()}

    def step(self, actions):
        *arrays, info = step(self.env, np.asarray(actions)[None])
        return StepResult(*(values[0] for values in arrays), info["agent_mask"][0], info["agent_terminated"][0])


def make_key(row, seed=0):
    """Returns the key of the first reset of an env."""
    return Key(seed=np.uint32(seed), seed_high=np.uint32(0), row=np.uint32(row), episode=np.uint32(0), step=np.int32(0))


def make_reference(name, **params):
    """Returns a `ReferenceGame` in the initial state of the first env of a batch with seed 0."""
    game = ReferenceGame(MODULES[name].ENV, **params)
    game.reset(make_key(0))
    return game


# Most games have the same structural parameters, so that they are compiled once: four or five agents, episodes of eight steps.


def grid_game(make, cells, **params):
    """Returns a game with agents in these cells of a grid with numbers 0 to 4; the last one is the runner."""
    game = make(GRID, **{"num_taggers": len(cells) - 1, "grid_length": 4, "max_episode_steps": 8} | params)
    x, y = np.transpose(cells)
    game.set_state({"x": x, "y": y})
    return game


STRUCTURE = {"max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 0.5, "min_turn": -0.5, "max_episode_steps": 8}
REWARDS = {"tagging_distance": 0.1, "tag_reward_for_tagger": 10.0, "tag_penalty_for_runner": -5.0}


def continuous_game(make, positions, speed=0.0, heading=0.0, taggers=1, **params):
    """Returns a game with agents at these positions of a square of side 10; taggers tag at a distance below 1."""
    game = make(CONTINUOUS, num_taggers=taggers, num_runners=len(positions) - taggers, **STRUCTURE | REWARDS | params)
    x, y = np.transpose(np.float32(positions))
    full = lambda value: np.broadcast_to(np.float32(value), x.shape)
    game.set_state({"x": x, "y": y, "speed": full(speed), "heading": full(heading), "acceleration": full(0.0)})
    return game


def step_idle(game):
    """Steps a game of five agents with actions that do not change speeds and headings."""
    return game.step(np.zeros((5, 2), np.int32))


def approx(values):
    """Returns `values` for a comparison that allows for the rounding of float32."""
    return pytest.approx(np.asarray(values, float), rel=1e-6, abs=1e-6)
