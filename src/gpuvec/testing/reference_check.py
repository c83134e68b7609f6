"""Compares resets, steps and observations of a compiled run with plain Python, each from the compiled state before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.phases import first_function
from gpuvec.spec import Environment, SingleAgentEnv, Time
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, author_action
from gpuvec.testing.compiled_runs.run_moments import Moment, RunMoments
from gpuvec.testing.draw_check import check_distinct_draws
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state, checked_value
from gpuvec.testing.reference.checked_draws import CheckedKey, record_draws
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.testing.target_check.differences import TOLERANCE, exceeds_tolerance

MAX_DIFFERENT_SHARE = 0.01  # of moments, for comparisons near a threshold and angles near their wrap
NUM_CALLS = 3_000  # of functions of a `SingleAgentEnv`
NUM_AGENT_CALLS = 40_000  # of functions of a `MultiAgentEnv`, approximately; they take some seconds
NUM_OBSERVERS = 16  # the number of agents whose observations are compared
Results = dict[str, Any]  # {name: value} of one environment


def check_against_reference(env: Environment, run: CompiledRun, seed: int) -> str:
    """Repeats resets and steps of a run in plain Python, checks every index, divisor, shift and draw, and compares the results.

    Args:
        env: the environment.
        run: its compiled results.
        seed: the seed of the run.

    Returns:
        What was compared, as text.

    Raises:
        AuthoringError: plain Python shows a fault, or results differ too often; the message names the first.
    """
    moments = RunMoments(run, seed)
    if isinstance(env, SingleAgentEnv):
        observers, count, repeat = None, NUM_CALLS // 2, _repeat_single(env)
    else:
        reference = PythonReference(env)
        observers = np.unique(np.linspace(0, len(reference.agents) - 1, NUM_OBSERVERS).astype(int)).tolist()
        count = max(1, NUM_AGENT_CALLS // _calls_per_moment(reference, len(observers)))
        repeat = _repeat_multi(reference, observers)
    different = []
    selected = sorted(moments.select(count))
    for t, row in selected:
        moment = moments.at(t, row)
        expected, compiled = repeat(moment), _compiled_results(run, moment, observers)
        places = (place for name in expected for place in _unequal(name, expected[name], compiled[name]))
        first = next(places, None)
        if first is not None:
            different.append((step_function(env) if moment.key.step else first_function(env.reset), t, row, *first))
    if len(different) > MAX_DIFFERENT_SHARE * len(selected):
        function, t, row, name, value, compiled_value = different[0]
        raise authoring_error(
            function,
            f"{len(different)} of {len(selected)} results differ from plain Python: after {t} steps {name} of environment "
            f"{row} is {compiled_value} compiled and {value} in plain Python; do not use what changes between calls, or "
            "differences that float32 cannot resolve",
        )
    return f"{len(selected):,} resets and steps agree to {TOLERANCE}, except {len(different)}"


def _compiled_results(run: CompiledRun, moment: Moment, observers: Sequence[int] | None) -> Results:
    """The compiled results of a reset or a step, with the observations of some agents."""
    t, row = moment.t, moment.row
    obs = run.obs[t][row]
    names: Results = {"observation": obs} if observers is None else {_obs_name(i): obs[i] for i in observers}
    results = moment.after | names
    if moment.key.step > 0:
        results |= {"reward": run.reward[t - 1][row], "terminated": run.terminated[t - 1][row]}
        results |= {k: v[row] for k, v in run.infos[t - 1].items()}
    return results


def _unequal(name: str, expected: ArrayLike, compiled: ArrayLike) -> list[tuple[str, float, float]]:
    """The name of the first element that differs by more than the tolerance, and both values; empty if there is none."""
    a, b = np.asarray(expected), np.asarray(compiled)
    is_wrong = np.argwhere(exceeds_tolerance(a, b))
    if not len(is_wrong):
        return []
    index = tuple(is_wrong[0].tolist())
    place = f" {index[0]}" if name.endswith("observation") else str(list(index)) if index else ""
    return [(name + place, a[index].item(), b[index].item())]


def _repeat_single(env: SingleAgentEnv) -> Callable[[Moment], Results]:
    """Returns a function that repeats a reset or a step of a `SingleAgentEnv`."""
    checked, p = CheckedFunctions().environment(env), checked_params(env.params)

    def repeat(m: Moment) -> Results:
        before, after = (
            checked_state(env.state(*(values[k].item() for k in env.state._fields))) for values in (m.before, m.after)
        )
        key = CheckedKey(*m.key)
        with record_draws() as draws:
            if m.key.step == 0:
                results = call_checked(checked.reset, key, p)._asdict()
            else:
                assert m.action is not None, "a step has an action"
                action = checked_value(author_action(m.action))
                state, reward, terminated = call_checked(checked.step, before, action, key, p)
                results = state._asdict() | {"reward": reward, "terminated": terminated}
        check_distinct_draws(env.step if m.key.step else first_function(env.reset), draws)
        return {**results, "observation": call_checked(checked.observe, after, p)}

    return repeat


def _repeat_multi(reference: PythonReference, observers: Sequence[int]) -> Callable[[Moment], Results]:
    """Returns a function that repeats a reset or a step of a `MultiAgentEnv`, with the observations of some agents."""

    def repeat(m: Moment) -> Results:
        t, before, results = Time(m.key.step, m.limit), reference.make_state(m.before), Results()
        if m.key.step == 0:
            state = reference.reset(m.key, before)
        else:
            assert m.action is not None, "a step has an action"
            result = reference.step(before, [author_action(a) for a in m.action], m.key, t)
            state = result.state
            results = {"reward": result.reward, "terminated": result.votes.all()}
            results |= {"agent_mask": result.mask, "agent_terminated": result.terminated}
        state = reference.prepare_observations(state, ())
        after = reference.prepare_observations(reference.make_state(m.after), observers)
        rows = zip(observers, reference.observations(after, t, observers), strict=True)
        fields = {k: getattr(state, k) for k in reference.schema.fields}
        return results | fields | {_obs_name(i): row for i, row in rows}

    return repeat


def _obs_name(i: int) -> str:
    return f"agent {i}'s observation"


def _calls_per_moment(reference: PythonReference, num_observers: int) -> int:
    """The approximate number of calls of author functions in a step with the observations of some agents."""
    num_agents, observation = len(reference.agents), reference.schema.observation
    candidates = num_agents if reference.schema.search else 0
    calls_per_observer = observation.max_neighbors + candidates + 1
    return num_agents * (len(reference.env.phases) + 4) + num_observers * calls_per_observer
