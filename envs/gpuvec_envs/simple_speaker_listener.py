"""SimpleSpeakerListener: a speaker that knows the goal guides a listener, which moves and does not know it, by one word.

Observation: of the speaker, for each landmark 0.65 if it is the goal, and else 0.15; of the listener, its velocity, the
    landmarks relative to it, each as x and y, and for each word 1 if the speaker said it in the last step, and else 0.
Action: of the speaker, a word, one for each landmark; of the listener, 0 nothing, 1 accelerates left, 2 right, 3 down, 4 up.
Reward: minus the squared distance between the listener and the goal, for both.
Termination: never; an episode is truncated after 25 steps.
Parameters: a reset draws the goal, and all positions uniformly, x and y from -1 to 1. Nothing collides. The listener observes
    no word until the first step. The speaker does not move, and nobody observes where it is, so it has no position.
Source: the rules of simple_speaker_listener_v4 in MPE2, the multi-agent particle environments (Lowe et al., 2017, "Multi-agent
    actor-critic for mixed cooperative-competitive environments"; Mordatch and Abbeel, 2018, "Emergence of grounded
    compositional language in multi-agent populations").
"""

from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Floats, Ints, Key, MultiAgentEnv, Observation, Time, assign, each, randint, uniform
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one, require_finite, require_not_negative, require_positive

LEFT, RIGHT, DOWN, UP = 1, 2, 3, 4  # actions of the listener
NO_WORD = -1
GOAL_COLOR, OTHER_COLOR = 0.65, 0.15


class State(NamedTuple):
    word: Annotated[Ints, "speaker"]  # that the speaker said in the last step, or NO_WORD
    position: Annotated[Floats, "listener", 2]  # x and y [length]
    velocity: Annotated[Floats, "listener", 2]  # [length/s]
    landmark: Annotated[Floats, "landmarks", 2]  # position [length]
    goal: int  # a landmark


class Params(NamedTuple):
    num_landmarks: int = 3  # and words
    acceleration: float = 5.0  # of an action [length/s^2]
    damping: float = 0.25  # fraction of the velocity that is lost in a step, from 0 to 1
    dt: float = 0.1  # [s]


def agents(p: Params) -> int:
    return 2


def roles(p: Params) -> dict[str, int]:
    return {"speaker": 1, "listener": 1}


def sets(p: Params) -> dict[str, int]:
    return {"landmarks": p.num_landmarks}


def spaces(p: Params) -> dict[str, tuple[Box, Discrete]]:
    return {
        "speaker": (Box(OTHER_COLOR, GOAL_COLOR, (p.num_landmarks,)), Discrete(p.num_landmarks)),
        "listener": (Box(-np.inf, np.inf, (2 + 3 * p.num_landmarks,)), Discrete(5)),
    }


def reset_speaker(i: int, s: State, key: Key, p: Params) -> None:
    s.word[i] = NO_WORD


def reset_listener(i: int, s: State, key: Key, p: Params) -> None:
    for axis in range(2):
        s.position[i, axis], s.velocity[i, axis] = uniform(key, 2 * i + axis, -1.0, 1.0), 0.0


def reset_landmark(k: int, s: State, key: Key, p: Params) -> None:
    for axis in range(2):
        s.landmark[k, axis] = uniform(key, 2 * k + axis, -1.0, 1.0)


def choose_goal(s: State, key: Key, p: Params) -> int:
    return randint(key, 0, 0, p.num_landmarks)


def speak(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.word[i] = action


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    force_x = p.acceleration if action == RIGHT else -p.acceleration if action == LEFT else 0.0
    force_y = p.acceleration if action == UP else -p.acceleration if action == DOWN else 0.0
    velocity_x, velocity_y = s.velocity[i, 0], s.velocity[i, 1]
    s.position[i, 0] += velocity_x * p.dt
    s.position[i, 1] += velocity_y * p.dt
    s.velocity[i, 0] = velocity_x * (1.0 - p.damping) + force_x * p.dt
    s.velocity[i, 1] = velocity_y * (1.0 - p.damping) + force_y * p.dt


def reward(i: int, s: State, t: Time, p: Params) -> float:
    x, y = s.position[0, 0] - s.landmark[s.goal, 0], s.position[0, 1] - s.landmark[s.goal, 1]
    squared_distance: float = x * x + y * y
    return -squared_distance


def terminated(i: int, s: State, p: Params) -> bool:
    return False


def color(i: int, k: int, s: State, t: Time, p: Params) -> tuple[float]:
    """Returns what the speaker observes of landmark k."""
    return (GOAL_COLOR if k == s.goal else OTHER_COLOR,)


def last_color(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return color(i, p.num_landmarks - 1, s, t, p)


def element(i: int, k: int, s: State, t: Time, p: Params) -> tuple[float]:
    """Returns element k of the observation of the listener."""
    if k < 2:
        return (s.velocity[i, k],)
    if k < 2 + 2 * p.num_landmarks:
        landmark, axis = k // 2 - 1, k % 2
        return (s.landmark[landmark, axis] - s.position[i, axis],)
    return (1.0 if k - 2 - 2 * p.num_landmarks == s.word[0] else 0.0,)


def last_element(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return element(i, 1 + 3 * p.num_landmarks, s, t, p)


def observation(p: Params) -> dict[str, Observation]:
    # A neighbor has one feature here, so that a row has the order of the slots.
    colors = Observation(last_color, color, p.num_landmarks - 1) if p.num_landmarks > 1 else Observation(last_color)
    return {"speaker": colors, "listener": Observation(last_element, element, 1 + 3 * p.num_landmarks)}


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    squared = dict.fromkeys(("position", "velocity", "landmark"), (-1e6, 1e6))
    return squared | {"goal": (0, p.num_landmarks - 1), "word": (NO_WORD, p.num_landmarks - 1)}


def check(p: Params) -> None:
    require_at_least_one(p, "num_landmarks")
    require_positive(p, "dt")
    require_not_negative(p, "acceleration", "damping")
    require_finite(p, "acceleration", "dt")
    if p.damping > 1.0:
        raise ValueError(f"damping is {p.damping}; it must be at most 1.")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    return [("word", f"the speaker says word {s.word[0]}", (0,))] if s.word[0] != before.word[0] else []


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    sets=sets,
    reset=(
        each("speaker", reset_speaker),
        each("listener", reset_listener),
        each("landmarks", reset_landmark),
        assign("goal", choose_goal),
    ),
    phases=(each("speaker", speak), each("listener", move)),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_landmarks",),
    max_episode_steps=25,
    field_ranges=field_ranges,
    check=check,
    draw=pictures.simple_speaker_listener,
    events=events,
    render_fps=10,
)
