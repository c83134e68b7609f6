"""Guesses of a hidden number, 0 or 1, which an agent sees with noise or as an image, and a critic as it is.

Visitors join and leave according to a table: `COMES` says in which steps each agent is active.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import (
    Bools,
    Features,
    Floats,
    Ints,
    Key,
    MultiAgentEnv,
    Observation,
    SingleAgentEnv,
    Time,
    randint,
    register,
    uniform,
)

SIZE = 3  # of an image
COMES = np.array(  # [agent, steps since the start]
    [
        [1, 1, 1, 1, 1, 1, 1],  # is always active
        [0, 0, 1, 1, 1, 1, 1],  # joins
        [1, 1, 0, 0, 1, 1, 1],  # leaves, and joins again
        [1, 0, 0, 0, 0, 0, 0],  # leaves for good
    ],
    np.bool_,
)


class State(NamedTuple):
    signal: Floats  # what an agent sees: the hidden number with noise
    hidden: Ints  # 0 or 1, the action that is rewarded
    has_hit: Ints
    age: Ints  # steps since the start, of a visitor
    is_here: Bools


class Params(NamedTuple):
    agents: int = 3
    noise: float = 1.0
    has_images: bool = False  # whether an agent sees the number as an image


class Timetable(Params):
    comes: Bools


def hide(i: int, s: State, key: Key, p: Params) -> None:
    """Draws the next number and what the agent sees of it."""
    s.hidden[i] = randint(key, 2 * i, 0, 2)
    s.signal[i] = np.float32(s.hidden[i]) + uniform(key, 2 * i + 1, -p.noise, p.noise)


def reset(i: int, s: State, key: Key, p: Params) -> None:
    hide(i, s, key, p)
    s.has_hit[i], s.age[i], s.is_here[i] = 0, 0, True


def act(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.has_hit[i] = 1 if action == s.hidden[i] else 0
    hide(i, s, key, p)


def visit(i: int, s: State, p: Timetable) -> None:
    """The numbers of a visitor alternate."""
    s.hidden[i] = (i + s.age[i]) % 2
    s.signal[i] = np.float32(s.hidden[i])
    s.is_here[i] = p.comes[i, min(s.age[i], 6)]


def arrive(i: int, s: State, key: Key, p: Timetable) -> None:
    s.has_hit[i], s.age[i] = 0, 0
    visit(i, s, p)


def attend(i: int, s: State, action: int, key: Key, p: Timetable) -> None:
    s.has_hit[i] = 1 if action == s.hidden[i] else 0
    s.age[i] += 1
    visit(i, s, p)


def reward(i: int, s: State, t: Time, p: Params) -> float:
    return np.float32(s.has_hit[i])


def observe(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (s.signal[i],)


def pixel(i: int, cell: tuple[int, int], s: State, t: Time, p: Params) -> tuple[float, float]:
    """The number is a column of the first channel, and a hit the whole second channel."""
    return 1.0 if cell[1] == s.hidden[i] else 0.0, np.float32(s.has_hit[i])


def hidden_of(i: int, j: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return np.float32(s.hidden[j]), 1.0 if i == j else 0.0


def critic_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return s.signal[i], np.float32(t.step)


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0, 1, (2, SIZE, SIZE), np.uint8) if p.has_images else Box(-np.inf, np.inf, (1,)), Discrete(2)


GUESSERS = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=lambda p: p.agents,
    reset=reset,
    phases=(act,),
    reward=reward,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(pixel=pixel) if p.has_images else Observation(observe),
    critic_observation=lambda p: Observation(critic_features, blocks=(Features("agents", hidden_of),)),
    structural=("agents", "has_images"),
    max_episode_steps=5,
)
VISITORS = dataclasses.replace(
    GUESSERS,
    params=Params(agents=len(COMES)),
    reset=arrive,
    phases=(attend,),
    critic_observation=None,
    active=lambda i, s, p: s.is_here[i],
    tables=lambda p: {"comes": COMES},
    max_episode_steps=6,
)


class OneState(NamedTuple):
    signal: float
    hidden: int
    age: int


def first_state(key: Key, p: Params) -> OneState:
    hidden = randint(key, 0, 0, 2)
    return OneState(np.float32(hidden) + uniform(key, 1, -p.noise, p.noise), hidden, 0)  # type: ignore[arg-type]  # float32


def step(s: OneState, action: int, key: Key, p: Params) -> tuple[OneState, float, bool]:
    hidden = randint(key, 0, 0, 2)
    signal = np.float32(hidden) + uniform(key, 1, -p.noise, p.noise)
    return OneState(signal, hidden, s.age + 1), 1.0 if action == s.hidden else 0.0, s.age >= 3  # type: ignore[arg-type]  # float32


def hidden_features(i: int, s: OneState, t: Time, p: Params) -> tuple[float, float, float]:
    return s.signal, np.float32(s.hidden), np.float32(t.step)  # type: ignore[return-value]  # float32


GUESSER = SingleAgentEnv(
    state=OneState,
    params=Params(),
    reset=first_state,
    step=step,
    observe=lambda s, p: (s.signal,),
    spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)),
    critic_observation=lambda p: Observation(hidden_features),
    max_episode_steps=50,
)
register("tests/Guessers-v0", GUESSERS)
register("tests/Visitors-v0", VISITORS)
register("tests/Guesser-v0", GUESSER)
