# %% [markdown]
# # Write an environment with many agents
#
# After this tutorial you have written an environment with a map and two roles that see and do different things, checked that it
# has no races, trained a policy for each role, and looked at an episode.
#
# Sheep graze on a meadow. A farmer sees how much grass each quarter of the meadow has, and waters one quarter in each step.
# Sheep see the cells around them. Both want the sheep to eat. With many agents in one world, each phase of a step has to say
# which agent writes which element.
#
# ## Roles and sets
#
# The meadow is an *index set* of cells, which `sets` declares with its shape. The four quarters are another one. Each role is
# a set as well, because the roles have spaces of their own.

# %%
import base64
import io
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

import gpuvec
from gpuvec import (
    Features,
    Int8s,
    Ints,
    Key,
    MultiAgentEnv,
    Observation,
    Time,
    count_of,
    each,
    min_of,
    randint,
    sum_of,
    uniform,
)

NOBODY = 2**31 - 1  # the minimum of no numbers
RIPE = 3  # grass of a cell, from 0 to 3
QUARTERS = 4


class Params(NamedTuple):
    num_sheep: int = 2
    side: int = 16  # of the meadow [cells]
    growth: float = 0.1  # probability that grass grows on a cell of the watered quarter in a step
    sight: int = 2  # how many cells a sheep sees in each direction


def agents(p: Params) -> int:
    return 1 + p.num_sheep


def roles(p: Params) -> dict[str, int]:
    return {"farmer": 1, "sheep": p.num_sheep}


def sets(p: Params) -> dict[str, int | tuple[int, int]]:
    return {"cells": (p.side, p.side), "quarters": QUARTERS}


# %% [markdown]
# ## State
#
# `Annotated` names the set of a field, which has one element for each element of the set. A plain `int`, `float` or `bool`
# field belongs to the world.


# %%
class State(NamedTuple):
    watered: Annotated[Ints, "farmer"]  # a quarter
    y: Annotated[Ints, "sheep"]  # row
    x: Annotated[Ints, "sheep"]  # column
    food: Annotated[Ints, "sheep"]  # grass that it ate in this step
    grass: Annotated[Int8s, "cells"]  # from 0 to RIPE
    first_sheep: Annotated[Ints, "cells"]  # the sheep with the lowest number on a cell, or NOBODY
    quarter_grass: Annotated[Ints, "quarters"]
    quarter_sheep: Annotated[Ints, "quarters"]
    eaten: int  # by all sheep in this step


# %% [markdown]
# ## Phases
#
# A step is a list of phases. *All elements finish a phase before the next phase begins*, so within a phase all agents act at
# the same time. `each(set, function)` is a phase over a set. A phase of a role gets the action of its agent, and `i` counts
# within the role. A phase follows one rule:
#
# > **A phase for element `i` writes only elements `[i]`, and reads no other element of a field that it writes.**
#
# The order of elements then has no effect, with one GPU thread per element or with a loop on a CPU. The rule determines how
# events are written: two sheep may stand on one cell, and only one of them eats. A sheep cannot write the grass, which belongs
# to the cell. So the cell finds out which sheep stands there, the sheep reads that it is the one, and the cell loses its grass.


