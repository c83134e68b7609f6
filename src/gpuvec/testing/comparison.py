"""Compiled runs against plain Python: every reset, step and observation, each from the compiled state before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.dialect import fault
from gpuvec.random import Key
from gpuvec.spec import Environment, Single, Time
from gpuvec.testing.differences import TOLERANCE, apart
from gpuvec.testing.plain import World, plainly
from gpuvec.testing.runs import Run, action_of, limit, stepping

DIFFERENT = 0.01  # the share of steps that may differ more: a comparison near its threshold, an angle near its wrap
CALLS = 200_000  # of author functions with many agents, about: some seconds; of larger games a part is compared
OBSERVERS = 16  # agents whose observations are compared


class Moment(NamedTuple):
    """What there is to compare of one row."""

    key: Key
    before: dict[str, Any]  # {field: (...)}
    after: dict[str, Any]
    action: Any


def check_plain(env: Environment, run: Run, seed: int) -> str:
    """Plays what was played as plain Python.

    Raises:
        AuthoringError: results that differ too often, the first of them.
    """
    rows = len(run.obs[0])
    if isinstance(env, Single):
        observers, share, step = None, 1.0, _single(env)
    else:
        world = World(env)
        observers = np.unique(np.linspace(0, len(world.agents) - 1, OBSERVERS).astype(int)).tolist()
        share = CALLS / (len(run.obs) * rows * _calls(world, len(observers)))
        step = _cooperative(world, observers, limit(len(run.reward)))
    taken = np.random.default_rng(seed).random((len(run.obs), rows)) < share
    episode, time = np.zeros(rows, int), np.zeros(rows, int)
    different = []
    for t, row in np.ndindex(taken.shape):
        if row == 0 and t > 0:  # an episode is numbered by the step that resets it
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(rows, bool)
            episode, time = np.where(over, t, episode), np.where(over, 0, time + 1)
        if not taken[t, row]:
            continue
        key = Key(seed & 0xFFFFFFFF, seed >> 32, row, int(episode[row]), int(time[row]))
        after, obs = {k: v[row] for k, v in run.states[t].items()}, run.obs[t][row]
        got = after | ({"observation": obs} if observers is None else {_observation(i): obs[i] for i in observers})
        before, action = after, None
        if key.step > 0:
            before, action = {k: v[row] for k, v in run.states[t - 1].items()}, run.actions[t - 1, row]
            got |= {"reward": run.reward[t - 1][row], "terminated": run.terminated[t - 1][row]}
            got |= {k: v[row] for k, v in run.infos[t - 1].items()}
        plain = step(Moment(key, before, after, action))
        wrong = next((found for name in plain for found in _unequal(name, plain[name], got[name])), None)
        if wrong is not None:
            different.append((stepping(env) if key.step else env.reset, t, row, *wrong))
    compared = int(taken.sum())
    if len(different) > DIFFERENT * compared:
        function, t, row, name, value, compiled = different[0]
        raise fault(
            function,
            f"{len(different)} of {compared} results are not plain Python's: after {t} steps {name} of environment {row} is "
            f"{compiled}, in plain Python {value}; use nothing that changes between calls, nor what float32 cannot resolve",
        )
    return f"{compared:,} resets and steps agree to {TOLERANCE}, but for {len(different)}"


def _unequal(name: str, plain: Any, compiled: Any) -> list[tuple[str, float, float]]:
    """The first place where both differ too much: its name and both values; nothing if there is none."""
    a, b = np.asarray(plain), np.asarray(compiled)
    wrong = np.argwhere(apart(a, b))
    if not len(wrong):
        return []
    index = tuple(wrong[0].tolist())
    place = f" {index[0]}" if name.endswith("observation") else str(list(index)) if index else ""
    return [(name + place, a[index].item(), b[index].item())]


def _single(env: Single) -> Callable[[Moment], dict[str, Any]]:
    """What plain Python makes of a moment."""

    def step(m: Moment) -> dict[str, Any]:
        before, after = (env.state(*(values[k].item() for k in env.state._fields)) for values in (m.before, m.after))
        if m.key.step == 0:
            plain = plainly(env.reset, m.key, env.params)._asdict()
        else:
            state, reward, over = plainly(env.step, before, action_of(m.action), m.key, env.params)
            plain = state._asdict() | {"reward": reward, "terminated": over}
        return {**plain, "observation": plainly(env.observe, after, env.params)}

    return step


def _cooperative(world: World, observers: Sequence[int], longest: int) -> Callable[[Moment], dict[str, Any]]:
    """Likewise of one of many agents, with the observations of some."""

    def step(m: Moment) -> dict[str, Any]:
        t, before, plain = Time(m.key.step, longest), world.state(m.before), {}
        if m.key.step == 0:
            state = world.reset(m.key, before)
        else:
            played = world.step(before, [action_of(a) for a in m.action], m.key, t)
            state = played.state
            plain = {"reward": played.reward, "terminated": played.votes.all()}
            plain |= {"agent_mask": played.mask, "agent_terminated": played.left}
        state, after = world.look(state, ()), world.look(world.state(m.after), observers)
        observations = zip(observers, world.rows(after, t, observers), strict=True)
        return plain | {k: getattr(state, k) for k in world.crowd.fields} | {_observation(i): row for i, row in observations}

    return step


def _observation(i: int) -> str:
    return f"agent {i}'s observation"


def _calls(world: World, observers: int) -> int:
    """About how many calls of author functions a step and the observations of some agents take."""
    agents, perception = len(world.agents), world.crowd.perception
    return agents * (len(world.env.phases) + 4) + observers * (perception.slots + (agents if world.crowd.search else 0) + 1)
