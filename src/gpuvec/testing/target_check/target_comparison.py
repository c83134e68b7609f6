"""Whether another target gives the CPU's results: random actions on both, everything compared after every call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.spec import Environment
from gpuvec.testing.target_check.differences import Difference, differences, differs_in_bits
from gpuvec.testing.target_check.lockstep_pair import LockstepPair, Results

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PERTURBATION = 1e-6  # relative change of one float of a state, to find results on a threshold: some roundings
MAX_PERTURBATIONS = 200  # each of another field, another agent, in another direction
MAX_THRESHOLD_SHARE = 1e-4  # of results: rounding seldom meets a threshold, and a wrong rule always does


class ComparisonJob(NamedTuple):
    """What is compared with the CPU."""

    env: str | Environment  # or its id
    target: str  # its name
    options: dict[str, str]  # keyword arguments of `make_vec` that choose the target
    variables: dict[str, str]  # environment variables of the target's process
    num_envs: int
    episodes: int  # of each environment, in each mode
    max_episode_steps: int
    seed: int = 0
    params: dict[str, bool | int | float] = {}  # noqa: RUF012  # never written to
    modes: tuple[str, ...] = AUTORESET_MODES

    def pair_options(self, mode: str) -> dict[str, str | int | float]:
        """Keyword arguments of a `LockstepPair` in that autoreset mode.

        Args:
            mode: one of `AUTORESET_MODES`.
        """
        options: dict[str, str | int | float] = {"num_envs": self.num_envs, "seed": self.seed, "autoreset_mode": mode}
        return {**options, "max_episode_steps": self.max_episode_steps, **self.params}


class ComparisonReport(NamedTuple):
    """The outcome of a comparison."""

    num_results: int = 0  # that were compared: calls times environments
    identical: bool = True  # whether all were, bit for bit
    num_on_threshold: int = 0  # results that differ as the CPU's own do after a tiny change of the state
    difference: str = ""  # the first one and its place; "" if there is none
    script: str = ""  # which reproduces it


def compare(job: ComparisonJob) -> ComparisonReport:
    """Compares one autoreset mode after the other until one shows a difference.

    A float may differ by 1e-5 * max(1, |x|) from the CPU's x; flags, integers and random streams may not differ. But where a
    rounded number meets a threshold, such as a bound or the distance of another agent, either side of it is right. So if a
    result differs, a float x of the state before is changed by up to 1e-6 * max(1, |x|), and the CPU repeats that call. If it
    then gives all that the other target gave for that environment, the result is on a threshold. One in 10,000 results may be.

    Args:
        job: what to compare; each environment ends `job.episodes` episodes in each mode.

    Raises:
        GpuvecError: the environment cannot be made or compiled there.
    """
    report = ComparisonReport()
    for mode in job.modes:
        pair = LockstepPair(job.env, job.options, **job.pair_options(mode))  # type: ignore[arg-type]  # a dict of several types
        report = united([report, _compare_in_mode(pair, job, mode)])
        pair.close()
        if report.difference:
            break
    return report


def united(reports: list[ComparisonReport]) -> ComparisonReport:
    """One report of several: their sums, and the first difference.

    Args:
        reports: in the order in which a difference counts as the first.
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
        share = f"{report.num_on_threshold} of {report.num_results:,} results differ on a threshold, too often for rounding"
        report = report._replace(difference=f"{share}; the first: {example[0]}", script=example[1])
    return report


def _off_threshold(pair: LockstepPair, other: Results, different: list[Difference]) -> list[Difference]:
    """The differences that no tiny change of the state before the call explains."""
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
    when = {"reset": "in the first reset", "step": f"in step {pair.num_steps}"}
    when["masked reset"] = f"in the masked reset after step {pair.num_steps}"
    what = f"{d.place(pair.has_agents)} is {d.expected} on cpu and {d.actual} on {job.target}"
    return f"{mode}, {when[pair.call_name]}: {what}"


def _script(pair: LockstepPair, job: ComparisonJob, mode: str, d: Difference) -> str:
    """Python source that repeats the calls up to the difference, and prints it."""
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in job.variables.items())
    options = ", ".join(f"{name}={value!r}" for name, value in job.pair_options(mode).items())
    element = f"[{d.name!r}]" + "".join(f"[{k}]" for k in d.element)
    return (
        f"import os\n{variables}from gpuvec.testing.target_check.lockstep_pair import LockstepPair\n"
        f"pair = LockstepPair({job.env!r}, {job.options!r}, {options})\n"
        f"for _ in range({pair.num_calls}):\n    cpu, other = pair.call()\n"
        f"print(cpu{element}, other{element})\n"
    )
