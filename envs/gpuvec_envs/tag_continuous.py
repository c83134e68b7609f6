"""TagContinuous: taggers chase runners on a square; all agents steer by acceleration and turn.

Observation: seven features of each of the others, then the elapsed fraction of the episode. The features are the differences to
    the agent itself in x and y [side * sqrt(2)], in speed and acceleration [max_speed] and in heading [turns], then 1 for a
    tagger, and 1 for an agent that was active when the step began. The others are all others in the order of their ids, or the
    nearest active ones in the order of their distance, with 0 for missing ones. An inactive agent observes no differences, no
    time and no nearest agents.
Action: a level of acceleration and a level of turn. Level 0 is none, the others are evenly spaced between min and max. With
    `continuous_actions` the two numbers themselves, clipped to the range of the levels.
Reward: for an active agent `step_penalty_for_tagger` or `step_reward_for_runner`, and `edge_hit_penalty` at an edge. For each
    tag `tag_penalty_for_runner`, and `tag_reward_for_tagger` for the tagger. A runner that is still active at the time limit
    gets `end_of_game_reward_for_runner`.
Termination: no runner is active.
Parameters: penalties are numbers <= 0, turns are less than 2 pi. A runner is tagged by the nearest tagger (of equally near ones
    the one with the lower id) if it is closer than `tagging_distance`. Skill levels scale the maximum speed. A reset draws
    uniform positions, and headings from four directions.
    `observe_self` adds five features before the time: 1 for a tagger, the agent's own speed and acceleration [max_speed], and
    cosine and sine of its heading. A policy that all agents share needs the role (Gupta, Egorov and Kochenderfer, 2017,
    "Cooperative multi-agent control using deep reinforcement learning"), and an agent needs its heading to steer.
Source: the rules of TagContinuous in WarpDrive (Lan, Srinivasa, Wang and Zheng, 2022, "WarpDrive: fast end-to-end deep
    multi-agent reinforcement learning on a GPU"), which starts all episodes in the same state.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from gpuvec import (
    Bools,
    Floats,
    Ints,
    Key,
    MultiAgentEnv,
    NearestNeighbors,
    Observation,
    Time,
    fraction,
    randint,
    sincos,
    uniform,
)
from gpuvec_envs import pictures
from gpuvec_envs.checks import (
    require_at_least_one,
    require_finite,
    require_less_than_a_turn,
    require_not_negative,
    require_ordered,
    require_positive,
)

TAGGER, RUNNER = 0, 1  # roles
TURN, QUARTER = 2.0 * math.pi, 0.5 * math.pi
ROOT2 = math.sqrt(2.0)
INFINITY = math.inf


class State(NamedTuple):
    x: Floats  # [length]
    y: Floats
    speed: Floats  # [length/step]
    acceleration: Floats  # the sum over actions, 0 when the speed reaches a bound [length/step^2]
    heading: Floats  # [rad], from 0 to 2 pi
    alive: Bools  # whether the agent is active
    playing: Bools  # whether the agent was active when the step began
    hit_edge: Bools
    tagged_by: Ints  # the tagger of a runner in this step, or -1
    role: Ints
    agents_by_role: Ints
    nearest: Annotated[Ints, "agents", "num_other_agents_observed", NearestNeighbors]


class Params(NamedTuple):
    num_taggers: int = 1
    num_runners: int = 10
    grid_length: float = 10.0  # side of the square
    max_speed: float = 1.0  # [length/step]
    max_acceleration: float = 1.0  # [length/step^2]
    min_acceleration: float = -1.0
    max_turn: float = 0.5 * math.pi  # [rad/step]
    min_turn: float = -0.5 * math.pi
    num_acceleration_levels: int = 10  # without level 0
    num_turn_levels: int = 10
    skill_level_runner: float = 1.0
    skill_level_tagger: float = 1.0
    edge_hit_penalty: float = 0.0
    use_full_observation: bool = True
    num_other_agents_observed: int = 2  # without use_full_observation
    tagging_distance: float = 0.01  # [grid_length]
    tag_reward_for_tagger: float = 1.0
    tag_penalty_for_runner: float = -1.0
    step_penalty_for_tagger: float = 0.0
    step_reward_for_runner: float = 0.0
    end_of_game_reward_for_runner: float = 1.0
    runner_exits_game_after_tagged: bool = True
    continuous_actions: bool = False
    observe_self: bool = False


class ParamsWithTables(Params):
    acceleration_levels: Floats
    turn_levels: Floats


def agents(p: Params) -> int:
    return p.num_taggers + p.num_runners


def roles(p: Params) -> dict[str, int]:
    return {"tagger": p.num_taggers, "runner": p.num_runners}


def make_levels(low: float, high: float, count: int) -> Floats:
    """Returns 0, then `count` evenly spaced levels from `low` to `high`, both rounded to float32."""
    return np.array([0.0, *np.linspace(float(np.float32(low)), float(np.float32(high)), count)], np.float32)


def tables(p: Params) -> dict[str, Floats]:
    return {
        "acceleration_levels": make_levels(p.min_acceleration, p.max_acceleration, p.num_acceleration_levels),
        "turn_levels": make_levels(p.min_turn, p.max_turn, p.num_turn_levels),
    }


def reset(i: int, s: State, key: Key, p: Params) -> None:
    s.x[i], s.y[i] = uniform(key, 3 * i, 0.0, p.grid_length), uniform(key, 3 * i + 1, 0.0, p.grid_length)
    s.heading[i] = np.float32(randint(key, 3 * i + 2, 0, 4)) * QUARTER
    s.speed[i], s.acceleration[i] = 0.0, 0.0
    s.alive[i], s.playing[i], s.hit_edge[i], s.tagged_by[i] = True, True, False, -1


def clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


def steer(action: tuple[float, float], p: ParamsWithTables) -> tuple[float, float]:
    """Returns (acceleration, turn) of an action."""
    if p.continuous_actions:
        acceleration = clip(np.float32(action[0]), min(p.min_acceleration, 0.0), max(p.max_acceleration, 0.0))
        return acceleration, clip(np.float32(action[1]), min(p.min_turn, 0.0), max(p.max_turn, 0.0))
    return p.acceleration_levels[np.int32(action[0])], p.turn_levels[np.int32(action[1])]


def wrap_heading(angle: float) -> float:
    """Returns `angle % TURN` for an angle in (-TURN, 2 TURN). On a GPU a remainder takes ten times as long as a sum."""
    if angle >= TURN:
        return angle - TURN
    return angle + TURN if angle < 0.0 else angle


def move(i: int, s: State, action: tuple[float, float], key: Key, p: ParamsWithTables) -> None:
    s.playing[i] = s.alive[i]
    acceleration, heading_change = steer(action, p)
    acceleration += s.acceleration[i]
    top_speed = p.max_speed * (p.skill_level_tagger if s.role[i] == TAGGER else p.skill_level_runner)
    heading = wrap_heading(s.heading[i] + heading_change) if s.alive[i] else 0.0
    speed = clip(s.speed[i] + acceleration, 0.0, top_speed) if s.alive[i] else 0.0
    s.heading[i], s.speed[i] = heading, speed
    s.acceleration[i] = 0.0 if speed <= 0.0 or speed >= top_speed else acceleration

    sin, cos = sincos(heading)
    x, y = s.x[i] + speed * cos, s.y[i] + speed * sin
    s.x[i], s.y[i] = clip(x, 0.0, p.grid_length), clip(y, 0.0, p.grid_length)
    s.hit_edge[i] = x != s.x[i] or y != s.y[i]


def squared_distance(i: int, j: int, s: State) -> float:
    """Returns the squared distance between agents i and j."""
    return (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2  # type: ignore[no-any-return]  # float32


def tag(i: int, s: State, action: tuple[float, float], key: Key, p: ParamsWithTables) -> None:
    """Phase in which each runner determines the agent that tags it."""
    s.tagged_by[i] = -1
    if s.role[i] == RUNNER and s.playing[i]:
        min_distance2, tagger = INFINITY, -1
        for k in range(p.num_taggers):
            distance2 = squared_distance(i, s.agents_by_role[k], s)
            if distance2 < min_distance2:
                min_distance2, tagger = distance2, s.agents_by_role[k]
        if math.sqrt(min_distance2) < p.tagging_distance * p.grid_length:
            s.tagged_by[i] = tagger
            s.alive[i] = not p.runner_exits_game_after_tagged


def active(i: int, s: State, p: ParamsWithTables) -> bool:
    return bool(s.alive[i])


def reward(i: int, s: State, t: Time, p: ParamsWithTables) -> float:
    if not s.playing[i]:
        return 0.0
    total = p.edge_hit_penalty if s.hit_edge[i] else 0.0
    if s.role[i] == TAGGER:
        total += p.step_penalty_for_tagger
        for k in range(p.num_taggers, p.num_taggers + p.num_runners):
            if s.tagged_by[s.agents_by_role[k]] == i:
                total += p.tag_reward_for_tagger
        return total
    total += p.step_reward_for_runner
    if s.tagged_by[i] >= 0:
        total += p.tag_penalty_for_runner
    if t.step >= t.limit and s.alive[i]:
        total += p.end_of_game_reward_for_runner
    return total


def terminated(i: int, s: State, p: ParamsWithTables) -> bool:
    """Returns the vote of an agent: only an active runner votes against the end."""
    return bool(s.role[i] == TAGGER or not s.alive[i])


def other_features(
    i: int, slot: int, s: State, t: Time, p: ParamsWithTables
) -> tuple[float, float, float, float, float, float, float]:
    j = s.nearest[i, slot] if not p.use_full_observation else slot + 1 if slot >= i else slot
    if j < 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    # All differences of an inactive agent are 0.
    mask = 1.0 if s.playing[i] else 0.0
    length_scale = mask * (1.0 / (p.grid_length * ROOT2))
    speed_scale, heading_scale = mask * (1.0 / (p.max_speed + 1e-10)), mask * (1.0 / TURN)
    return (
        (s.x[j] - s.x[i]) * length_scale,
        (s.y[j] - s.y[i]) * length_scale,
        (s.speed[j] - s.speed[i]) * speed_scale,
        (s.acceleration[j] - s.acceleration[i]) * speed_scale,
        (s.heading[j] - s.heading[i]) * heading_scale,
        1.0 if s.role[j] == TAGGER else 0.0,
        1.0 if s.playing[j] else 0.0,
    )


def time(i: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float]:
    return (fraction(t.step, t.limit) if s.playing[i] else 0.0,)


def self_features_and_time(i: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float, float, float, float, float, float]:
    if not s.playing[i]:
        return 1.0 if s.role[i] == TAGGER else 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    (sin, cos), scale = sincos(s.heading[i]), 1.0 / (p.max_speed + 1e-10)
    return 1.0 if s.role[i] == TAGGER else 0.0, s.speed[i] * scale, s.acceleration[i] * scale, cos, sin, time(i, s, t, p)[0]


def distance(i: int, j: int, s: State, p: ParamsWithTables) -> float:
    # Both are loaded before the branch, so that a thread waits only once.
    distance2, playing = squared_distance(i, j, s), s.playing[j]
    return distance2 if playing and i != j else INFINITY


def searches(i: int, s: State, p: ParamsWithTables) -> bool:
    return bool(s.playing[i])


def observation(p: Params) -> Observation:
    self_features = self_features_and_time if p.observe_self else time
    if p.use_full_observation:
        return Observation(self_features, other_features, agents(p) - 1)
    nearest = NearestNeighbors("nearest", distance, mask=searches, position=("x", "y"), squared=True)
    return Observation(self_features, other_features, p.num_other_agents_observed, nearest)


def feature_names(p: Params) -> list[str]:
    others = ("dx", "dy", "d speed", "d acceleration", "d heading", "tagger", "active")
    own = ("own role", "own speed", "own acceleration", "cos of heading", "sin of heading") if p.observe_self else ()
    return [f"{name} {slot}" for name in others for slot in range(observation(p).max_neighbors)] + [*own, "time"]


def action_names(p: Params) -> list[str]:
    if p.continuous_actions:
        return ["acceleration", "turn"]
    levels = tables(p)
    names = {"accelerate": levels["acceleration_levels"], "turn": levels["turn_levels"]}
    return [f"{name} {level:+.2g}" for name, values in names.items() for level in values]


def spaces(p: Params) -> tuple[Box, Box | MultiDiscrete]:
    # The largest differences are those of speeds and of accelerations.
    high = max(1.0, 2.0 * p.skill_level_tagger, 2.0 * p.skill_level_runner)
    observation_space = Box(-high, high, (7 * observation(p).max_neighbors + (6 if p.observe_self else 1),))
    levels = tables(p).values()
    if p.continuous_actions:
        return observation_space, Box(np.array([x.min() for x in levels]), np.array([x.max() for x in levels]))
    return observation_space, MultiDiscrete([len(x) for x in levels])


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    return {"heading": (-1e6, 1e6)}  # A larger angle has no sine.


def check(p: Params) -> None:
    require_at_least_one(
        p, "num_taggers", "num_runners", "num_acceleration_levels", "num_turn_levels", "num_other_agents_observed"
    )
    require_positive(p, "grid_length")
    require_not_negative(p, "max_speed", "skill_level_runner", "skill_level_tagger", "tagging_distance")
    require_finite(p, "grid_length", "max_speed", "min_acceleration", "max_acceleration", "min_turn", "max_turn")
    require_ordered(p, "min_acceleration", "max_acceleration")
    require_ordered(p, "min_turn", "max_turn")
    require_less_than_a_turn(p, "min_turn", "max_turn")
    if not p.use_full_observation and p.num_other_agents_observed >= agents(p) - 1:
        raise ValueError(
            f"num_other_agents_observed is {p.num_other_agents_observed}; it must be less than the number of other agents, "
            f"{agents(p) - 1}: observe fewer, or all with use_full_observation=True."
        )


def events(before: State, s: State, p: ParamsWithTables) -> list[tuple[str, str, tuple[int, ...]]]:
    runners = np.flatnonzero(s.tagged_by >= 0).tolist()
    return [("tag", f"tagger {s.tagged_by[i]} catches runner {i}", (i, int(s.tagged_by[i]))) for i in runners]


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    tables=tables,
    reset=reset,
    phases=(move, tag),
    active=active,
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=(
        "num_taggers",
        "num_runners",
        "max_acceleration",
        "min_acceleration",
        "max_turn",
        "min_turn",
        "num_acceleration_levels",
        "num_turn_levels",
        "skill_level_runner",
        "skill_level_tagger",
        "use_full_observation",
        "num_other_agents_observed",
        "continuous_actions",
        "observe_self",
    ),
    max_episode_steps=100,
    check=check,
    field_ranges=field_ranges,
    cuda_c="cuda_c/tag_continuous.cu",
    draw=pictures.tag_continuous,
    events=events,
    feature_names=feature_names,
    action_names=action_names,
    render_fps=10,
)
