"""Compares resets, steps and observations of a compiled run with plain Python, each from the compiled state before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.observations import Time
from gpuvec.phases import first_function
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import METRIC, CompiledRun, Moment, RunMoments
from gpuvec.testing.draw_check import AgentDraws, check_distinct_draws, record_agent_draws
from gpuvec.testing.reference.author_calls import fault_place
from gpuvec.testing.reference.checked_functions import CheckedKey, Draw, record_draws
from gpuvec.testing.reference.python_reference import PythonReference, Results, index_set_of
from gpuvec.testing.target_check.differences import TOLERANCE, exceeds_tolerance

MAX_DIFFERENT_SHARE = 0.01  # of moments, for comparisons near a threshold and angles near their wrap
NUM_CALLS = 3_000  # of functions of a `SingleAgentEnv`
NUM_AGENT_CALLS = 40_000  # of functions of a `MultiAgentEnv`, approximately; they take some seconds
NUM_OBSERVERS = 16  # the number of agents whose observations are compared; one agent in further moments
GROUP_SIZE = 256  # the number of resets and steps whose results are compared at once


def check_against_reference(env: Environment, run: CompiledRun, seed: int, seconds: float = 0.0) -> str:
    """Repeats resets and steps of a run in plain Python, checks every index, divisor, shift and draw, and compares the results.

    Args:
        env: the environment.
        run: its compiled results.
        seed: the seed of the run.
        seconds: the CPU seconds for which further moments are repeated after a first selection.

    Returns:
        What was compared, as text.

    Raises:
        AuthoringError: plain Python shows a fault, or results differ too often; the message names the first.
    """
    moments, comparison, reference = RunMoments(run, seed), _Comparison(), PythonReference(env)
    num_agents, agents = len(reference.agents), None
    with record_draws() as draws:
        count, recorded = NUM_CALLS // 2, None
        if not reference.is_single_agent:
            recorded = record_agent_draws(reference, draws)
            observers = np.unique(np.linspace(0, num_agents - 1, NUM_OBSERVERS).astype(int)).tolist()
            count = max(1, NUM_AGENT_CALLS // _calls_per_moment(reference, len(observers)))
        for k, (t, row) in enumerate(moments.select(count, seconds)):
            moment = moments.at(t, row)
            if recorded is not None:
                agents = observers if k < count else [(t + row) % num_agents]
            with fault_place(moment.place()):
                expected = _repeat(reference, moment, agents, draws, recorded)
            comparison.add((t, row), expected, _compiled_results(run, moment, expected))
    different = sorted(comparison.different())
    if len(different) > MAX_DIFFERENT_SHARE * comparison.count:
        (t, row), name, value, compiled_value = different[0]
        function = step_function(env) if moments.times[t, row] else first_function(env.reset)
        raise authoring_error(
            function,
            f"{len(different)} of {comparison.count} results differ from plain Python: after {t} steps {name} of environment "
            f"{row} is {compiled_value} compiled and {value} in plain Python; do not use what changes between calls, or "
            "differences that float32 cannot resolve",
        )
    return f"{comparison.count:,} of {moments.times.size:,} resets and steps agree to {TOLERANCE}, except {len(different)}"


class _Comparison:
    """Compares results in groups, since a call of NumPy for each result takes longer than the functions of most authors."""

    def __init__(self) -> None:
        self.count = 0
        self._group: list[tuple[tuple[int, int], Results, Results]] = []
        self._different: list[tuple[tuple[int, int], str, float, float]] = []

    def add(self, place: tuple[int, int], expected: Results, compiled: Results) -> None:
        """Adds the results of a reset or a step.

        Args:
            place: (t, row) of it.
            expected: the results in plain Python.
            compiled: the compiled results of the same names.
        """
        self._group.append((place, expected, compiled))
        self.count += 1
        if len(self._group) >= GROUP_SIZE:
            self.different()

    def different(self) -> list[tuple[tuple[int, int], str, float, float]]:
        """Returns ((t, row), name, expected value, compiled value) of the first difference of each reset or step with one."""
        group, self._group = self._group, []
        is_different: set[int] = set()
        for name in dict.fromkeys(name for _, expected, _ in group for name in expected):
            indices = [k for k, (_, expected, _) in enumerate(group) if name in expected]
            a = np.array([group[k][1][name] for k in indices])
            b = np.array([group[k][2][name] for k in indices])
            exceeding = exceeds_tolerance(a, b).reshape(len(indices), -1).any(1)
            is_different.update(indices[k] for k in np.flatnonzero(exceeding))
        for place, expected, compiled in (group[k] for k in is_different):
            first = (_unequal(name, expected[name], compiled[name]) for name in expected)
            self._different.append((place, *next(chain.from_iterable(first))))
        return self._different


def _compiled_results(run: CompiledRun, moment: Moment, expected: Results) -> Results:
    """The compiled results of a reset or a step, with the observations that are expected."""
    obs = run.obs[moment.t][moment.row]
    results: Results = {"observation": obs} if "observation" in expected else {_obs_name(i): x for i, x in enumerate(obs)}
    results |= moment.after
    if moment.key.step > 0:
        results |= {"reward": run.reward[moment.t - 1][moment.row], "terminated": run.terminated[moment.t - 1][moment.row]}
        results |= {k: v[moment.row] for k, v in run.infos[moment.t - 1].items()}
    return {name: results[name] for name in expected}


def _unequal(name: str, expected: ArrayLike, compiled: ArrayLike) -> list[tuple[str, float, float]]:
    """The name of the first element that differs by more than the tolerance, and both values; empty if there is none."""
    a, b = np.asarray(expected), np.asarray(compiled)
    is_wrong = np.argwhere(exceeds_tolerance(a, b))
    if not len(is_wrong):
        return []
    index = tuple(is_wrong[0].tolist())
    place = f" {index[0]}" if name.endswith("observation") else str(list(index)) if index else ""
    return [(name + place, a[index].item(), b[index].item())]


def _repeat(
    reference: PythonReference, m: Moment, agents: Sequence[int] | None, draws: list[Draw], recorded: AgentDraws | None
) -> Results:
    """Repeats a reset, after which a run has the observations of `agents` alone, or a step, after which it has all outputs."""
    t = Time(m.key.step, m.limit)
    draws.clear()
    if recorded is not None:
        recorded.begin_step(reference.make_state(m.before))
    fields, step_values = reference.repeat(m.before, m.action, CheckedKey(*m.key), t)
    if recorded is None:
        check_distinct_draws(draws)
    outputs = reference.outputs(m.after, t, agents)
    if m.key.step == 0:
        outputs = {"observation": outputs["observation"]}
    elif reference.env.metrics is not None:
        metrics = reference.metrics(reference.make_state(m.after), m.metrics_before, m.key.step)
        outputs |= {METRIC + name: x for name, x in metrics.items()}
    results = fields | step_values | outputs
    if agents is None:
        return results
    rows = zip(agents, results.pop("observation"), strict=True)
    return results | {_obs_name(i): row for i, row in rows}


def _obs_name(i: int) -> str:
    return f"agent {i}'s observation"


def _calls_per_moment(reference: PythonReference, num_observers: int) -> int:
    """The approximate number of calls of author functions in a step with the observations of some agents."""
    num_agents = len(reference.agents)
    candidates = num_agents if reference.schema.search else 0
    calls_per_observer = max(part.observation.max_neighbors for part in reference.schema.parts) + candidates + 1
    num_calls = sum(math.prod(reference.schema.sets[index_set_of(phase)]) for phase in reference.env.phases)
    return int(num_calls + num_agents * 4 + num_observers * calls_per_observer)
