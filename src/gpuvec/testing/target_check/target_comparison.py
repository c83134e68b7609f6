"""Compares another target with the CPU: both take the same random actions, and all results are compared after every call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from gpuvec.spec import Environment
from gpuvec.testing.target_check.differences import Difference, differences, differs_in_bits
from gpuvec.testing.target_check.lockstep_pair import LockstepPair, ignore_call
from gpuvec.testing.target_check.sensitivity import differing_part, differs_slightly, is_sensitive

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
MAX_THRESHOLD_SHARE = 1e-4  # of results: rounding is seldom near a threshold, and a wrong rule differs often
MAX_SLIGHT_SHARE = (
    1e-2  # of results: no threshold explains that so many differ, and their floats differ too little for another rule
)


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


class _Mode(NamedTuple):
    """The comparison in one autoreset mode."""

    job: ComparisonJob
    name: str
    pair: LockstepPair
    deadline: float  # of `time.monotonic`, after which no call begins

    @property
    def max_results(self) -> int:
        """The largest number of results: those of the first reset, of all steps, and of a masked reset after each."""
        return self.job.num_envs * (1 + 2 * self.job.episodes * self.job.max_episode_steps)


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
        options = job.pair_options(name)
        pair = LockstepPair(job.env, job.options, on_call=partial(_call_in_mode, on_call, name), **options)  # type: ignore[arg-type]  # a dict of several types
        reports.append(_compare_in_mode(_Mode(job, name, pair, deadline)))
        pair.close()
        if reports[-1].difference:
            break
    return merge_reports(reports)


def _call_in_mode(on_call: Callable[[str, bool], None], mode: str, place: str, is_first: bool) -> None:
    on_call(f"{mode}, {place}", is_first)


def merge_reports(reports: list[ComparisonReport]) -> ComparisonReport:
    """Merges reports into one, with the sums of their numbers and the first difference.

    Args:
        reports: the reports, of which the first with a difference determines that of the result.
    """
    first = next((report for report in reports if report.difference), ComparisonReport())
    return ComparisonReport(
        sum(report.num_results for report in reports),
        all(report.identical for report in reports),
        sum(report.num_sensitive for report in reports),
        sum(report.threshold_parts for report in reports),
        sum(report.slight_parts for report in reports),
        first.difference,
        first.script,
        ", ".join(report.unfinished for report in reports if report.unfinished),
    )


def _compare_in_mode(mode: _Mode) -> ComparisonReport:
    job, pair = mode.job, mode.pair
    report, example, num_ended = ComparisonReport(), ("", ""), np.zeros(job.num_envs, int)
    # What is too often for the largest number of results is so for those of all calls.
    while num_ended.min() < job.episodes and not _excess(report, mode.max_results):
        if time.monotonic() >= mode.deadline:
            return report._replace(unfinished=f"{mode.name} after {num_ended.min()} of {job.episodes} episodes")
        cpu, other = pair.call()
        num_ended += pair.ended
        for d in differences(cpu, other):
            if not is_sensitive(pair, cpu, other, d):
                return report._replace(difference=_description(mode, d), script=_script(mode, d))
            kind = "slight_parts" if differs_slightly(cpu, other, d.element[0]) else "threshold_parts"
            parts = getattr(report, kind) + differing_part(pair.layout, cpu, other, d.element[0])
            report = report._replace(num_sensitive=report.num_sensitive + 1, **{kind: parts})
            example = example if example[0] else (_description(mode, d), _script(mode, d))
        identical = report.identical and not any(differs_in_bits(cpu[name], other[name]).any() for name in cpu)
        report = report._replace(num_results=report.num_results + job.num_envs, identical=identical)
    if excess := _excess(report, report.num_results):
        report = report._replace(difference=f"{excess}, too often for rounding; the first: {example[0]}", script=example[1])
    return report


def _excess(report: ComparisonReport, num_results: int) -> str:
    """Says that more results are sensitive to rounding than may be among a number of results; "" if not."""
    counts = f"{report.num_sensitive} of {report.num_results:,} results differ"
    if report.threshold_parts > MAX_THRESHOLD_SHARE * num_results:
        return f"{counts} on a threshold, in {report.threshold_parts:.2g} results if each counts by the part that differs"
    if report.slight_parts > MAX_SLIGHT_SHARE * num_results:
        return f"{counts} slightly, in {report.slight_parts:.2g} results if each counts by the part that differs"
    return ""


def _description(mode: _Mode, d: Difference) -> str:
    place = f"{mode.name}, {mode.pair.place}: {d.place(mode.pair.layout)}"
    return f"{place} is {d.expected} on cpu and {d.actual} on {mode.job.target}"


def _script(mode: _Mode, d: Difference) -> str:
    """Python source that repeats the calls up to the difference and prints it."""
    job, pair = mode.job, mode.pair
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in job.variables.items())
    options = ", ".join(f"{name}={value!r}" for name, value in job.pair_options(mode.name).items())
    element = f"[{d.name!r}]" + "".join(f"[{k}]" for k in d.element)
    return (
        f"import os\n{variables}from gpuvec.testing.target_check.lockstep_pair import LockstepPair\n"
        f"pair = LockstepPair({job.env!r}, {job.options!r}, {options})\n"
        f"for _ in range({pair.num_calls}):\n    cpu, other = pair.call()\n"
        f"print(cpu{element}, other{element})\n"
    )
