"""TagGridWorld: taggers chase one runner on a grid of cells.

Observation: with `use_full_observation` the columns of all agents, their rows, their roles (0 tagger, 1 runner), 1 for the
    agent itself and 0 for the others, and the time. Without it the agent's own column and row, those of one other agent, its
    own role, and the time. The other agent is the runner for a tagger, and the nearest tagger for the runner (of equally near
    ones the one with the lower id). Columns and rows are divided by `grid_length`, the time by the limit of steps.
Action: 0 stays, 1 and 2 increase and decrease the column by 1, 3 and 4 the row. A move off the grid is clipped.
Reward: in the step of the tag `tag_reward_for_tagger` for every tagger and -`tag_penalty_for_runner` for the runner, in every
    other step -`step_cost_for_tagger` for taggers and `step_cost_for_tagger` for the runner. A clipped move adds
    -`wall_hit_penalty`.
Termination: a tagger is in the runner's cell. Agents that exchange their cells do not tag.
Parameters: penalties and costs are positive numbers. A reset draws all cells uniformly; no tagger gets the runner's cell.
Source: the rules of TagGridWorld in WarpDrive (Lan, Srinivasa, Wang and Zheng, 2022, "WarpDrive: fast end-to-end deep
    multi-agent reinforcement learning on a GPU"), which starts all episodes in the same state.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Ints, Key, MultiAgentEnv, Observation, Time, any_of, argmin_of, fraction, randint
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one

TAGGER, RUNNER = 0, 1  # roles
INFINITY = math.inf


class State(NamedTuple):
    x: Ints  # column, 0 to grid_length
    y: Ints  # row
    hit_wall: Bools  # whether the last move was clipped
    tagged: bool  # whether a tagger is in the runner's cell
    nearest_tagger: int  # the tagger that is nearest to the runner; written for partial observations
    role: Ints
    agents_by_role: Ints


class Params(NamedTuple):
    num_taggers: int = 10
    grid_length: int = 10  # the largest column and row; the smallest are 0
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
    cell = randint(key, runner, 0, side * side)  # the runner's
    # All agents draw a second number, though the runner does not use it: so a GPU computes both draws together.
    draw = i if i != runner else agents(p)
    other_cell = randint(key, draw, 0, side * side - 1)
    # A tagger gets one of the cells other than the runner's.
    if i != runner:
        cell = other_cell + 1 if other_cell >= cell else other_cell
    # A GPU divides numbers of 32 bits faster than those of 64.
    cell_u32, side_u32 = np.uint32(cell), np.uint32(side)
    s.x[i], s.y[i], s.hit_wall[i] = cell_u32 % side_u32, cell_u32 // side_u32, False


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    # A GPU computes int64 in several instructions.
    x = np.int32(s.x[i] + (1 if action == 1 else -1 if action == 2 else 0))
    y = np.int32(s.y[i] + (1 if action == 3 else -1 if action == 4 else 0))
    first, last = np.int32(0), np.int32(p.grid_length)
    s.x[i], s.y[i] = min(max(x, first), last), min(max(y, first), last)
    s.hit_wall[i] = x != s.x[i] or y != s.y[i]


def is_tagging(i: int, s: State, p: Params) -> bool:
    """Returns whether agent i is a tagger in the runner's cell."""
    runner = s.agents_by_role[p.num_taggers]
    return bool(i != runner and s.x[i] == s.x[runner] and s.y[i] == s.y[runner])


def reward(i: int, s: State, t: Time, p: Params) -> float:
    wall = p.wall_hit_penalty if s.hit_wall[i] else 0.0
    if s.role[i] == TAGGER:
        return (p.tag_reward_for_tagger if s.tagged else -p.step_cost_for_tagger) - wall
    return (-p.tag_penalty_for_runner if s.tagged else p.step_cost_for_tagger) - wall


def terminated(i: int, s: State, p: Params) -> bool:
    return s.tagged


def role_feature(i: int, s: State) -> float:
    return 1.0 if s.role[i] == RUNNER else 0.0


def time(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (fraction(t.step, t.limit),)


def other_features(i: int, j: int, s: State, t: Time, p: Params) -> tuple[float, float, float, float]:
    return fraction(s.x[j], p.grid_length), fraction(s.y[j], p.grid_length), role_feature(j, s), 1.0 if i == j else 0.0


def squared_distance_to_runner(i: int, s: State, p: Params) -> float:
    """Returns the squared distance of tagger i from the runner, and infinity for the runner itself."""
    j = s.agents_by_role[p.num_taggers]
    if i == j:
        return INFINITY
    x, y = np.float32(s.x[i]) - np.float32(s.x[j]), np.float32(s.y[i]) - np.float32(s.y[j])
    return x * x + y * y  # type: ignore[return-value]  # float32


def partial_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float, float, float, float]:
    """Returns a partial observation."""
    length = p.grid_length
    j = s.nearest_tagger if s.role[i] == RUNNER else s.agents_by_role[p.num_taggers]
    x, y = fraction(s.x[i], length), fraction(s.y[i], length)
    return x, y, fraction(s.x[j], length), fraction(s.y[j], length), role_feature(i, s), fraction(t.step, t.limit)


def observation(p: Params) -> Observation:
    if p.use_full_observation:
        return Observation(time, other_features, max_neighbors=agents(p))
    return Observation(partial_features, neighbors=argmin_of("nearest_tagger", squared_distance_to_runner))


def feature_names(p: Params) -> list[str]:
    if not p.use_full_observation:
        return ["column", "row", "other column", "other row", "runner", "time"]
    return [f"{name} {j}" for name in ("column", "row", "runner", "self") for j in range(agents(p))] + ["time"]


def field_ranges(p: Params) -> dict[str, tuple[int, int]]:
    return {"x": (0, p.grid_length), "y": (0, p.grid_length)}


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0.0, 1.0, (4 * agents(p) + 1 if p.use_full_observation else 6,)), Discrete(5)


def check(p: Params) -> None:
    require_at_least_one(p, "num_taggers", "grid_length")
    if p.grid_length > 2896:
        raise ValueError(
            f"grid_length is {p.grid_length}; it must be at most 2896, for squares of distances to be exact in float32."
        )


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    runner = int(np.argmax(s.role == RUNNER))
    is_there = (s.x == s.x[runner]) & (s.y == s.y[runner]) & (s.role == TAGGER)
    taggers = np.flatnonzero(is_there).tolist()
    names = " and ".join(f"tagger {i}" for i in taggers)
    verb = "catches" if len(taggers) == 1 else "catch"
    return [("tag", f"{names} {verb} runner {runner}", (*taggers, runner))] if taggers else []


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    reset=reset,
    phases=(move, any_of("tagged", is_tagging)),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_taggers", "use_full_observation"),
    max_episode_steps=100,
    field_ranges=field_ranges,
    check=check,
    cuda_c="cuda_c/tag_grid_world.cu",
    draw=pictures.tag_grid_world,
    events=events,
    feature_names=feature_names,
    action_names=("stay", "right", "left", "up", "down"),
    render_fps=8,
)
