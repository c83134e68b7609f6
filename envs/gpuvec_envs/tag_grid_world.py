"""TagGridWorld: taggers close in on one runner on a grid of cells.

Observation: with `use_full_observation` the columns of all agents, their rows, their roles (0 tagger, 1 runner), a 1 at the
    agent itself and else 0, and the time. Without it the own column and row, those of another agent, the own role, and the
    time. The other is the runner for a tagger and the nearest tagger for the runner, the lower id of equally near ones.
    Columns and rows come as shares of `grid_length`, the time as share of the longest episode.
Action: 0 stays, 1 and 2 go a column up and down, 3 and 4 a row; a move off the grid is clipped.
Reward: in the step of the tag `tag_reward_for_tagger` for every tagger and -`tag_penalty_for_runner` for the runner, in any
    other -`step_cost_for_tagger` and +`step_cost_for_tagger`; -`wall_hit_penalty` on top for a move that was clipped.
Termination: a tagger stands in the runner's cell. To pass through each other is no tag.
Parameters: penalties and costs are positive numbers. A start draws all cells uniformly, the runner's never a tagger's.
Source: the rules of TagGridWorld in WarpDrive (Lan, Srinivasa, Wang and Zheng, 2022, "WarpDrive: fast end-to-end deep
    multi-agent reinforcement learning on a GPU"), whose starts are fixed.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Ints, Key, MultiAgentEnv, Observation, Time, any_of, argmin_of, fraction, randint
from gpuvec_envs import pictures
from gpuvec_envs.checks import at_least_one

TAGGER, RUNNER = 0, 1  # roles
INFINITY = math.inf


class State(NamedTuple):
    x: Ints  # column, 0 to grid_length
    y: Ints  # row
    hit_wall: Bools  # whether the last move was clipped
    tagged: bool  # whether a tagger stands in the runner's cell
    nearest_tagger: int  # to the runner, the lower id of equally near ones; with a partial observation
    role: Ints
    agents_by_role: Ints


class Params(NamedTuple):
    num_taggers: int = 10
    grid_length: int = 10  # cells have the numbers 0 to grid_length in both directions
    wall_hit_penalty: float = 0.1
    tag_reward_for_tagger: float = 10.0
    tag_penalty_for_runner: float = 2.0
    step_cost_for_tagger: float = 0.01
    use_full_observation: bool = True


def agents(p: Params) -> int:
    return p.num_taggers + 1


def roles(p: Params) -> dict[str, int]:
    return {"tagger": p.num_taggers, "runner": 1}


def reset(i: int, s: State, key: Key, p: Params) -> None:
    side = p.grid_length + 1
    runner = s.agents_by_role[p.num_taggers]
    cell = randint(key, runner, 0, side * side)
    mine = i if i != runner else agents(p)  # the runner's is not used, and nobody draws a number twice
    other = randint(key, mine, 0, side * side - 1)  # by all, so that a GPU reckons both draws at a time
    if i != runner:  # one of the cells without the runner's
        cell = other + 1 if other >= cell else other
    at, width = np.uint32(cell), np.uint32(side)  # a GPU divides 64 bits in pieces
    s.x[i], s.y[i], s.hit_wall[i] = at % width, at // width, False


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    x = np.int32(s.x[i] + (1 if action == 1 else -1 if action == 2 else 0))  # int32, as cells are: a GPU does int64 in pieces
    y = np.int32(s.y[i] + (1 if action == 3 else -1 if action == 4 else 0))
    first, last = np.int32(0), np.int32(p.grid_length)
    s.x[i], s.y[i] = min(max(x, first), last), min(max(y, first), last)
    s.hit_wall[i] = x != s.x[i] or y != s.y[i]


def tags(i: int, s: State, p: Params) -> bool:
    """Whether agent i is a tagger in the runner's cell."""
    runner = s.agents_by_role[p.num_taggers]
    return bool(i != runner and s.x[i] == s.x[runner] and s.y[i] == s.y[runner])


def reward(i: int, s: State, t: Time, p: Params) -> float:
    wall = p.wall_hit_penalty if s.hit_wall[i] else 0.0
    if s.role[i] == TAGGER:
        return (p.tag_reward_for_tagger if s.tagged else -p.step_cost_for_tagger) - wall
    return (-p.tag_penalty_for_runner if s.tagged else p.step_cost_for_tagger) - wall


def terminated(i: int, s: State, p: Params) -> bool:
    return s.tagged


def kind(i: int, s: State) -> float:
    return 1.0 if s.role[i] == RUNNER else 0.0


def time(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (fraction(t.step, t.limit),)


def other_features(i: int, j: int, s: State, t: Time, p: Params) -> tuple[float, float, float, float]:
    return fraction(s.x[j], p.grid_length), fraction(s.y[j], p.grid_length), kind(j, s), 1.0 if i == j else 0.0


def from_runner(i: int, s: State, p: Params) -> float:
    """How far tagger i is from the runner, squared."""
    j = s.agents_by_role[p.num_taggers]
    if i == j:
        return INFINITY
    x, y = np.float32(s.x[i]) - np.float32(s.x[j]), np.float32(s.y[i]) - np.float32(s.y[j])
    return x * x + y * y  # type: ignore[return-value]  # float32


def observe_one(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float, float, float, float]:
    """A partial observation."""
    length = p.grid_length
    j = s.nearest_tagger if s.role[i] == RUNNER else s.agents_by_role[p.num_taggers]
    x, y = fraction(s.x[i], length), fraction(s.y[i], length)
    return x, y, fraction(s.x[j], length), fraction(s.y[j], length), kind(i, s), fraction(t.step, t.limit)


def observation(p: Params) -> Observation:
    if p.use_full_observation:
        return Observation(time, other_features, max_neighbors=agents(p))
    return Observation(observe_one, neighbors=argmin_of("nearest_tagger", from_runner))


def field_ranges(p: Params) -> dict[str, tuple[int, int]]:
    return {"x": (0, p.grid_length), "y": (0, p.grid_length)}


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0.0, 1.0, (4 * agents(p) + 1 if p.use_full_observation else 6,)), Discrete(5)


def check(p: Params) -> None:
    at_least_one(p, "num_taggers", "grid_length")
    if p.grid_length > 2896:
        raise ValueError(
            f"grid_length is {p.grid_length}; it must be at most 2896, for squares of distances to be exact in float32."
        )


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    reset=reset,
    phases=(move, any_of("tagged", tags)),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_taggers", "use_full_observation"),
    max_episode_steps=100,
    field_ranges=field_ranges,
    check=check,
    cuda_c="cuda_c/tag_grid_world.cu",
    draw=pictures.tag_grid_world,
    render_fps=8,
)
