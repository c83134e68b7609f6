"""TagContinuous: taggers chase runners on a square; all steer by their acceleration and their turns.

Observation: seven features of others, one after the other, then the share of the episode's time that has passed. They are the
    differences to the agent itself in x and y [side * sqrt(2)], in speed and acceleration [max_speed] and in heading [turns],
    then 1 for a tagger, and 1 for who was in the game when the step began. The others are all, in order of their ids, or the
    nearest in the game, nearest first, with 0 where there are fewer. Who is out sees no differences, no time and nobody near.
Action: a level of acceleration and a level of turn; level 0 is none, the others are evenly spaced between min and max. With
    `continuous_actions` the two numbers themselves, clipped to what levels can say.
Reward: for an agent in the game `step_penalty_for_tagger` or `step_reward_for_runner`, and `edge_hit_penalty` at an edge. For
    each tag `tag_penalty_for_runner`, and `tag_reward_for_tagger` for the tagger. A runner that is in the game when the time
    is up, after the last tags, gets `end_of_game_reward_for_runner`.
Termination: no runner is in the game.
Parameters: penalties are numbers <= 0, turns are less than a full one. A runner is tagged by the nearest tagger (the lower id
    of equally near ones) if that is closer than `tagging_distance`. Skills scale the top speed. A start draws places uniformly
    and headings from four.
    `observe_self` adds before the time what differences to others leave open: 1 for a tagger, the own speed and acceleration
    [max_speed], and cosine and sine of the heading. A policy that all share needs its role (Gupta, Egorov and Kochenderfer,
    2017, "Cooperative multi-agent control using deep reinforcement learning"), and who does not know its heading cannot steer.
Source: the rules of TagContinuous in WarpDrive (Lan, Srinivasa, Wang and Zheng, 2022, "WarpDrive: fast end-to-end deep
    multi-agent reinforcement learning on a GPU"), whose starts are fixed.
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
from gpuvec_envs.checks import at_least_one, finite, less_than_a_turn, not_negative, ordered, positive

TAGGER, RUNNER = 0, 1  # roles
TURN, QUARTER = 2.0 * math.pi, 0.5 * math.pi
ROOT2 = math.sqrt(2.0)
INFINITY = math.inf


class State(NamedTuple):
    x: Floats  # [length]
    y: Floats
    speed: Floats  # [length/step]
    acceleration: Floats  # adds up over the actions until the speed meets a bound [length/step^2]
    heading: Floats  # [rad], from 0 to 2 pi
    alive: Bools  # in the game
    playing: Bools  # in the game when the step began
    hit_edge: Bools
    tagged_by: Ints  # a runner's tagger in this step, or -1
    role: Ints
    agents_by_role: Ints
    nearest: Annotated[Ints, "num_other_agents_observed", NearestNeighbors]


class Params(NamedTuple):
    num_taggers: int = 1
    num_runners: int = 10
    grid_length: float = 10.0  # side of the square
    max_speed: float = 1.0  # [length/step]
    max_acceleration: float = 1.0  # [length/step^2]
    min_acceleration: float = -1.0
    max_turn: float = 0.5 * math.pi  # [rad/step]
    min_turn: float = -0.5 * math.pi
    num_acceleration_levels: int = 10  # without the level for none
    num_turn_levels: int = 10
    skill_level_runner: float = 1.0
    skill_level_tagger: float = 1.0
    edge_hit_penalty: float = 0.0
    use_full_observation: bool = True
    num_other_agents_observed: int = 2  # without it
    tagging_distance: float = 0.01  # share of grid_length
    tag_reward_for_tagger: float = 1.0
    tag_penalty_for_runner: float = -1.0
    step_penalty_for_tagger: float = 0.0
    step_reward_for_runner: float = 0.0
    end_of_game_reward_for_runner: float = 1.0
    runner_exits_game_after_tagged: bool = True
    continuous_actions: bool = False
    observe_self: bool = False


class Known(Params):
    acceleration_levels: Floats
    turn_levels: Floats


def agents(p: Params) -> int:
    return p.num_taggers + p.num_runners


def roles(p: Params) -> dict[str, int]:
    return {"tagger": p.num_taggers, "runner": p.num_runners}


def levels(low: float, high: float, count: int) -> Floats:
    """None, then `count` levels from `low` to `high`, which are float32 before they are spaced out."""
    return np.array([0.0, *np.linspace(float(np.float32(low)), float(np.float32(high)), count)], np.float32)


def tables(p: Params) -> dict[str, Floats]:
    return {
        "acceleration_levels": levels(p.min_acceleration, p.max_acceleration, p.num_acceleration_levels),
        "turn_levels": levels(p.min_turn, p.max_turn, p.num_turn_levels),
    }


def reset(i: int, s: State, key: Key, p: Params) -> None:
    s.x[i], s.y[i] = uniform(key, 3 * i, 0.0, p.grid_length), uniform(key, 3 * i + 1, 0.0, p.grid_length)
    s.heading[i] = np.float32(randint(key, 3 * i + 2, 0, 4)) * QUARTER
    s.speed[i], s.acceleration[i] = 0.0, 0.0
    s.alive[i], s.playing[i], s.hit_edge[i], s.tagged_by[i] = True, True, False, -1


def clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


def steer(action: tuple[float, float], p: Known) -> tuple[float, float]:
    """(acceleration, turn) of an action."""
    if p.continuous_actions:
        acceleration = clip(np.float32(action[0]), min(p.min_acceleration, 0.0), max(p.max_acceleration, 0.0))
        return acceleration, clip(np.float32(action[1]), min(p.min_turn, 0.0), max(p.max_turn, 0.0))
    return p.acceleration_levels[np.int32(action[0])], p.turn_levels[np.int32(action[1])]


def turned(angle: float) -> float:
    """`angle % TURN` of one less than a turn outside, to the bit: a sum costs what a GPU pays for a tenth of a remainder."""
    if angle >= TURN:
        return angle - TURN
    return angle + TURN if angle < 0.0 else angle


def move(i: int, s: State, action: tuple[float, float], key: Key, p: Known) -> None:
    s.playing[i] = s.alive[i]
    acceleration, turn = steer(action, p)
    acceleration += s.acceleration[i]
    top = p.max_speed * (p.skill_level_tagger if s.role[i] == TAGGER else p.skill_level_runner)
    heading = turned(s.heading[i] + turn) if s.alive[i] else 0.0
    speed = clip(s.speed[i] + acceleration, 0.0, top) if s.alive[i] else 0.0
    s.heading[i], s.speed[i] = heading, speed
    s.acceleration[i] = 0.0 if speed <= 0.0 or speed >= top else acceleration

    sin, cos = sincos(heading)
    x, y = s.x[i] + speed * cos, s.y[i] + speed * sin
    s.x[i], s.y[i] = clip(x, 0.0, p.grid_length), clip(y, 0.0, p.grid_length)
    s.hit_edge[i] = x != s.x[i] or y != s.y[i]


def square(i: int, j: int, s: State) -> float:
    """The distance between agents i and j, squared."""
    return (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2  # type: ignore[no-any-return]  # float32


def tag(i: int, s: State, action: tuple[float, float], key: Key, p: Known) -> None:
    """A runner finds who tags it."""
    s.tagged_by[i] = -1
    if s.role[i] == RUNNER and s.playing[i]:
        least, tagger = INFINITY, -1
        for k in range(p.num_taggers):
            distance2 = square(i, s.agents_by_role[k], s)
            if distance2 < least:
                least, tagger = distance2, s.agents_by_role[k]
        if math.sqrt(least) < p.tagging_distance * p.grid_length:
            s.tagged_by[i] = tagger
            s.alive[i] = not p.runner_exits_game_after_tagged


def active(i: int, s: State, p: Known) -> bool:
    return bool(s.alive[i])


def reward(i: int, s: State, t: Time, p: Known) -> float:
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


def terminated(i: int, s: State, p: Known) -> bool:
    """No runner objects that is in the game."""
    return bool(s.role[i] == TAGGER or not s.alive[i])


def other_features(i: int, slot: int, s: State, t: Time, p: Known) -> tuple[float, float, float, float, float, float, float]:
    j = s.nearest[i, slot] if not p.use_full_observation else slot + 1 if slot >= i else slot
    if j < 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    sight = 1.0 if s.playing[i] else 0.0
    length, speed, turn = sight * (1.0 / (p.grid_length * ROOT2)), sight * (1.0 / (p.max_speed + 1e-10)), sight * (1.0 / TURN)
    return (
        (s.x[j] - s.x[i]) * length,
        (s.y[j] - s.y[i]) * length,
        (s.speed[j] - s.speed[i]) * speed,
        (s.acceleration[j] - s.acceleration[i]) * speed,
        (s.heading[j] - s.heading[i]) * turn,
        1.0 if s.role[j] == TAGGER else 0.0,
        1.0 if s.playing[j] else 0.0,
    )


def time(i: int, s: State, t: Time, p: Known) -> tuple[float]:
    return (fraction(t.step, t.limit) if s.playing[i] else 0.0,)


def itself_and_time(i: int, s: State, t: Time, p: Known) -> tuple[float, float, float, float, float, float]:
    if not s.playing[i]:
        return 1.0 if s.role[i] == TAGGER else 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    (sin, cos), speed = sincos(s.heading[i]), 1.0 / (p.max_speed + 1e-10)
    return 1.0 if s.role[i] == TAGGER else 0.0, s.speed[i] * speed, s.acceleration[i] * speed, cos, sin, time(i, s, t, p)[0]


def distance(i: int, j: int, s: State, p: Known) -> float:
    distance2, playing = square(i, j, s), s.playing[j]  # both are read at once, so that nobody waits between
    return distance2 if playing and i != j else INFINITY


def played(i: int, s: State, p: Known) -> bool:
    return bool(s.playing[i])


def observation(p: Params) -> Observation:
    own = itself_and_time if p.observe_self else time
    if p.use_full_observation:
        return Observation(own, other_features, agents(p) - 1)
    nearest = NearestNeighbors("nearest", distance, mask=played, position=("x", "y"), squared=True)
    return Observation(own, other_features, p.num_other_agents_observed, nearest)


def spaces(p: Params) -> tuple[Box, Box | MultiDiscrete]:
    most = max(1.0, 2.0 * p.skill_level_tagger, 2.0 * p.skill_level_runner)  # differences of speeds and of accelerations
    observation_space = Box(-most, most, (7 * observation(p).max_neighbors + (6 if p.observe_self else 1),))
    choices = tables(p).values()
    if p.continuous_actions:
        return observation_space, Box(np.array([x.min() for x in choices]), np.array([x.max() for x in choices]))
    return observation_space, MultiDiscrete([len(x) for x in choices])


def check(p: Params) -> None:
    at_least_one(p, "num_taggers", "num_runners", "num_acceleration_levels", "num_turn_levels", "num_other_agents_observed")
    positive(p, "grid_length")
    not_negative(p, "max_speed", "skill_level_runner", "skill_level_tagger", "tagging_distance")
    finite(p, "grid_length", "max_speed", "min_acceleration", "max_acceleration", "min_turn", "max_turn")
    ordered(p, "min_acceleration", "max_acceleration")
    ordered(p, "min_turn", "max_turn")
    less_than_a_turn(p, "min_turn", "max_turn")
    if not p.use_full_observation and p.num_other_agents_observed >= agents(p) - 1:
        raise ValueError(
            f"num_other_agents_observed is {p.num_other_agents_observed}; it must be less than the number of other agents, "
            f"{agents(p) - 1}: observe fewer, or all with use_full_observation=True."
        )


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
    cuda_c="cuda_c/tag_continuous.cu",
    draw=pictures.tag_continuous,
    render_fps=10,
)
