"""Whether another backend does what the CPU does: random play on both, everything compared after every call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.spec import Environment
from gpuvec.testing.target_check.differences import Difference, bits_apart, differences
from gpuvec.testing.target_check.lockstep_pair import Pair, Results

MODES = ("NextStep", "SameStep", "Disabled")
MOVED = 1e-6  # by which a float of a state is changed, to see whether a result sits on a threshold: some roundings
TRIES = 200  # of that: another field, another agent, another direction
RARE = 1e-4  # the share of results that may sit on one: rounding seldom meets a threshold, and a wrong rule always does


class Job(NamedTuple):
    """What is played."""

    id: str | Environment  # of the environment, or itself
    backend: str  # its name
    options: dict[str, Any]  # keyword arguments of `make_vec` that choose it
    variables: dict[str, str]  # of the environment of its process
    num_envs: int
    episodes: int  # of each environment, in each mode
    max_episode_steps: int
    seed: int = 0
    params: dict[str, Any] = {}  # noqa: RUF012  # never written to
    modes: tuple[str, ...] = MODES

    def shared(self, mode: str) -> dict[str, Any]:
        """Keyword arguments of a `Pair` in that autoreset mode."""
        asked = {"num_envs": self.num_envs, "seed": self.seed, "autoreset_mode": mode}
        return {**asked, "max_episode_steps": self.max_episode_steps, **self.params}


class Report(NamedTuple):
    """What was found."""

    results: int = 0  # that were compared: calls times environments
    identical: bool = True  # whether all were, bit for bit
    on_threshold: int = 0  # results that differ as the CPU's own do after a tiny change of the state
    difference: str = ""  # the first one, and where it is; "" if all is well
    script: str = ""  # which reproduces it


def compare(job: Job) -> Report:
    """Plays in one mode after the other until one shows a difference; each environment ends `job.episodes` in each.

    A float may differ by 1e-5 * max(1, |x|) from the CPU's x; flags, integers and random streams may not differ. But where a
    number that was rounded meets a threshold, such as a bound or the distance of another agent, either side of it is right.
    So for a result that differs a float x of the state before is changed by up to 1e-6 * max(1, |x|), and the CPU plays that
    call again: if it then gives all that the other gave for that environment, the result sits on a threshold. One in 10,000
    results may.

    Raises:
        GpuvecError: the environment cannot be made or compiled there.
    """
    found = Report()
    for mode in job.modes:
        pair = Pair(job.id, job.options, **job.shared(mode))
        one = _play(pair, job, mode)
        pair.close()
        sums = (found.results + one.results, found.identical and one.identical, found.on_threshold + one.on_threshold)
        found = Report(*sums, *one[3:])
        if found.difference:
            break
    return found


def _play(pair: Pair, job: Job, mode: str) -> Report:
    """What was found in one mode."""
    found, example, ended = Report(), ("", ""), np.zeros(job.num_envs, int)
    while ended.min() < job.episodes:
        cpu, other = pair.turn()
        ended += pair.ended
        different = differences(cpu, other)
        faults = _off_threshold(pair, other, different)
        if faults:
            return found._replace(difference=_told(pair, job, mode, faults[0]), script=_script(pair, job, mode, faults[0]))
        if different and not found.on_threshold:
            example = _told(pair, job, mode, different[0]), _script(pair, job, mode, different[0])
        identical = found.identical and not any(bits_apart(cpu[name], other[name]).any() for name in cpu)
        found = Report(found.results + job.num_envs, identical, found.on_threshold + len(different))
    if found.on_threshold > RARE * found.results:
        often = f"{found.on_threshold} of {found.results:,} results differ on a threshold, too often for rounding"
        found = found._replace(difference=f"{often}; the first: {example[0]}", script=example[1])
    return found


def _off_threshold(pair: Pair, other: Results, different: list[Difference]) -> list[Difference]:
    """Those that no tiny change of the state before explains."""
    if pair.turns == 1 or any(not d.element for d in different):
        return different
    random, left = np.random.default_rng(0), {d.element[0]: d for d in different}
    for k in range(TRIES):
        if not left:
            break
        rows = {row: d.agent(pair.agents) if k % 2 else None for row, d in left.items()}
        wrong = {d.element[0] for d in differences(pair.moved(rows, MOVED, random), other)}
        left = {row: d for row, d in left.items() if row in wrong}
    return list(left.values())


def _told(pair: Pair, job: Job, mode: str, d: Difference) -> str:
    when = {"reset": "in the first reset", "step": f"in step {pair.steps}"}
    when["masked reset"] = f"in the masked reset after step {pair.steps}"
    what = f"{d.place(pair.agents)} is {d.expected} on cpu and {d.found} on {job.backend}"
    return f"{mode}, {when[pair.call]}: {what}"


def _script(pair: Pair, job: Job, mode: str, d: Difference) -> str:
    """Lines that play on until the difference is there, and show it."""
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in job.variables.items())
    shared = ", ".join(f"{name}={value!r}" for name, value in job.shared(mode).items())
    element = f"[{d.name!r}]" + "".join(f"[{k}]" for k in d.element)
    return (
        f"import os\n{variables}from gpuvec.testing.target_check.lockstep_pair import Pair\n"
        f"pair = Pair({job.id!r}, {job.options!r}, {shared})\n"
        f"for _ in range({pair.turns}):\n    cpu, other = pair.turn()\n"
        f"print(cpu{element}, other{element})\n"
    )
