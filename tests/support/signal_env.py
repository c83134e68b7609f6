"""A lamp and its watchers: roles with different observations, actions, masks and fields of their own.

A lamp emits one of `num_colors` colors, but not the one that it emitted last. Each watcher drifts along a line, and names a
color and a certainty; it is inactive beyond 1. Each runner changes its speed by two numbers of a Box.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpuvec import Floats, Ints, Key, MultiAgentEnv, Observation, Time, assign, each, register, sum_of, uniform
from gpuvec.observations import Features


class State(NamedTuple):
    energy: Floats  # of every agent
    color: Annotated[Ints, "lamp"]  # that the lamp emits, -1 at first
    brightness: Annotated[Floats, "lamp", 2]  # now and in the step before
    position: Annotated[Floats, "watcher"]
    guess: Annotated[Ints, "watcher", 2]  # a color, and a certainty
    speed: Annotated[Floats, "runner"]
    total: float  # sum of positions
    steps: int


class Params(NamedTuple):
    num_lamps: int = 1
    num_watchers: int = 3
    num_runners: int = 2
    num_colors: int = 4
    force: float = 0.25


def agents(p: Params) -> int:
    return p.num_lamps + p.num_watchers + p.num_runners


def roles(p: Params) -> dict[str, int]:
    return {"lamp": p.num_lamps, "watcher": p.num_watchers, "runner": p.num_runners}


def spaces(p: Params) -> dict[str, tuple[Any, Any]]:
    return {
        "lamp": (Box(-1e6, 1e6, (3 + p.num_watchers,)), Discrete(p.num_colors, start=1)),
        "watcher": (Box(-1e6, 1e6, (3 + 2 * p.num_lamps,)), MultiDiscrete([p.num_colors, 3])),
        "runner": (Box(-1e6, 1e6, (2,)), Box(-1.0, 1.0, (2,))),
    }


def reset_energy(i: int, s: State, key: Key, p: Params) -> None:
    s.energy[i] = uniform(key, i, 1.0, 2.0)


def reset_lamp(i: int, s: State, key: Key, p: Params) -> None:
    s.color[i] = -1
    s.brightness[i, 0], s.brightness[i, 1] = uniform(key, i, 0.0, 1.0), 0.0


def reset_watcher(i: int, s: State, key: Key, p: Params) -> None:
    s.position[i] = uniform(key, i, -1.0, 1.0)
    s.guess[i, 0], s.guess[i, 1] = 0, 0


def reset_runner(i: int, s: State, key: Key, p: Params) -> None:
    s.speed[i] = 0.0


def glow(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.color[i] = action
    s.brightness[i, 1] = s.brightness[i, 0]
    s.brightness[i, 0] = uniform(key, i, 0.0, 1.0)
    # The lamps are the first agents.
    s.energy[i] -= 0.125


def watch(i: int, s: State, action: tuple[int, int], key: Key, p: Params) -> None:
    s.guess[i, 0], s.guess[i, 1] = action[0], action[1]
    s.position[i] += p.force * uniform(key, i, -1.0, 1.0)
    s.energy[p.num_lamps + i] += 0.25


def run(i: int, s: State, action: tuple[float, float], key: Key, p: Params) -> None:
    s.speed[i] = min(max(s.speed[i] + action[0] - action[1], -4.0), 4.0)


def rest(i: int, s: State, key: Key, p: Params) -> None:
    """Phase of all agents, which receives no action."""
    s.energy[i] = min(s.energy[i], 8.0)


def position_of(i: int, s: State, p: Params) -> float:
    return s.position[i]


def count_step(s: State, key: Key, p: Params) -> int:
    return s.steps + 1


def lamp_reward(i: int, s: State, t: Time, p: Params) -> float:
    return -s.brightness[i, 0]


def watcher_reward(i: int, s: State, t: Time, p: Params) -> float:
    return 1.0 if s.guess[i, 0] + 1 == s.color[0] else 0.0


def runner_reward(i: int, s: State, t: Time, p: Params) -> float:
    return s.speed[i] + np.float32(i)  # type: ignore[return-value]  # a number


def terminated(i: int, s: State, p: Params) -> bool:
    return s.total > 1.5


def watcher_active(i: int, s: State, p: Params) -> bool:
    return s.position[i] < 1.0


def lamp_allowed(i: int, action: int, s: State, p: Params) -> bool:
    return action != s.color[i]


def watcher_allowed(i: int, action: tuple[int, int], s: State, p: Params) -> bool:
    return action[0] == 0 or action[1] <= 1 or s.position[i] > 0.0


def lamp_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float]:
    return s.brightness[i, 0], np.float32(s.color[i]), np.float32(t.step)  # type: ignore[return-value]  # numbers


def watched(i: int, slot: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (s.position[slot],)


def watcher_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float]:
    return s.position[i], s.energy[p.num_lamps + i], np.float32(i)  # type: ignore[return-value]  # numbers


def lamp_light(i: int, lamp: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return s.brightness[lamp, 0], s.brightness[lamp, 1]


def runner_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return s.speed[i], s.total


def observation(p: Params) -> dict[str, Observation]:
    return {
        "lamp": Observation(lamp_features, watched, p.num_watchers),
        "watcher": Observation(watcher_features, blocks=(Features("lamp", lamp_light),)),
        "runner": Observation(runner_features),
    }


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    roles=roles,
    reset=(reset_energy, each("lamp", reset_lamp), each("watcher", reset_watcher), each("runner", reset_runner)),
    phases=(
        each("lamp", glow),
        each("watcher", watch),
        each("runner", run),
        rest,
        sum_of("total", position_of, over="watcher"),
        assign("steps", count_step),
    ),
    reward={"lamp": lamp_reward, "watcher": watcher_reward, "runner": runner_reward},
    terminated=terminated,
    active={"watcher": watcher_active},
    allowed={"lamp": lamp_allowed, "watcher": watcher_allowed},
    observation=observation,
    structural=("num_lamps", "num_watchers", "num_runners", "num_colors"),
    max_episode_steps=12,
)
register("tests/Signal-v0", ENV)
