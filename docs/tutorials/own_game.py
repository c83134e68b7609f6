# %% [markdown]
# # Write an environment with many agents
#
# After this tutorial you have written an environment with two roles, checked that it has no races, trained a policy for each
# role, and looked at an episode.
#
# Sheep, wolves and berry bushes share a meadow. Sheep want berries and want to live. Wolves are slower than sheep, but there
# are two of them and they share what they catch. With many agents in one world, each phase of a step has to say which agent
# writes which element.
#
# ## State
#
# A field of type `Floats`, `Ints` or `Bools` has one element per agent; a plain `int`, `float` or `bool` field belongs to the
# world. Bushes are not agents. They need elements all the same, so element `i` of the bush fields is the bush that agent `i`
# looks after.

# %%
import base64
import io
import math
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

import gpuvec
from gpuvec import Bools, Canvas, Floats, Ints, Key, MultiAgentEnv, NearestNeighbors, Observation, Time, count_of, uniform

WOLF, SHEEP = 0, 1  # roles
INFINITY = math.inf


class State(NamedTuple):
    x: Floats  # [m]
    y: Floats
    alive: Bools  # in the game
    playing: Bools  # in the game when the step began
    caught_by: Ints  # a sheep's wolf in this step, or -1
    bush_x: Floats  # [m]
    bush_y: Floats
    eaten_by: Ints  # a bush's sheep in this step, or -1
    caught: int  # how many sheep were caught in this step
    rival: Annotated[Ints, "agents", "rivals", NearestNeighbors]  # the nearest of the other role
    role: Ints
    agents_by_role: Ints


class Params(NamedTuple):
    num_wolves: int = 2
    num_sheep: int = 4
    side: float = 10.0  # of the meadow [m]
    wolf_step: float = 0.35  # [m]
    sheep_step: float = 0.4  # [m]
    reach: float = 0.5  # of a mouth [m]
    fright: float = 3.0  # how many berries a life is worth
    rivals: int = 1  # how many of the other role one sees


def agents(p: Params) -> int:
    return p.num_wolves + p.num_sheep


def roles(p: Params) -> dict[str, int]:
    return {"wolf": p.num_wolves, "sheep": p.num_sheep}


# %% [markdown]
# The engine sets `role` and `agents_by_role`: the role of each agent, and the agents ordered by role, so that a loop over the
# wolves is one over `agents_by_role[0]` to `agents_by_role[num_wolves - 1]`.
#
# ## Phases
#
# A step is a list of phases. *All agents finish a phase before any agent begins the next*, so within a phase all agents act at
# the same time. A phase follows one rule:
#
# > **A phase for agent `i` writes only elements `[i]`, and reads no other agent's element of a field that it writes.**
#
# The order of agents then has no effect, with one GPU thread per agent or with a loop on a CPU. The rule determines how events
# are written: a wolf does not write that a sheep is caught; the sheep computes that it was caught, and by which wolf.


# %%
def reset(i: int, s: State, key: Key, p: Params) -> None:
    s.x[i], s.y[i] = uniform(key, 4 * i, 0.0, p.side), uniform(key, 4 * i + 1, 0.0, p.side)
    s.bush_x[i], s.bush_y[i] = uniform(key, 4 * i + 2, 0.0, p.side), uniform(key, 4 * i + 3, 0.0, p.side)
    s.alive[i], s.playing[i], s.eaten_by[i], s.caught_by[i] = True, True, -1, -1


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """Stay, right, left, up or down, and not beyond the fence."""
    s.playing[i] = s.alive[i]
    if s.alive[i]:
        length = p.wolf_step if s.role[i] == WOLF else p.sheep_step
        dx = length if action == 1 else -length if action == 2 else 0.0
        dy = length if action == 3 else -length if action == 4 else 0.0
        s.x[i], s.y[i] = min(max(s.x[i] + dx, 0.0), p.side), min(max(s.y[i] + dy, 0.0), p.side)


def within_reach(x: float, y: float, first: int, last: int, s: State, p: Params) -> int:
    """The nearest of members `first` to `last` - 1 that reaches (x, y), or -1."""
    least, found = p.reach * p.reach, -1
    for k in range(first, last):
        j = s.agents_by_role[k]
        square = (s.x[j] - x) ** 2 + (s.y[j] - y) ** 2
        if s.playing[j] and square < least:
            least, found = square, j
    return found