# %%
def quarter(y: int, x: int, p: Params) -> int:
    return 2 * (2 * y // p.side) + 2 * x // p.side


def reset_farmer(i: int, s: State, key: Key, p: Params) -> None:
    s.watered[i] = randint(key, i, 0, QUARTERS)


def reset_sheep(i: int, s: State, key: Key, p: Params) -> None:
    s.y[i], s.x[i], s.food[i] = randint(key, 2 * i, 0, p.side), randint(key, 2 * i + 1, 0, p.side), 0


def reset_cell(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    y, x = cell
    s.grass[cell] = randint(key, y * p.side + x, 0, 2)


def water(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.watered[i] = action


def target(i: int, action: int, s: State, p: Params) -> tuple[int, int]:
    """The cell to which sheep i goes: it stays, or goes right, left, up or down."""
    dx = 1 if action == 1 else -1 if action == 2 else 0
    dy = 1 if action == 4 else -1 if action == 3 else 0
    return s.y[i] + dy, s.x[i] + dx


def is_inside(y: int, x: int, p: Params) -> bool:
    return bool(0 <= y < p.side and 0 <= x < p.side)


def walk(i: int, s: State, action: int, key: Key, p: Params) -> None:
    y, x = target(i, action, s, p)
    if is_inside(y, x, p):
        s.y[i], s.x[i] = y, x


def eat(i: int, s: State, action: int, key: Key, p: Params) -> None:
    y, x = s.y[i], s.x[i]
    s.food[i] = s.grass[y, x] if s.first_sheep[y, x] == i else 0


def grow(cell: tuple[int, int], s: State, key: Key, p: Params) -> None:
    y, x = cell
    if s.first_sheep[cell] != NOBODY:
        s.grass[cell] = 0
    elif quarter(y, x, p) == s.watered[0] and s.grass[cell] < RIPE and uniform(key, y * p.side + x, 0.0, 1.0) < p.growth:
        s.grass[cell] += 1


# %% [markdown]
# A *reduction* is a phase that combines the elements of a set. `sum_of("eaten", food_of, over="sheep")` writes a number of the
# world. With `at` it writes one result for each element of another set: `min_of("first_sheep", number, over="sheep",
# at=cell_of_sheep)` writes to each cell the lowest number of the sheep that `cell_of_sheep` sends there. `max_of`, `count_of`,
# `any_of`, `all_of` and `argmin_of` are the others.


# %%
def number(i: int, s: State, p: Params) -> int:
    return i


def food_of(i: int, s: State, p: Params) -> int:
    return s.food[i]


def is_sheep(i: int, s: State, p: Params) -> bool:
    return True


def cell_of_sheep(i: int, s: State, p: Params) -> tuple[int, int]:
    return s.y[i], s.x[i]


def quarter_of_sheep(i: int, s: State, p: Params) -> int:
    return quarter(s.y[i], s.x[i], p)


def grass_of(cell: tuple[int, int], s: State, p: Params) -> int:
    return s.grass[cell]


def quarter_of_cell(cell: tuple[int, int], s: State, p: Params) -> int:
    y, x = cell
    return quarter(y, x, p)


FIND_SHEEP = min_of("first_sheep", number, over="sheep", at=cell_of_sheep)
COUNT = (
    sum_of("quarter_grass", grass_of, over="cells", at=quarter_of_cell),
    count_of("quarter_sheep", is_sheep, over="sheep", at=quarter_of_sheep),
    sum_of("eaten", food_of, over="sheep"),
)
RESET = (each("farmer", reset_farmer), each("sheep", reset_sheep), each("cells", reset_cell), FIND_SHEEP, *COUNT)
PHASES = (each("farmer", water), each("sheep", walk), FIND_SHEEP, each("sheep", eat), each("cells", grow), *COUNT)

# %% [markdown]
# ## Rewards, masks and metrics
#
# Functions may differ between roles. The farmer is rewarded for what all sheep eat, and a sheep for its own food. `terminated`
# is a vote, and here the episode ends only by the limit of steps.
#
# `allowed` declares which actions an agent may choose: a sheep does not walk against the fence. Players and learners then
# choose among the allowed actions. `metrics` returns numbers that say what happened. The annotation of each says how the engine
# combines it over an episode.


# %%
def farmer_reward(i: int, s: State, t: Time, p: Params) -> float:
    return np.float32(s.eaten)


def sheep_reward(i: int, s: State, t: Time, p: Params) -> float:
    return np.float32(s.food[i])


def terminated(i: int, s: State, p: Params) -> bool:
    return False


def allowed(i: int, action: int, s: State, p: Params) -> bool:
    y, x = target(i, action, s, p)
    return is_inside(y, x, p)


class Metrics(NamedTuple):
    eaten: Annotated[float, "sum"]
    grass: Annotated[float, "mean"]  # of all cells


def metrics(s: State, p: Params) -> Metrics:
    grass = 0
    for k in range(QUARTERS):
        grass += s.quarter_grass[k]
    return Metrics(np.float32(s.eaten), np.float32(grass))


# %% [markdown]
# ## Observations
#
# The farmer observes numbers, its own features and a block with two for each quarter. A sheep observes an image: the cells
# around it, with channels for grass, for sheep and for cells beyond the fence. `pixel` computes all channels of one pixel. The
# shapes and dtypes are those of the spaces.


# %%
def farmer_features(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (np.float32(s.eaten) / np.float32(RIPE * p.num_sheep),)


def quarter_features(i: int, k: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    grass = np.float32(s.quarter_grass[k]) / np.float32(RIPE * p.side * p.side)
    return grass, np.float32(s.quarter_sheep[k]) / np.float32(p.num_sheep)


def sheep_pixel(i: int, cell: tuple[int, int], s: State, t: Time, p: Params) -> tuple[int, int, int]:
    y, x = s.y[i] + cell[0] - p.sight, s.x[i] + cell[1] - p.sight
    if not is_inside(y, x, p):
        return 0, 0, 255
    return 85 * s.grass[y, x], 255 if s.first_sheep[y, x] != NOBODY else 0, 0


def observation(p: Params) -> dict[str, Observation]:
    farmer = Observation(farmer_features, blocks=(Features("quarters", quarter_features),))
    return {"farmer": farmer, "sheep": Observation(pixel=sheep_pixel)}


def spaces(p: Params) -> dict[str, tuple[Box, Discrete]]:
    size = 2 * p.sight + 1
    return {
        "farmer": (Box(0.0, 1.0, (1 + 2 * QUARTERS,)), Discrete(QUARTERS)),
        "sheep": (Box(0, 255, (3, size, size), np.uint8), Discrete(5)),
    }


def draw(s: State, p: Params) -> np.ndarray:
    """The meadow, 20 x 20 pixels for each cell: bare ground is brown, watered grass is bluish, and sheep are white."""
    grass = s.grass[..., None] / RIPE
    picture = np.array([200, 180, 140]) * (1 - grass) + np.array([60, 150, 60]) * grass
    rows, columns = np.indices(s.grass.shape)
    picture[quarter(rows, columns, p) == s.watered[0]] += np.array([0, 0, 60])
    picture[s.y, s.x] = 255
    return picture.clip(0, 255).astype(np.uint8).repeat(20, 0).repeat(20, 1)


GAME = dict(
    state=State, params=Params(), spaces=spaces, agents=agents, roles=roles, sets=sets, reset=RESET,
    reward={"farmer": farmer_reward, "sheep": sheep_reward}, terminated=terminated, allowed={"sheep": allowed},
    metrics=metrics, observation=observation, structural=("num_sheep", "side", "sight"), max_episode_steps=100, draw=draw,
)  # fmt: skip
ENV = MultiAgentEnv(phases=PHASES, **GAME)
gpuvec.register("my/Meadow-v0", ENV)

# %% [markdown]
# Observations, actions and masks are dicts by role:

# %%
envs = gymnasium.make_vec("my/Meadow-v0", num_envs=16)
obs, infos = envs.reset(seed=0)
for role, array in obs.items():
    print(f"{role:6}  {envs.single_action_space[role]}, observations {tuple(array.shape)} {array.dtype}")
print(f"masks of {', '.join(infos['action_mask'])}, metrics {', '.join(envs.metric_names)}")
device = envs.device
envs.close()

# %% [markdown]
# ## A race
#
# Suppose that the sheep wrote that the grass is gone. Two sheep on the same cell would write the same element at the same time,
# and another sheep might read it before or after. `check_env` plays the game element by element and records every read and
# write:

# %%
from gpuvec.testing import check_env


def devour(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.food[i] = s.grass[s.y[i], s.x[i]]
    s.grass[s.y[i], s.x[i]] = 0


try:
    check_env(MultiAgentEnv(phases=(each("sheep", walk), each("sheep", devour), FIND_SHEEP, *COUNT), **GAME), kernels=False)
except gpuvec.errors.AuthoringError as error:
    message = str(error).partition("line ")[2]
assert "grass belongs to 'cells'" in message
print(message)

# %% [markdown]
# This is the check of the environment as written above. Without `kernels=False` it is also compiled for a GPU, which takes the
# longest:

# %%
for check in check_env(ENV, kernels=False):
    print(f"{'ok  ' if check.ran else 'left'}  {check.name:12}  {check.detail}")

# %% [markdown]
# ## Train both roles
#
# Each role gets its own policy and settings. A policy for images has a convolution. Both learn at the same time. The metrics of
# the environment are logged beside the returns.

# %%
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random, by_role, policy
from gpuvec.learners.ppo import PPOArgs, train

args = PPOArgs(
    env="my/Meadow-v0", num_envs=32, num_steps=50, num_iterations=40, num_minibatches=8, hidden=(32,), learning_rate=5e-3,
    gamma=0.9, gae_lambda=0.9, device=device,
)  # fmt: skip
result = train({"farmer": args, "sheep": args})
for iteration in result.history[3::4]:
    steps, sheep_return, eaten = (iteration[name] for name in ("steps", "sheep/return", "metrics/eaten"))
    print(f"{steps:6} steps  return of a sheep {sheep_return:5.1f}  eaten by all sheep {eaten:5.1f}")

# %% [markdown]
# Evaluate each role with a partner that acts at random:

# %%
farmer, sheep = (policy(result.networks[role], greedy=False) for role in ("farmer", "sheep"))
chance = at_random()
eaten = {}
for name, players in {
    "nobody": (chance, chance), "the farmer": (farmer, chance), "the sheep": (chance, sheep), "both": (farmer, sheep)
}.items():  # fmt: skip
    games = run_episodes(
        "my/Meadow-v0", by_role(dict(zip(("farmer", "sheep"), players, strict=True))), episodes=100, seed=1, device=device
    )
    eaten[name] = games.metrics["eaten"].mean().item()
    print(
        f"{name:10} trained: the sheep eat {eaten[name]:5.1f}, and the meadow has {games.metrics['grass'].mean():5.1f} of grass"
    )

assert eaten["the sheep"] > 2.0 * eaten["nobody"]
assert eaten["both"] > 1.05 * eaten["the sheep"]

# %% [markdown]
# Sheep learn to walk to grass that they see. The farmer learns to water the quarter where sheep can use it.
#
# ## Look at an episode
#
# An episode of both trained policies, as an animation.

# %%
envs = gymnasium.make_vec("my/Meadow-v0", num_envs=4)
with torch.no_grad():
    (episode,) = gpuvec.fetch_episode(envs, by_role({"farmer": farmer, "sheep": sheep})(envs), rows=[2], seed=3)
envs.close()
frames = []
for t in range(len(episode.rewards) + 1):
    state = State(**{name: episode.states[name][t] for name in State._fields})
    frames.append(Image.fromarray(draw(state, ENV.params)).quantize(16))
print(f"{len(episode.rewards)} steps; the sheep ate {episode.rewards[:, 0].sum():.0f}")


class Film:
    """Pictures one after the other, for a page or a notebook."""

    def __init__(self, frames, milliseconds=120):
        file = io.BytesIO()
        frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
        self.data = base64.b64encode(file.getvalue()).decode()

    def _repr_html_(self):
        return f'<img alt="sheep on a meadow, a quarter of which is watered" src="data:image/gif;base64,{self.data}">'


Film(frames)

# %% [markdown]
# The same file plays 65,536 meadows at once on a GPU. Agents that leave the game, join it or take turns, and searches for the
# nearest agents, are described in [many agents](../concepts/many_agents.md).
#
# **Next:** [tables, fields for pairs and masks](constants_and_pairs.py), [training](training.py), or
# [publish your environment as a package](package.py).
