"""Compares another target with the CPU: both take the same random actions, and all results are compared after every call.

A comparison runs in another process, since a target may crash and Numba reads environment variables when it is imported.

Results may be sensitive to rounding: a tiny change of the state before a call changes them as much as two targets differ.

Letters: E envs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.layout.schema import PACKED_BUFFERS, EnvSchema
from gpuvec.errors import GpuvecError
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import allowed_actions, flat_infos, join_roles, split_actions
from gpuvec.testing.target_check.differences import (
    ENGINE,
    STATE,
    TOLERANCE,
    Difference,
    ResultLayout,
    differences,
    differs_in_bits,
    exceeds_tolerance,
    make_result_layout,
)
from gpuvec.testing.target_check.targets import CPU
from gpuvec.testing.worker_process import ENDED, WorkerError, WorkerProcess, allow_cpu_time
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers import ToNumpy

STATE_BUFFERS = ("state", *PACKED_BUFFERS.values())  # buffers of the physical state, which is compared field by field
SHARED_BUFFERS = ("clock", "shared", "faults")  # buffers without an axis for the environments
SHARED_RESULTS = tuple(ENGINE + name for name in SHARED_BUFFERS)
Results = dict[str, NDArray[Any]]  # {name: (E, ...)}, in which `SHARED_RESULTS` have one row
EnvCall = Callable[[ToNumpy], tuple[Any, ...]]  # what a call of `reset` or `step` returns, the observations first


def ignore_call(place: str, is_first: bool) -> None:
    """Does nothing before a call of a `LockstepPair`.

    Args:
        place: what is called.
        is_first: whether it is the first of its kind.
    """


class LockstepPair:
    """Makes the same calls on both: a seeded reset, then steps with random actions; in DISABLED also resets of ended episodes.

    Before each call the other target loads the states, clocks and random-number streams of the CPU. A difference is therefore
    caused by that call alone, and rounding errors do not accumulate.

    Args:
        env: the environment, or its id as `gymnasium.make_vec` takes it.
        target_options: keyword arguments that create it on the other target.
        num_envs: the number of environments, E.
        seed: the seed of the environments and of the actions.
        on_call: called before each call as `on_call(place, is_first)` with what is called, such as "in step 3", and whether it
            is the first of its kind, which compiles kernels.
        options: further keyword arguments of both, such as `autoreset_mode`, `max_episode_steps` and parameters.

    Attributes:
        layout: the owners of the elements of results.
        ended: (E,) bool, whether the episode ended in the last call.
        num_calls: the number of calls.
        num_steps: the number of them that were steps.
    """

    def __init__(
        self,
        env: str | Environment,
        target_options: Mapping[str, str],
        *,
        num_envs: int,
        seed: int = 0,
        on_call: Callable[[str, bool], None] = ignore_call,
        **options: str | float | None,
    ) -> None:
        make: Callable[..., Any] = partial(gym.make_vec, env) if isinstance(env, str) else partial(VectorEnv, env)
        self.cpu, self.other = (
            ToNumpy(make(num_envs=num_envs, **{**options, **place})) for place in (CPU.options, target_options)
        )
        self.layout = make_result_layout(self._schema)
        self.ended = np.zeros(num_envs, np.bool_)
        self.num_calls = self.num_steps = 0
        self._call_name = "reset"  # "reset", "step" or "masked reset": the last call
        self._known_calls: set[str] = set()  # the names of calls whose kernels are compiled
        self._on_call = on_call
        self._action: Any = None  # of the last step
        self._state_before: Any = None  # state_dict before the last call
        self._resets = self.ended  # (E,) whether the last call reset the environment instead of a step
        self._mask: NDArray[np.bool_] | None = None  # (E, ..., N) of the last call on the CPU
        self._last_call: EnvCall = lambda env: env.reset(seed=seed)
        self._mode = self.cpu.metadata["autoreset_mode"]
        self.cpu.action_space.seed(seed)

    @property
    def _schema(self) -> EnvSchema:
        schema: EnvSchema = self.cpu.unwrapped.simulation.schema  # type: ignore[attr-defined]  # a `VectorEnv`
        return schema

    @property
    def place(self) -> str:
        """The last call, such as "in step 3"."""
        return {
            "reset": "in the first reset",
            "step": f"in step {self.num_steps}",
            "masked reset": f"in the masked reset after step {self.num_steps}",
        }[self._call_name]

    def call(self) -> tuple[Results, Results]:
        """Makes the next call on both and returns the results, those of the CPU first."""
        if self.num_calls:
            self._state_before = self.cpu.state_dict()
            self.other.load_state_dict(self._state_before)
            self._last_call = self._next_call()
        self._resets = np.zeros_like(self.ended) if self._mode is AutoresetMode.SAME_STEP else self.ended
        self._on_call(self.place, self._call_name not in self._known_calls)
        cpu, other = (_results(env, *self._last_call(env)) for env in (self.cpu, self.other))
        self._known_calls.add(self._call_name)
        self._mask, is_step = cpu.get("action_mask"), self._call_name == "step"
        self.ended = cpu["terminated"] | cpu["truncated"] if is_step else np.zeros_like(self.ended)
        self.num_calls += 1
        return cpu, other

    def _next_call(self) -> EnvCall:
        if self._mode is AutoresetMode.DISABLED and self.ended.any():
            self._call_name, options = "masked reset", {"reset_mask": self.ended}
            return lambda env: env.reset(options=options)
        self._call_name, action = "step", self.cpu.action_space.sample()
        self.num_steps += 1
        if self._mask is not None:
            action = split_actions(allowed_actions(join_roles(action, self._schema), self._mask, self._schema), self._schema)
        self._action = action
        return lambda env: env.step(action)

    def steps_from_state(self, row: int) -> bool:
        """Returns whether the last call was a step of an environment from a state that floats of it determine.

        Args:
            row: the index of the environment.
        """
        return self._call_name == "step" and not bool(self._resets[row])

    def repeat_changed(self, row: int, change: Callable[[dict[str, NDArray[Any]]], None]) -> Results:
        """Repeats the last step of one environment on the CPU E times, from E states, and returns the results.

        Args:
            row: the index of the environment, for which `steps_from_state` is true.
            change: changes {field: (E, ...) array} of the floats of the state, which has E equal rows, in place.

        Returns:
            {name: (E, ...) array}, without `SHARED_RESULTS`.
        """
        self._on_call(self.place, False)
        state_after, buffers = self.cpu.state_dict(), self._state_before["buffers"]
        rows = np.full(len(self.ended), row)
        copies = {name: array if name in SHARED_BUFFERS else array[rows] for name, array in buffers.items()}
        # Without a stream in common every environment draws from its own one, of which all are copies.
        copies["shared"] = np.zeros_like(copies["shared"])
        self.cpu.load_state_dict({**self._state_before, "buffers": copies})
        floats = {name: array for name, array in self.cpu.get_state().items() if array.dtype.kind == "f"}
        change(floats)
        if floats:
            self.cpu.set_state(floats)
        action = self._action
        action = {k: v[rows] for k, v in action.items()} if isinstance(action, dict) else action[rows]
        results = _results(self.cpu, *self.cpu.step(action))
        self.cpu.load_state_dict(state_after)
        return {name: array for name, array in results.items() if name not in SHARED_RESULTS}

    def close(self) -> None:
        """Closes the environments on both targets."""
        self.cpu.close()
        self.other.close()


def _results(env: ToNumpy, obs: NDArray[Any], *step_results: Any) -> Results:
    """The results of a call and the state after it. Causes come before effects, so that the first difference is a cause.

    Final observations of rows whose episode did not end are replaced by zeros.
    """
    *step_values, infos = step_results
    reward, terminated, truncated = step_values or (None, None, None)
    schema = env.unwrapped.simulation.schema  # type: ignore[attr-defined]  # a `VectorEnv`
    obs = join_roles(obs, schema)
    results = {"terminated": terminated, "truncated": truncated}
    results |= {STATE + name: array for name, array in env.get_state().items()}
    results |= {"reward": reward, "observation": obs, **flat_infos(infos, schema)}
    if "final_obs" in infos:
        ended = infos["_final_obs"].reshape(-1, *(1,) * (obs.ndim - 1))
        results["final_obs"] = np.where(ended, join_roles(infos["final_obs"], schema), np.float32(0.0))
    for name, buffer in env.state_dict()["buffers"].items():
        if name not in STATE_BUFFERS and not name.startswith("state_"):
            array = to_host(buffer)
            results[ENGINE + name] = array.reshape(1, -1) if name in SHARED_BUFFERS else array
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}


AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
MAX_THRESHOLD_SHARE = 1e-4  # of results: rounding is seldom near a threshold, and a wrong rule differs often
# No threshold explains that so many results differ, and their floats differ too little for another rule.
MAX_SLIGHT_SHARE = 1e-2  # of results
PLACE = "place.txt"  # the name of the file with the place of the present call, which remains if the process ends in it
COMPILATION_SECONDS = 600.0  # of CPU time; the first call of each kind compiles its kernels
PERTURBATION = 1e-6  # the relative change of a float of the state, of the size of a few roundings
ROUNDING = 1.2e-7  # the relative change of all floats at once: float32 has 24 bits
WAYS = 5  # to change a field: up and down, of any agent and of the one that differs, and together with all other fields
MAX_PERTURBATIONS = 50 * WAYS  # of a difference
SLIGHT = 10 * TOLERANCE  # floats that differ by at most this differ slightly


class ComparisonJob(NamedTuple):
    """A comparison of a target with the CPU."""

    env: str | Environment  # the environment or its id
    target: str  # the name of the target
    options: dict[str, str]  # keyword arguments of `make_vec` that select the target
    variables: dict[str, str]  # environment variables of the process of the target
    num_envs: int
    episodes: int  # the number of episodes of each environment in each mode
    max_episode_steps: int
    seed: int = 0
    params: dict[str, bool | int | float] = {}  # noqa: RUF012  # never written to
    modes: tuple[str, ...] = AUTORESET_MODES
    time_limit: float = math.inf  # the CPU seconds of a call, after which `compare_in_processes` ends the process
    compare_seconds: float = math.inf  # after which no further call begins

    def pair_options(self, mode: str) -> dict[str, str | int | float]:
        """The keyword arguments of a `LockstepPair` in an autoreset mode.

        Args:
            mode: one of `AUTORESET_MODES`.
        """
        options: dict[str, str | int | float] = {"num_envs": self.num_envs, "seed": self.seed, "autoreset_mode": mode}
        return {**options, "max_episode_steps": self.max_episode_steps, **self.params}


class ComparisonReport(NamedTuple):
    """The result of a comparison."""

    num_results: int = 0  # the number of results that were compared: calls times environments
    identical: bool = True  # whether all results are bit-identical
    num_sensitive: int = 0  # the number of results that differ as those of the CPU do after a tiny change of the state
    threshold_parts: float = 0.0  # the sum over those across a threshold of the part that differs, which is at most 1
    slight_parts: float = 0.0  # the same of those whose floats differ slightly
    difference: str = ""  # a description of the first difference; "" if there is none
    script: str = ""  # Python source that reproduces it
    unfinished: str = ""  # the modes that were not compared to the end, and how far; "" if all were


def compare(job: ComparisonJob, on_call: Callable[[str, bool], None] = ignore_call) -> ComparisonReport:
    """Compares one autoreset mode after another until one shows a difference.

    A float may differ by 1e-5 * max(1, |x|) from the x of the CPU; flags, integers and random-number streams may not differ.
    A result may be sensitive to rounding: where a number is near a threshold, such as a bound or the distance of another agent,
    or is a small difference of large numbers. Then both sides are right. Therefore, if a result differs, the CPU repeats the
    call after tiny changes of the state (see `is_sensitive`). A share of `MAX_THRESHOLD_SHARE` of the results may differ in
    this way, and a share of `MAX_SLIGHT_SHARE` slightly (see `differs_slightly`). A result counts by the part of it that
    differs, such as one of 27 agents (see `differing_part`).

    Args:
        job: the comparison; each environment finishes `job.episodes` episodes in each mode.
        on_call: called before each call as `on_call(place, is_first)` with the place, such as "NextStep, in step 3", and
            whether it may compile kernels.

    Raises:
        GpuvecError: the environment cannot be created or compiled on the target.
    """
    deadline, reports = time.monotonic() + job.compare_seconds, list[ComparisonReport]()
    for name in job.modes:
        if time.monotonic() >= deadline:
            reports.append(ComparisonReport(unfinished=name))
            continue
        on_call(f"{name}, before the first reset", True)
        options: dict[str, Any] = job.pair_options(name)
        options["on_call"] = lambda place, is_first, name=name: on_call(f"{name}, {place}", is_first)
        pair = LockstepPair(job.env, job.options, **options)
        reports.append(_compare_in_mode(job, name, pair, deadline))
        pair.close()
        if reports[-1].difference:
            break
    return merge_reports(reports)


def merge_reports(reports: list[ComparisonReport]) -> ComparisonReport:
    """Merges reports into one, with the sums of their numbers and the first difference.

    Args:
        reports: the reports, of which the first with a difference determines that of the result.
    """
    first = next((report for report in reports if report.difference), ComparisonReport())
    numbers = ("num_results", "num_sensitive", "threshold_parts", "slight_parts")
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in numbers}
    unfinished = ", ".join(report.unfinished for report in reports if report.unfinished)
    return first._replace(**sums, identical=all(report.identical for report in reports), unfinished=unfinished)


def _compare_in_mode(job: ComparisonJob, mode: str, pair: LockstepPair, deadline: float) -> ComparisonReport:
    """Compares one autoreset mode; no call begins after the deadline of `time.monotonic`."""
    report, example, num_ended = ComparisonReport(), ComparisonReport(), np.zeros(job.num_envs, int)
    # The results of the first reset, of all steps, and of a masked reset after each. What is too often for the largest number
    # of results is so for those of all calls.
    max_results = job.num_envs * (1 + 2 * job.episodes * job.max_episode_steps)
    while num_ended.min() < job.episodes and not _excess(report, max_results):
        if time.monotonic() >= deadline:
            return report._replace(unfinished=f"{mode} after {num_ended.min()} of {job.episodes} episodes")
        cpu, other = pair.call()
        num_ended += pair.ended
        for d in differences(cpu, other):
            if not is_sensitive(pair, cpu, other, d):
                return _describe(report, job, mode, pair, d)
            kind = "slight_parts" if differs_slightly(cpu, other, d.element[0]) else "threshold_parts"
            parts = getattr(report, kind) + differing_part(pair.layout, cpu, other, d.element[0])
            report = report._replace(num_sensitive=report.num_sensitive + 1, **{kind: parts})
            example = example if example.difference else _describe(example, job, mode, pair, d)
        identical = report.identical and not any(differs_in_bits(cpu[name], other[name]).any() for name in cpu)
        report = report._replace(num_results=report.num_results + job.num_envs, identical=identical)
    if excess := _excess(report, report.num_results):
        difference = f"{excess}, too often for rounding; the first: {example.difference}"
        report = report._replace(difference=difference, script=example.script)
    return report


def _excess(report: ComparisonReport, num_results: int) -> str:
    """Says that more results are sensitive to rounding than may be among a number of results; "" if not."""
    counts = f"{report.num_sensitive} of {report.num_results:,} results differ"
    if report.threshold_parts > MAX_THRESHOLD_SHARE * num_results:
        return f"{counts} on a threshold, in {report.threshold_parts:.2g} results if each counts by the part that differs"
    if report.slight_parts > MAX_SLIGHT_SHARE * num_results:
        return f"{counts} slightly, in {report.slight_parts:.2g} results if each counts by the part that differs"
    return ""


def _describe(report: ComparisonReport, job: ComparisonJob, mode: str, pair: LockstepPair, d: Difference) -> ComparisonReport:
    """The report with a difference, and Python source that repeats the calls up to it and prints it."""
    place = f"{mode}, {pair.place}: {d.place(pair.layout)}"
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in job.variables.items())
    options = ", ".join(f"{name}={value!r}" for name, value in job.pair_options(mode).items())
    element = f"[{d.name!r}]" + "".join(f"[{k}]" for k in d.element)
    script = (
        f"import os\n{variables}from gpuvec.testing.target_check.target_comparison import LockstepPair\n"
        f"pair = LockstepPair({job.env!r}, {job.options!r}, {options})\n"
        f"for _ in range({pair.num_calls}):\n    cpu, other = pair.call()\n"
        f"print(cpu{element}, other{element})\n"
    )
    return report._replace(difference=f"{place} is {d.expected} on cpu and {d.actual} on {job.target}", script=script)


def is_sensitive(pair: LockstepPair, cpu: Results, other: Results, difference: Difference) -> bool:
    """Returns whether a tiny change of the state before the last call gives the CPU the results of the other target.

    The state is changed in `MAX_PERTURBATIONS` ways: a float x by up to `PERTURBATION` * max(1, |x|), in each field of the
    state in turn, up and down, of any agent and of the one that differs; then all floats, by up to `ROUNDING` * max(1, |x|).
    The CPU makes the call from E of these states at once. All results of the environment have to be equal, up to the tolerance.

    Args:
        pair: the targets.
        cpu: the results of the CPU in the last call.
        other: those of the other target.
        difference: the first difference of an environment.
    """
    if not difference.element or difference.name in SHARED_RESULTS or not pair.steps_from_state(difference.element[0]):
        return False
    row, num_envs, random = difference.element[0], len(pair.ended), np.random.default_rng(0)
    agent = _first_differing_agent(pair.layout, cpu, other, row)
    for first in range(0, MAX_PERTURBATIONS, num_envs):
        count = min(num_envs, MAX_PERTURBATIONS - first)
        change = partial(_change_floats, pair.layout, agent, range(first, first + count), random)
        results = pair.repeat_changed(row, change)
        is_equal = np.ones(count, np.bool_)
        for name, array in results.items():
            expected = array[:count]
            is_unequal = exceeds_tolerance(expected, np.broadcast_to(other[name][row], expected.shape))
            is_equal &= ~is_unequal.reshape(count, -1).any(1)
        if is_equal.any():
            return True
    return False


def _first_differing_agent(layout: ResultLayout, cpu: Results, other: Results, row: int) -> int | None:
    """The agent of the first value of an agent that differs, in which the cause probably is; None if there is none."""
    for name, array in cpu.items():
        if name not in SHARED_RESULTS and layout.num_set_axes(name, array.ndim):
            elements = np.argwhere(exceeds_tolerance(array[row], other[name][row]))
            if len(elements) and (agent := layout.agent(name, (row, *elements[0].tolist()))) is not None:
                return agent
    return None


def _change_floats(
    layout: ResultLayout, agent: int | None, numbers: range, random: np.random.Generator, floats: dict[str, NDArray[Any]]
) -> None:
    """Changes floats of the first rows in the ways with these numbers (see `is_sensitive`)."""
    names = list(floats)
    for row, number in enumerate(numbers if names else ()):
        field, way = divmod(number, WAYS)
        if way == WAYS - 1:
            for array in floats.values():
                array[row] += ROUNDING * random.uniform(-1.0, 1.0, array.shape[1:]) * np.maximum(1.0, np.abs(array[row]))
            continue
        name = names[field % len(names)]
        array = floats[name]
        element = (row, *random.integers(array.shape[1:]))
        if agent is not None and way >= 2 and array.ndim > 1:
            index = layout.index_of_agent(name, agent, array.shape[1])
            element = element if index is None else (row, index, *element[2:])
        array[element] += (1 - 2 * (way % 2)) * PERTURBATION * random.uniform() * max(1.0, abs(array[element]))


def differing_part(layout: ResultLayout, cpu: Results, other: Results, row: int) -> float:
    """Returns which part of the result of an environment differs, above 0 and at most 1.

    Each agent and each element of an index set computes its own part, which rounding and wrong rules change alike. The part
    that differs is therefore the share of the agents, or of the elements of another set if that is larger, whose own values
    differ: their fields of the state and their rewards. Observations contain values of others, and count if nothing else
    differs. If an episode ends on one side alone, or if only values of the environment differ, the whole result differs.

    Args:
        layout: the owners of the elements of results.
        cpu: {name: (E, ...) array}, the results of the CPU.
        other: the results of the other target, of which a row differs.
        row: the index of the environment.
    """
    unequal = {name: exceeds_tolerance(a[row], other[name][row]) for name, a in cpu.items() if name not in SHARED_RESULTS}
    if any(unequal[name].any() for name in ("terminated", "truncated") if name in unequal):
        return 1.0
    own, of_environment, of_others = 0.0, 0.0, 0.0
    for name, elements in unequal.items():
        num_axes = layout.num_set_axes(name, elements.ndim + 1)
        part = float(elements.reshape(*elements.shape[:num_axes], -1).any(-1).mean())
        if not name.startswith(STATE) and name != "reward":
            of_others = max(of_others, part)
        elif num_axes:
            own = max(own, part)
        else:
            of_environment = max(of_environment, part)
    return own or of_environment or of_others


def differs_slightly(cpu: Results, other: Results, row: int) -> bool:
    """Returns whether no flag or integer of the result of an environment differs, and floats differ by at most `SLIGHT`.

    A difference of large numbers, for example, amplifies rounding to more than the tolerance of comparisons. A flag or an
    integer changes at a threshold, and so do most floats that differ by more.

    Args:
        cpu: {name: (E, ...) array}, the results of the CPU.
        other: the results of the other target.
        row: the index of the environment.
    """
    names = (name for name in cpu if name not in SHARED_RESULTS)
    return not any(exceeds_tolerance(cpu[name][row], other[name][row], SLIGHT).any() for name in names)


def compare_in_processes(job: ComparisonJob, num_processes: int = 1) -> ComparisonReport:
    """Runs `compare(job)` in other processes.

    Args:
        job: the comparison. A process that ends without a report, such as one whose call takes longer than `job.time_limit`,
            or an environment that the target cannot run, is reported as a difference.
        num_processes: the number of processes that run at the same time; with more than one, each compares one autoreset
            mode. Together they have `job.compare_seconds`.
    """
    parts = [job._replace(modes=(mode,)) for mode in job.modes] if num_processes > 1 else [job]
    deadline = time.monotonic() + job.compare_seconds
    with ThreadPoolExecutor(num_processes) as executor:
        return merge_reports(list(executor.map(partial(_compare_in_process, deadline), parts)))


def _compare_in_process(deadline: float, job: ComparisonJob) -> ComparisonReport:
    job = job._replace(compare_seconds=deadline - time.monotonic())
    with WorkerProcess(run_job, None, job.variables, job=job) as worker:
        try:
            return ComparisonReport(**json.loads(worker.answer()))
        except (RuntimeError, WorkerError) as error:
            place_file = worker.folder / PLACE
            place = f"{place_file.read_text()}: " if place_file.exists() else ""
            if getattr(error, "out_of_time", False):
                limit = f"a call on cpu or on {job.target} does not return within {job.time_limit:g} s of CPU time"
                return ComparisonReport(difference=f"{place}{limit}; if it is only slow, raise --time-limit")
            cause = str(error).removeprefix(ENDED)
            return ComparisonReport(difference=f"{place}the process of the target ended with {cause}")


def run_job(env: None, folder: Path, job: ComparisonJob) -> str:
    """Compares in a `WorkerProcess`, and returns the report in JSON.

    Args:
        env: not used; the job has it.
        folder: for the file with the place of the present call.
        job: the comparison.
    """

    def on_call(place: str, is_first: bool) -> None:
        (folder / PLACE).write_text(place)
        allow_cpu_time(job.time_limit + (COMPILATION_SECONDS if is_first else 0.0))

    try:
        report = compare(job, on_call)
    except GpuvecError as error:
        report = ComparisonReport(difference=f"{type(error).__name__}: {error}")
    return json.dumps(report._asdict())
