"""Environments with a critic's observation: agents that see noise, and a critic that sees the hidden target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Features, Floats, Ints, Key, MultiAgentEnv, Observation, SingleAgentEnv, Time, randint, register, uniform


class State(NamedTuple):
    signal: Floats  # what an agent sees: the hidden number with noise
    hidden: Ints  # 0 or 1, the action that is rewarded
    has_hit: Ints


class Params(NamedTuple):
    agents: int = 3
    noise: float = 1.0


def reset(i: int, s: State, key: Key, p: Params) -> None:
    s.hidden[i], s.has_hit[i] = randint(key, 2 * i, 0, 2), 0
    s.signal[i] = np.float32(s.hidden[i]) + uniform(key, 2 * i + 1, -p.noise, p.noise)


def act(i: int, s: State, action: int, key: Key, p: Params) -> None:
    s.has_hit[i] = 1 if action == s.hidden[i] else 0
    s.hidden[i] = randint(key, 2 * i, 0, 2)
    s.signal[i] = np.float32(s.hidden[i]) + uniform(key, 2 * i + 1, -p.noise, p.noise)


def reward(i: int, s: State, t: Time, p: Params) -> float:
    return np.float32(s.has_hit[i])


def observe(i: int, s: State, t: Time, p: Params) -> tuple[float]:
    return (s.signal[i],)


def hidden_of(i: int, j: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return np.float32(s.hidden[j]), 1.0 if i == j else 0.0


def critic_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return s.signal[i], np.float32(t.step)


GUESSERS = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)),
    agents=lambda p: p.agents,
    reset=reset,
    phases=(act,),
    reward=reward,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(observe),
    critic_observation=lambda p: Observation(critic_features, blocks=(Features("agents", hidden_of),)),
    structural=("agents",),
    max_episode_steps=5,
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
register("tests/Guesser-v0", GUESSER)