def graze(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """Bush i finds out who eats its berries; another grows elsewhere then."""
    s.eaten_by[i] = within_reach(s.bush_x[i], s.bush_y[i], p.num_wolves, agents(p), s, p)
    if s.eaten_by[i] >= 0:
        s.bush_x[i], s.bush_y[i] = uniform(key, 2 * i, 0.0, p.side), uniform(key, 2 * i + 1, 0.0, p.side)


def hunt(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """Sheep i finds out who catches it."""
    s.caught_by[i] = -1
    if s.role[i] == SHEEP and s.playing[i]:
        s.caught_by[i] = within_reach(s.x[i], s.y[i], 0, p.num_wolves, s, p)
        s.alive[i] = s.caught_by[i] < 0


def is_caught(i: int, s: State, p: Params) -> bool:
    return bool(s.caught_by[i] >= 0)


# %% [markdown]
# A *reduction* combines all agents: `count_of("caught", is_caught)` is a phase that counts the agents for which the function
# is true and writes a field of the world. `any_of`, `all_of` and `argmin_of` are the others.
#
# After the phases every agent gets a reward. Each sheep counts the bushes that name it; wolves share the count of caught sheep.
# `terminated` is a vote: the episode ends when all agents agree, here when no sheep is left. `active` says which agents are in
# the game.


# %%
def active(i: int, s: State, p: Params) -> bool:
    return bool(s.alive[i])


def reward(i: int, s: State, t: Time, p: Params) -> float:
    if s.role[i] == WOLF:
        return np.float32(s.caught)
    total = -p.fright if s.caught_by[i] >= 0 else 0.0
    for j in range(agents(p)):
        if s.eaten_by[j] == i:
            total += 1.0
    return total


def terminated(i: int, s: State, p: Params) -> bool:
    return bool(s.role[i] == WOLF or not s.alive[i])


# %% [markdown]
# ## Observations
#
# Every agent observes itself, the nearest bush, and the nearest agent of the other role. The nearest agent has to be searched
# for in every step and after every reset: declare the search with a distance, and the engine runs it before each observation.
# The distance is never less than the squared difference in `x` or in `y` alone, which `position` and `squared` declare: among
# many agents the engine then skips those that are too far away. `check_env` verifies the declaration.


# %%
def distance(i: int, j: int, s: State, p: Params) -> float:
    square = (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2
    return square if s.playing[j] and s.role[i] != s.role[j] else INFINITY


def observe(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float, float, float, float, float]:
    scale = 1.0 / p.side
    bush, least = 0, INFINITY
    for k in range(agents(p)):
        square = (s.bush_x[k] - s.x[i]) ** 2 + (s.bush_y[k] - s.y[i]) ** 2
        if square < least:
            bush, least = k, square
    berries = (s.bush_x[bush] - s.x[i]) * scale, (s.bush_y[bush] - s.y[i]) * scale
    j = s.rival[i, 0]
    if j < 0:
        return s.x[i] * scale, s.y[i] * scale, berries[0], berries[1], 0.0, 0.0, 0.0
    away = (s.x[j] - s.x[i]) * scale, (s.y[j] - s.y[i]) * scale
    return s.x[i] * scale, s.y[i] * scale, berries[0], berries[1], 1.0, away[0], away[1]


def observation(p: Params) -> Observation:
    return Observation(observe, neighbors=NearestNeighbors("rival", distance, position=("x", "y"), squared=True))


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-1.0, 1.0, (7,)), Discrete(5)


def draw(s: State, p: Params) -> np.ndarray:
    canvas = Canvas(240, 240, scale=22.0, origin=(10.0, 10.0))
    canvas.polygon([(0.0, 0.0), (p.side, 0.0), (p.side, p.side), (0.0, p.side)], (222, 238, 205))
    for x, y in zip(s.bush_x, s.bush_y, strict=True):
        canvas.circle((x, y), 0.2, (40, 130, 60))
    for k in np.argsort(s.alive):
        colour = (190, 190, 180) if not s.alive[k] else (190, 50, 40) if s.role[k] == WOLF else (250, 250, 250)
        canvas.circle((s.x[k], s.y[k]), 0.4, (90, 90, 90))
        canvas.circle((s.x[k], s.y[k]), 0.33, colour)
    return canvas.array()


GAME = dict(
    state=State, params=Params(), spaces=spaces, agents=agents, roles=roles, reset=reset, active=active, reward=reward,
    terminated=terminated, observation=observation, structural=("num_wolves", "num_sheep", "rivals"), max_episode_steps=100,
    draw=draw,
)  # fmt: skip
ENV = MultiAgentEnv(phases=(move, graze, hunt, count_of("caught", is_caught)), **GAME)
gpuvec.register("my/Meadow-v0", ENV)

# %% [markdown]
# ## A race
#
# Suppose that the wolf wrote that the sheep is dead. Two wolves that reach the same sheep would write the same element at the
# same time, and another agent might read it before or after. `check_env` plays the game agent by agent and records every read
# and write:

# %%
from gpuvec.testing import check_env


def kill(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.caught_by[i] = -1
    if s.role[i] == WOLF:
        j = within_reach(s.x[i], s.y[i], p.num_wolves, agents(p), s, p)
        if j >= 0:
            s.alive[j] = False


try:
    check_env(MultiAgentEnv(phases=(move, graze, kill, count_of("caught", is_caught)), **GAME))
except gpuvec.errors.AuthoringError as error:
    print(str(error).partition("line ")[2])
else:
    raise AssertionError("a phase wrote what belongs to another agent")

# %% [markdown]
# This is the check of the environment as written above. Without `kernels=False` it is also compiled for a GPU, which takes the
# longest:

# %%
for check in check_env(ENV, kernels=False):
    print(f"{'ok  ' if check.ran else 'left'}  {check.name:12}  {check.detail}")

# %% [markdown]
# ## Train both roles
#
# Each role gets its own policy and settings. Both learn at the same time, so returns rise and fall: what the wolves learn costs
# the sheep.

# %%
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random, by_role, policy
from gpuvec.learners.ppo import PPOArgs, train

device = gymnasium.make_vec("my/Meadow-v0", num_envs=1).device
args = PPOArgs(
    env="my/Meadow-v0", num_envs=32, num_steps=100, num_iterations=20, num_minibatches=8, hidden=(32, 32), learning_rate=1e-2,
    gamma=0.9, gae_lambda=0.9, device=device,
)  # fmt: skip
result = train({"wolf": args, "sheep": args})
for metrics in result.history[3::4]:
    print(f"{metrics['steps']:6} steps  wolf {metrics['wolf/return']:5.2f}  sheep {metrics['sheep/return']:5.2f}")

# %% [markdown]
# The returns of two policies that learn at the same time say little about either. Evaluate each role against random opponents:

# %%
wolves, sheep = (policy(result.networks[role], greedy=False) for role in ("wolf", "sheep"))
chance = at_random()
table = {}
for name, wolf, lamb in (
    ("nobody", chance, chance),
    ("wolves", wolves, chance),
    ("sheep", chance, sheep),
    ("both", wolves, sheep),
):
    games = run_episodes("my/Meadow-v0", by_role({"wolf": wolf, "sheep": lamb}), episodes=200, seed=1, device=device)
    flock = games.roles["sheep"]
    caught = games.terminated[:, flock].float().mean().item()
    berries = (games.returns[:, flock] + 3.0 * games.terminated[:, flock]).mean().item()
    table[name] = caught, berries
    print(f"{name:7} trained: {caught:6.1%} of the sheep are caught, and a sheep eats {berries:.1f} bushes")

assert table["wolves"][0] > 0.85 > 2 * table["nobody"][0]
worth = {name: berries - 3.0 * caught for name, (caught, berries) in table.items()}  # a sheep's own return
assert worth["sheep"] > worth["nobody"] + 0.5
assert worth["both"] > worth["wolves"] + 1.0

# %% [markdown]
# Wolves learn to hunt. Sheep learn where the berries are and, as far as a life is worth three of them, to keep away from
# wolves. How they weigh the two differs between seeds.

# %% [markdown]
# ## Look at an episode
#
# An episode of both trained policies, as an animation.

# %%
envs = gymnasium.make_vec("my/Meadow-v0", num_envs=4)
with torch.no_grad():
    (episode,) = gpuvec.fetch_episode(envs, by_role({"wolf": wolves, "sheep": sheep})(envs), rows=[2], seed=3)
frames = []
for t in range(len(episode.rewards) + 1):
    known = {name: values[t] for name, values in episode.states.items()}
    state = State(**{name: known.get(name) for name in State._fields})
    frames.append(Image.fromarray(draw(state, ENV.params)).quantize(16))
envs.close()
print(f"{len(episode.rewards)} steps; of 4 sheep {int(episode.states['alive'][-1][2:].sum())} are left")


class Film:
    """Pictures one after the other, for a page or a notebook."""

    def __init__(self, frames, milliseconds=120):
        file = io.BytesIO()
        frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
        self.data = base64.b64encode(file.getvalue()).decode()

    def _repr_html_(self):
        return f'<img alt="sheep and wolves on a meadow" src="data:image/gif;base64,{self.data}">'


Film(frames)

# %% [markdown]
# Sheep are white, wolves are red, and caught sheep are grey. The same file plays 65,536 meadows at once on a GPU.
#
# **Next:** [tables, fields for pairs and masks](constants_and_pairs.py), [training](training.py), or
# [publish your environment as a package](package.py).
