"""Explains why a result of a compiled run is not finite: plain Python repeats the call and shows the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.engine.compiler.types import EnvState
from gpuvec.errors import AuthoringError
from gpuvec.observations import Time
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, author_action, author_actions
from gpuvec.testing.compiled_runs.result_checks import NonFiniteResultError
from gpuvec.testing.compiled_runs.run_moments import Moment, RunMoments
from gpuvec.testing.reference.author_calls import NotPlainError
from gpuvec.testing.reference.checked_arrays import CheckedArray, Index, checked_state
from gpuvec.testing.reference.checked_draws import CheckedKey, record_draws
from gpuvec.testing.reference.nonfinite_trace import NonFiniteTrace
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.testing.reference.single_agent_reference import SingleAgentReference


class FiniteArray(CheckedArray):
    """A checked array that refuses to store a number that is not finite."""

    def __setitem__(self, index: Index, value: Any) -> None:
        """Writes `value` to `index`."""
        if self.dtype.kind == "f" and not np.isfinite(np.asarray(value, self.dtype)).all():
            raise FloatingPointError(f"{self.name} becomes {value}")
        super().__setitem__(index, value)


def explain_nonfinite(env: Environment, run: CompiledRun, error: NonFiniteResultError, seed: int) -> AuthoringError:
    """Returns an error about the line that computes a number that is not finite.

    Args:
        env: the environment.
        run: its compiled results.
        error: the error about a result of the run, which is returned if plain Python shows no line.
        seed: the seed of the run.
    """
    row, agent = error.row, 0
    if isinstance(env, MultiAgentEnv) and error.part not in ("state", "metric"):
        row, agent = divmod(error.row, run.obs[0].shape[1])
    moment, trace = RunMoments(run, seed).at(error.t, row), NonFiniteTrace(error.value)
    try:
        with record_draws(), np.errstate(all="ignore"):
            if isinstance(env, SingleAgentEnv):
                _repeat_single(env, moment, error.part, trace)
            else:
                _repeat_multi(env, moment, error.part, agent, trace)
    except NotPlainError as fault:
        cause = fault.__cause__
        return authoring_error_at(*fault.place, f"{error.problem}; plain Python raises {type(cause).__name__} here: {cause}")
    if trace.place is None:
        return error
    return authoring_error_at(*trace.place, f"{error.problem}; {error.value} is first computed here")


def _repeat_single(env: SingleAgentEnv, m: Moment, part: str, trace: NonFiniteTrace) -> None:
    """Repeats the function of a `SingleAgentEnv` that computes a part of the results."""
    reference = SingleAgentReference(env, _finite_view if part == "state" else None)
    with trace.active():
        if part == "observation":
            reference.observe(m.after)
        elif part == "metric":
            reference.metrics(m.after, m.metrics_before, m.key.step)
        elif m.action is None:
            reference.reset(CheckedKey(*m.key), m.before)
        else:
            reference.step(m.before, author_action(m.action), CheckedKey(*m.key))


def _repeat_multi(env: MultiAgentEnv, m: Moment, part: str, agent: int, trace: NonFiniteTrace) -> None:
    """Repeats the functions of a `MultiAgentEnv` that compute a part of the results."""
    view: Callable[[EnvState], EnvState] = (lambda s: _finite_view(checked_state(s))) if part == "state" else checked_state
    reference, key, t = PythonReference(env, view), CheckedKey(*m.key), Time(m.key.step, m.limit)
    before, after = reference.make_state(m.before), reference.make_state(m.after)
    if part == "observation":
        after = reference.prepare_observations(after, [agent])
        with trace.active():
            reference.observations(after, t, [agent])
    elif part == "metric":
        with trace.active():
            reference.metrics(after, m.metrics_before, m.key.step)
    elif m.action is None:
        reference.reset(key, before)
    elif part == "state":
        reference.step(before, author_actions(reference.schema, m.action), key, t)
    else:
        s = reference.step(before, author_actions(reference.schema, m.action), key, t).state
        with trace.active():
            reference.step_result(s, np.zeros(len(reference.agents), np.bool_), t)


def _finite_view(s: EnvState) -> EnvState:
    """A view of a checked state whose arrays store only finite numbers."""
    parts = (part.view(FiniteArray) if isinstance(part, CheckedArray) else part for part in s)
    return type(s)(*parts)
