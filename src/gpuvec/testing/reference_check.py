"""Compiled runs against plain Python: every reset, step and observation, each from the compiled state before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.spec import Environment, SingleAgentEnv, Time
from gpuvec.testing.compiled_runs.compiled_run import Run, action_of, stepping
from gpuvec.testing.compiled_runs.run_moments import Moment, Moments
from gpuvec.testing.reference.checked_arrays import checked_value, watched
from gpuvec.testing.reference.checked_draws import CheckedKey, recorded_draws
from gpuvec.testing.reference.checked_functions import CheckedFunctions
from gpuvec.testing.reference.python_reference import PythonReference, checked_parameters, plainly
from gpuvec.testing.target_check.differences import TOLERANCE, apart
from gpuvec.testing.type_check.single_agent_types import check_distinct

DIFFERENT = 0.01  # the share of steps that may differ more: a comparison near its threshold, an angle near its wrap
CALLS = 3_000  # of the functions of a `SingleAgentEnv`
AGENT_CALLS = 40_000  # of author functions with many agents, about: some seconds; of larger games a part is compared
OBSERVERS = 16  # agents whose observations are compared


def check_plain(env: Environment, run: Run, seed: int) -> str:
    """Plays moments of a run again as plain Python, with every index, divisor, shift and draw checked.

    Raises:
        AuthoringError: a fault in plain Python, or results that differ too often, the first of them.
    """
    moments = Moments(run, seed)
    if isinstance(env, SingleAgentEnv):
        observers, count, step = None, CALLS // 2, _single(env)
    else:
        world = PythonReference(env)
        observers = np.unique(np.linspace(0, len(world.agents) - 1, OBSERVERS).astype(int)).tolist()
        count = max(1, AGENT_CALLS // _calls(world, len(observers)))
        step = _cooperative(world, observers)
    different = []
    chosen = sorted(moments.chosen(count))
    for t, row in chosen:
        moment = moments.at(t, row)
        obs = run.obs[t][row]
        got = moment.after | ({"observation": obs} if observers is None else {_observation(i): obs[i] for i in observers})
        if moment.key.step > 0:
            got |= {"reward": run.reward[t - 1][row], "terminated": run.terminated[t - 1][row]}
            got |= {k: v[row] for k, v in run.infos[t - 1].items()}
        plain = step(moment)
        wrong = next((found for name in plain for found in _unequal(name, plain[name], got[name])), None)
        if wrong is not None:
            different.append((stepping(env) if moment.key.step else env.reset, t, row, *wrong))
    if len(different) > DIFFERENT * len(chosen):
        function, t, row, name, value, compiled = different[0]
        raise authoring_error(
            function,
            f"{len(different)} of {len(chosen)} results are not plain Python's: after {t} steps {name} of environment {row} is "
            f"{compiled}, in plain Python {value}; use nothing that changes between calls, nor what float32 cannot resolve",
        )
    return f"{len(chosen):,} resets and steps agree to {TOLERANCE}, but for {len(different)}"


def _unequal(name: str, plain: Any, compiled: Any) -> list[tuple[str, float, float]]:
    """The first place where both differ too much: its name and both values; nothing if there is none."""
    a, b = np.asarray(plain), np.asarray(compiled)
    wrong = np.argwhere(apart(a, b))
    if not len(wrong):
        return []
    index = tuple(wrong[0].tolist())
    place = f" {index[0]}" if name.endswith("observation") else str(list(index)) if index else ""
    return [(name + place, a[index].item(), b[index].item())]


def _single(env: SingleAgentEnv) -> Callable[[Moment], dict[str, Any]]:
    """What plain Python makes of a moment."""
    checked, p = CheckedFunctions().environment(env), checked_parameters(env.params)

    def step(m: Moment) -> dict[str, Any]:
        before, after = (watched(env.state(*(values[k].item() for k in env.state._fields))) for values in (m.before, m.after))
        key = CheckedKey(*m.key)
        with recorded_draws() as draws:
            if m.key.step == 0:
                plain = plainly(checked.reset, key, p)._asdict()
            else:
                state, reward, over = plainly(checked.step, before, checked_value(action_of(m.action)), key, p)
                plain = state._asdict() | {"reward": reward, "terminated": over}
        check_distinct(env.step if m.key.step else env.reset, draws)
        return {**plain, "observation": plainly(checked.observe, after, p)}

    return step


def _cooperative(world: PythonReference, observers: Sequence[int]) -> Callable[[Moment], dict[str, Any]]:
    """What plain Python makes of a moment of many agents, with the observations of some."""

    def step(m: Moment) -> dict[str, Any]:
        t, before, plain = Time(m.key.step, m.limit), world.state(m.before), {}
        if m.key.step == 0:
            state = world.reset(m.key, before)
        else:
            played = world.step(before, [action_of(a) for a in m.action], m.key, t)
            state = played.state
            plain = {"reward": played.reward, "terminated": played.votes.all()}
            plain |= {"agent_mask": played.mask, "agent_terminated": played.left}
        state, after = world.look(state, ()), world.look(world.state(m.after), observers)
        observations = zip(observers, world.rows(after, t, observers), strict=True)
        return plain | {k: getattr(state, k) for k in world.schema.fields} | {_observation(i): row for i, row in observations}

    return step


def _observation(i: int) -> str:
    return f"agent {i}'s observation"


def _calls(world: PythonReference, observers: int) -> int:
    """About how many calls of author functions a step and the observations of some agents take."""
    agents, observation = len(world.agents), world.schema.observation
    return agents * (len(world.env.phases) + 4) + observers * (
        observation.max_neighbors + (agents if world.schema.search else 0) + 1
    )
