"""Explains why a compiled run crashed, did not return or has a result that is not finite: plain Python repeats the call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at, step_function
from gpuvec.engine.compiler.types import EnvState
from gpuvec.errors import AuthoringError
from gpuvec.observations import Time
from gpuvec.phases import first_function
from gpuvec.random import Key
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, Moment, RunMoments, author_actions
from gpuvec.testing.compiled_runs.result_checks import NonFiniteResultError
from gpuvec.testing.race_check import RaceCheck
from gpuvec.testing.reference.author_calls import NotPlainError, fault_place
from gpuvec.testing.reference.checked_functions import CheckedArray, CheckedKey, Index, checked_state, in_package, record_draws
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.testing.worker_process import WorkerError


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
            _repeat_part(env, moment, error.part, agent, trace)
    except NotPlainError as fault:
        cause = fault.__cause__
        return authoring_error_at(*fault.place, f"{error.problem}; plain Python raises {type(cause).__name__} here: {cause}")
    if trace.place is None:
        return error
    return authoring_error_at(*trace.place, f"{error.problem}; {error.value} is first computed here")


def _repeat_part(env: Environment, m: Moment, part: str, agent: int, trace: NonFiniteTrace) -> None:
    """Repeats the functions that compute a part of the results."""

    def finite_view(s: EnvState) -> EnvState:
        """A view of a state whose arrays store only finite numbers."""
        values = (value.view(FiniteArray) if isinstance(value, CheckedArray) else value for value in checked_state(s))
        return type(s)(*values)

    view: Callable[[EnvState], EnvState] = finite_view if part == "state" else checked_state
    reference, key, t = PythonReference(env, view), CheckedKey(*m.key), Time(m.key.step, m.limit)
    before, after = reference.make_state(m.before), reference.make_state(m.after)
    if part == "observation":
        after = reference.prepare_observations(after, [agent])
        with trace.active():
            reference.observations(after, t, [agent])
        return
    if part == "metric":
        with trace.active():
            reference.metrics(after, m.metrics_before, m.key.step)
        return
    # Elements of arrays, in which the state of many agents is, are not local variables: a `FiniteArray` finds them.
    with trace.active() if reference.is_single_agent else nullcontext():
        if m.action is None:
            reference.reset(key, before)
            return
        result = reference.step(before, author_actions(reference.schema, m.action), key, t)
    if part == "reward" and not reference.is_single_agent:
        with trace.active():
            reference.step_result(result.state, np.zeros(len(reference.agents), np.bool_), t)


Trace = Any  # the type of a trace function, which returns itself


class NonFiniteTrace:
    """A trace function that compares local variables and results of author code with NaN or infinity.

    Args:
        value: NaN, or an infinity.
    """

    def __init__(self, value: float) -> None:
        self._is_nan = math.isnan(value)
        self.place: tuple[str, int] | None = None  # the file and the line; None if there was no such value
        self._frames: dict[FrameType, tuple[int, frozenset[str]]] = {}  # {frame: (last line, names that had such a value)}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Trace:
        """Inspects a frame, as `sys.settrace` specifies it."""
        file = frame.f_code.co_filename
        if self.place is not None or in_package(file) or file.startswith("<"):  # NamedTuple classes have methods in "<string>"
            return None
        names = frozenset(
            name for name, value in frame.f_locals.items() if not isinstance(value, tuple) and self._matches(value)
        )
        if event == "call":
            self._frames[frame] = frame.f_lineno, names
            return self
        line, before = self._frames.get(frame, (frame.f_lineno, frozenset()))
        if names - before:
            self.place = file, line
        elif event == "return" and not before and self._matches(argument):
            self.place = file, frame.f_lineno
        self._frames[frame] = frame.f_lineno, before
        return self

    def _matches(self, value: Any) -> bool:
        if isinstance(value, tuple) and not isinstance(value, Key):
            return any(map(self._matches, value))
        if not isinstance(value, float | np.floating):
            return False
        return bool(np.isnan(value) if self._is_nan else np.isinf(value))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Traces all code of this thread in the block, instead of with the trace function of a debugger, if there is one."""
        previous = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(previous)


def explain_crash(
    env: Environment,
    run: CompiledRun | None,
    error: WorkerError,
    num_envs: int,
    seed: int,
    time_limit: float,
    check_run: Callable[[CompiledRun], None],
) -> NoReturn:
    """Raises an error about the function during which the worker process ended.

    Args:
        env: the environment.
        run: the results before the crash; None if there are none.
        error: the error of the worker process.
        num_envs: the number of environments, E.
        seed: the seed of the environments.
        time_limit: the CPU seconds that a call was allowed to take.
        check_run: checks the results before the crash, since a write to other memory may end the process only later.

    Raises:
        AuthoringError: always. The message names the line if plain Python shows the fault too, and otherwise the function.
    """
    moments = RunMoments(run, seed) if run is not None else None
    effect = f"does not return within {time_limit:g} s of CPU time" if error.out_of_time else f"ends the process: {error}"
    problem = f"compiled code of the environment, which begins with this function, {effect}"
    if moments is not None and len(moments.run.obs) > len(moments.run.actions):
        check_run(moments.run)
        condition = f"with {2 * num_envs} environments and not with {num_envs}"
        raise authoring_error(step_function(env), f"{problem}, {condition}; check it with a larger num_envs")
    _repeat_following(env, moments, num_envs, seed)
    if moments is not None:
        check_run(moments.run)
    function = first_function(env.reset) if moments is None else step_function(env)
    call = "in the first reset" if moments is None else f"in step {len(moments.run.obs)}"
    remedy = "look for a loop, or an index, that depends on rounding"
    raise authoring_error(function, f"{problem}, {call}; plain Python shows no fault: {remedy}")


def explain_error(env: Environment, run: CompiledRun | None, num_envs: int, seed: int) -> None:
    """Raises an error about the line in which compiled code raised one, such as an index beyond the end of a tuple.

    Args:
        env: the environment.
        run: the results before the error; None if there are none.
        num_envs: the number of environments, E.
        seed: the seed of the environments.

    Raises:
        AuthoringError: plain Python shows a fault in the call after the last results.
    """
    if run is not None and len(run.obs) <= len(run.actions):
        _repeat_following(env, RunMoments(run, seed), num_envs, seed)


def _repeat_following(env: Environment, moments: RunMoments | None, num_envs: int, seed: int) -> None:
    """Repeats in plain Python the call in which a compiled run ended; `moments` is None if that was the first reset."""
    t = len(moments.run.obs) if moments is not None else 0
    limit = moments.at(t, 0).limit if moments is not None else 1
    checks = PythonReference(env) if isinstance(env, SingleAgentEnv) else RaceCheck(env, limit, seed)
    for row in range(num_envs):
        key = Key(seed & 0xFFFFFFFF, seed >> 32, row, 0, 0)
        moment = Moment(0, row, key, {}, {}, None, 1, {}) if moments is None else moments.at(t, row)
        with fault_place(moment.place()):
            if isinstance(checks, RaceCheck):
                checks.repeat(moment)
                continue
            with record_draws():
                time = Time(moment.key.step, moment.limit)
                after, _ = checks.repeat(moment.before, moment.action, CheckedKey(*moment.key), time)
                checks.observations(checks.make_state(after), time)
