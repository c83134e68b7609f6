"""Resets and steps of a `MultiAgentEnv` in plain Python, in which every call is watched."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv, Reduction, Time
from gpuvec.testing.compiled_runs.compiled_run import Run, action_of, check_observations, check_reward, limit, random_actions
from gpuvec.testing.compiled_runs.run_moments import Moments
from gpuvec.testing.races.ownership import Ownership, differing
from gpuvec.testing.reference.checked_arrays import checked_value
from gpuvec.testing.reference.checked_draws import CheckedKey, recorded_draws
from gpuvec.testing.reference.python_reference import NotPlainError, PythonReference, checked_time, plainly

ROWS = 3  # envs that are played
STEPS = 4  # of each, before anything is compiled for play
OBSERVERS = 16  # agents whose observations are looked at in a step
MOMENTS = 150  # of a compiled run
ACCESSES = 200_000  # after which it is enough: some seconds
LEFT = {"f": np.nan, "i": np.iinfo(np.int32).max, "b": True}  # by kind of dtype: what stands in for a last episode


def check_races(env: MultiAgentEnv, steps: int, seed: int) -> dict[str, str]:
    """Plays a few envs for some steps; returns what was found, by check.

    Raises:
        AuthoringError: a fault in any function, with its line, and the agent and field that show it.
    """
    drawn = _check_starts(env)
    race_check = RaceCheck(env, limit(steps), seed)
    actions = random_actions(env, steps, ROWS, seed)
    for row in range(ROWS):
        race_check.begin(row)
    played = 0
    for t in range(steps):
        for row in range(ROWS):
            if race_check.rules.accesses < ACCESSES or played < ROWS:
                race_check.step(row, actions[t, row])
                played += 1
    return {
        "reset": "every element is written, and nothing of the last episode read",
        "ownership": f"in {played:,} steps of random play agents write their own elements alone",
        "order": "alone, in order and in reverse agents leave the same bits",
        "draws": f"reset draws {drawn} numbers; no two draws of a step have the same",
    }


def check_races_from(env: MultiAgentEnv, run: Run, seed: int) -> str:
    """Watches steps from states of a compiled run, those with rare states first; returns what was found.

    Raises:
        AuthoringError: a fault in any function, with its line, and the agent and field that show it.
    """
    moments, played = Moments(run, seed), 0
    race_check = RaceCheck(env, moments.at(0, 0).limit, seed)
    for t, row in moments.chosen(2 * MOMENTS):
        moment = moments.at(t, row)
        if moment.key.step > 0 and played < MOMENTS and (race_check.rules.accesses < ACCESSES or played < ROWS):
            race_check.step_from(moment.before, moment.action, moment.key)
            played += 1
    return f"in {played:,} steps from all of {len(run.reward):,} agents write their own elements alone"


def _check_starts(env: MultiAgentEnv) -> int:
    """Raises if all rows begin alike although `reset` draws numbers, of which it returns the number."""
    world = PythonReference(env)
    with recorded_draws() as draws:
        starts = [world.reset(CheckedKey(0, 0, row, 0, 0), world.state()) for row in range(8)]
    if draws and not any(differing(getattr(s, k), getattr(starts[0], k)) for s in starts for k in world.schema.array_fields):
        raise authoring_error(env.reset, "all rows begin alike although it draws numbers; draw with the key that it is given")
    return len(draws) // len(starts)


class RaceCheck:
    """Envs that are played, each with its state, its time and the number of its episode."""

    def __init__(self, env: MultiAgentEnv, limit: int, seed: int) -> None:
        self.seed, self._limit = seed, limit
        self.rules = Ownership(env)
        self._world = self.rules.world
        self.env = self._world.env
        self._random = np.random.default_rng(seed)
        self._states: dict[int, Any] = {}
        self._episodes = [0] * ROWS
        self._times = [0] * ROWS

    def begin(self, row: int) -> None:
        """An episode, in the first row with the default roles and in the others with any."""
        world, before = self._world, self._states.get(row)
        if before is None:
            before = world.state()
            if row > 0 and world.schema.roles:
                before = world.state({"role": self._random.permutation(before.role)})
        self._states[row] = self._observed(self._reset(self._key(row), before), self._times[row])

    def _key(self, row: int) -> CheckedKey:
        return CheckedKey(self.seed & 0xFFFFFFFF, self.seed >> 32, row, self._episodes[row], self._times[row])

    def _reset(self, key: CheckedKey, before: Any) -> Any:
        """Resets from zeros, and from what an episode could have left, which must give the same."""
        world = self._world
        own = {k: getattr(before, k) for k in ENGINE_FIELDS[:1] if world.schema.roles}
        blank = world.state(own)
        full = world.state(own | {k: np.full(b.shape, LEFT[np.dtype(b.dtype).kind]) for k, b in self._written().items()})
        self.rules.begin_step(blank)
        after = self.rules.run(self.env.reset, blank, lambda _: (key, world.p))
        other = world.reset(key.plain(), full)
        for name in self._written():
            for i in differing(getattr(after, name), getattr(other, name)):
                what = f"reset leaves {name}[{i}] as the last episode left it; write every element of every field"
                raise authoring_error(self.env.reset, what)
        return after

    def _written(self) -> dict[str, Any]:
        """The arrays that author code writes."""
        schema = self._world.schema
        return {k: b for k, b in schema.array_fields.items() if k not in (*ENGINE_FIELDS, *schema.search_fields)}

    def step(self, row: int, actions: Any) -> None:
        """A step of a row, and a reset when its episode is over."""
        self._times[row] += 1
        self._states[row], over = self._step(self._states[row], actions, self._key(row))
        if over or self._times[row] >= self._limit:
            self._episodes[row], self._times[row] = self._episodes[row] + 1, 0
            self.begin(row)

    def step_from(self, state: dict[str, Any], actions: Any, key: Key) -> None:
        """A step from that state, {field: values}, with (A, ...) actions."""
        self._step(self._world.state(state), actions, CheckedKey(*key))

    def reset_from(self, state: dict[str, Any], key: CheckedKey) -> None:
        """A reset after that state, {field: values}, and the observations after it."""
        self._observed(self._reset(key, self._world.state(state)), 0)

    def _step(self, s: Any, actions: Any, key: CheckedKey) -> tuple[Any, bool]:
        """(the state after a step, whether all vote for the end); another step begins where agents coincide."""
        world, t = self._world, Time(key.step, self._limit)
        given = [checked_value(action_of(action)) for action in actions]
        with suppress(NotPlainError):  # no play leads to that state, perhaps
            self._phases(self._coincident(s), given, key)
        mask = self._active(s)
        played = world.judged(self._phases(s, given, key), mask, t)
        self._active(played.state)
        check_reward(self.env, played.reward, [f"agent {i}" for i in world.agents], t.step)
        return self._observed(played.state, t.step), bool(played.votes.all())

    def _phases(self, s: Any, actions: list[Any], key: CheckedKey) -> Any:
        self.rules.begin_step(s)
        for phase in self.env.phases:
            if isinstance(phase, Reduction):
                s = self._world.phase(phase, self._world.copy(s), actions, key)
            else:
                s = self.rules.run(phase, s, lambda i: (actions[i], key, self._world.p))
        return s

    def _coincident(self, s: Any) -> Any:
        """`s`, but some agents are as others are, in the same place for example: what is rare in random play happens."""
        s, n = self._world.copy(s), len(self._world.agents)
        like = np.where(self._random.random(n) < 0.5, np.arange(n), self._random.integers(0, n, n))
        for name in self._written():
            getattr(s, name)[:] = getattr(s, name)[like]
        return s

    def _active(self, s: Any) -> Any:
        """Who is in the game, each by its own elements."""
        world, active = self._world, self.env.active
        mask = np.ones(len(world.agents), np.bool_)
        if active is None:
            return mask
        for i in world.agents:
            self.rules.forget()
            mask[i] = plainly(active, i, world.shown(s), world.p)
            for access in self.rules.log:
                if access.agent != i and access.field not in ENGINE_FIELDS:
                    what = f"active reads {access.field}[{access.agent}] for agent {i}, and may read {i}'s own elements alone"
                    raise authoring_error_at(access.file, access.line, f"{what}: have a phase write the answer to a field")
        return mask

    def _observed(self, s: Any, step: int) -> Any:
        """`s` after the observations of some agents, which are checked."""
        agents = self._random.permutation(len(self._world.agents))[:OBSERVERS].tolist()
        s, t = self._world.look(s, agents), checked_time(Time(step, self._limit))
        rows = self._world.rows(s, t, agents)
        check_observations(self.env, rows, [f"agent {i}" for i in agents], step)
        self.rules.forget()
        return s
