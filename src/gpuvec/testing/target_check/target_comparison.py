"""Compares another target with the CPU: both take the same random actions, and all results are compared after every call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.spec import Environment
from gpuvec.testing.target_check.differences import Difference, differences, differs_in_bits
from gpuvec.testing.target_check.lockstep_pair import LockstepPair, Results

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PERTURBATION = 1e-6  # the relative change of a float of the state, of the size of a few roundings
MAX_PERTURBATIONS = 200  # each changes another field, another agent and in another direction
MAX_THRESHOLD_SHARE = 1e-4  # of results: rounding is seldom near a threshold, and a wrong rule differs often


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
    num_on_threshold: int = 0  # the number of results that differ as those of the CPU do after a tiny change of the state
    difference: str = ""  # a description of the first difference; "" if there is none
    script: str = ""  # Python source that reproduces it


def compare(job: ComparisonJob) -> ComparisonReport:
    """Compares one autoreset mode after another until one shows a difference.

    A float may differ by 1e-5 * max(1, |x|) from the x of the CPU; flags, integers and random-number streams may not differ.
    Where a rounded number is near a threshold, such as a bound or the distance of another agent, both sides are right.
    Therefore, if a result differs, a float x of the state before the call is changed by up to 1e-6 * max(1, |x|), and the CPU
    repeats the call. If its results for that environment then equal those of the other target, the result is on a threshold.
    One in 10,000 results may be.

    Args:
        job: the comparison; each environment finishes `job.episodes` episodes in each mode.

    Raises:
        GpuvecError: the environment cannot be created or compiled on the target.
    """
    report = ComparisonReport()
    for mode in job.modes:
        pair = LockstepPair(job.env, job.options, **job.pair_options(mode))  # type: ignore[arg-type]  # a dict of several types
        report = merge_reports([report, _compare_in_mode(pair, job, mode)])
        pair.close()
        if report.difference:
            break
    return report


def merge_reports(reports: list[ComparisonReport]) -> ComparisonReport:
    """Merges reports into one, with the sums of their numbers and the first difference.

    Args:
        reports: the reports, of which the first with a difference determines that of the result.
    """
    first = next((report for report in reports if report.difference), ComparisonReport())
    return ComparisonReport(
        sum(report.num_results for report in reports),
        all(report.identical for report in reports),
        sum(report.num_on_threshold for report in reports),
        first.difference,
        first.script,
    )


def _compare_in_mode(pair: LockstepPair, job: ComparisonJob, mode: str) -> ComparisonReport:
    report, example, num_ended = ComparisonReport(), ("", ""), np.zeros(job.num_envs, int)
    while num_ended.min() < job.episodes:
        cpu, other = pair.call()
        num_ended += pair.ended
        different = differences(cpu, other)
        faults = _off_threshold(pair, other, different)
        if faults:
            return report._replace(
                difference=_description(pair, job, mode, faults[0]), script=_script(pair, job, mode, faults[0])
            )
        if different and not report.num_on_threshold:
            example = _description(pair, job, mode, different[0]), _script(pair, job, mode, different[0])
        identical = report.identical and not any(differs_in_bits(cpu[name], other[name]).any() for name in cpu)
        num_on_threshold = report.num_on_threshold + len(different)
        report = ComparisonReport(report.num_results + job.num_envs, identical, num_on_threshold)
    if report.num_on_threshold > MAX_THRESHOLD_SHARE * report.num_results:
        counts = f"{report.num_on_threshold} of {report.num_results:,} results differ on a threshold, too often for rounding"
        report = report._replace(difference=f"{counts}; the first: {example[0]}", script=example[1])
    return report


def _off_threshold(pair: LockstepPair, other: Results, different: list[Difference]) -> list[Difference]:
    """The differences that are not explained by a tiny change of the state before the call."""
    if pair.num_calls == 1 or any(not d.element for d in different):
        return different
    random, unexplained = np.random.default_rng(0), {d.element[0]: d for d in different}
    for k in range(MAX_PERTURBATIONS):
        if not unexplained:
            break
        rows = {row: d.agent(pair.has_agents) if k % 2 else None for row, d in unexplained.items()}
        still_different = {d.element[0] for d in differences(pair.perturbed(rows, PERTURBATION, random), other)}
        unexplained = {row: d for row, d in unexplained.items() if row in still_different}
    return list(unexplained.values())


def _description(pair: LockstepPair, job: ComparisonJob, mode: str, d: Difference) -> str:
    call = {
        "reset": "in the first reset",
        "step": f"in step {pair.num_steps}",
        "masked reset": f"in the masked reset after step {pair.num_steps}",
    }[pair.call_name]
    return f"{mode}, {call}: {d.place(pair.has_agents)} is {d.expected} on cpu and {d.actual} on {job.target}"


def _script(pair: LockstepPair, job: ComparisonJob, mode: str, d: Difference) -> str:
    """Python source that repeats the calls up to the difference and prints it."""
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in job.variables.items())
    options = ", ".join(f"{name}={value!r}" for name, value in job.pair_options(mode).items())
    element = f"[{d.name!r}]" + "".join(f"[{k}]" for k in d.element)
    return (
        f"import os\n{variables}from gpuvec.testing.target_check.lockstep_pair import LockstepPair\n"
        f"pair = LockstepPair({job.env!r}, {job.options!r}, {options})\n"
        f"for _ in range({pair.num_calls}):\n    cpu, other = pair.call()\n"
        f"print(cpu{element}, other{element})\n"
    )
