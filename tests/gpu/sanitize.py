"""Runs compute-sanitizer's four tools over every kernel, and over a planted bug each, which must be reported.

    python tests/gpu/sanitize.py [--json PATH] [--log PATH]

Exit status 0: no tool reported anything of ours, and each caught its bug. A tool that did not run counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures
from gpuvec import SingleAgentEnv
from gpuvec.registration import registered_envs

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUNDLED_ENVS = registered_envs("gpuvec")
SINGLE_AGENT = tuple(name for name, env in BUNDLED_ENVS.items() if isinstance(env, SingleAgentEnv))
TARGET = Path(__file__).with_name("sanitizer_target.py")
GAMES = (
    "straight-all", "straight-nearest", "boxed-all", "boxed-least", "boxed-least-of-1000", "tiles-all", "tiles-all-of-1025",
    "tiles-nearest", "tiles-nearest-of-1100", "tiles-least-of-1025", "features-all-of-1025",
)  # fmt: skip
FUSED = ("CartPole-v1", "Pendulum-v1", "TagContinuous-v0")
NAMES = {"game": GAMES, "env": SINGLE_AGENT, "rollout": SINGLE_AGENT, "rows": ("draws", "estimates"), "fused": FUSED}
NAMES["extreme"] = tuple(BUNDLED_ENVS)
SOURCES = {
    "game": ("TagGridWorld-v0", *FUSED[2:]),
    "env": SINGLE_AGENT,
    "rollout": SINGLE_AGENT,
    "extreme": NAMES["extreme"],
    "rows": ("learners",),
    "fused": ("learners", *FUSED),
    "planted": (),
}
CHECKED = {"env": 6, "game": 3, "rollout": 3, "rows": 2, "fused": 2, "extreme": 1}  # lines that the target prints for one


class Job(NamedTuple):
    """One program under one tool."""

    tool: str
    kind: str  # as in `NAMES`, or "planted"
    name: str


class Result(NamedTuple):
    """What came of a job."""

    job: Job
    reported: int | None  # None: the tool gave no summary
    passed: bool
    log: str


def reported(log: str) -> int | None:
    """The number of errors, or hazards, in the tool's summary; None without one."""
    found: list[str] = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    return int(found[-1]) if found else None


def judge(job: Job, log: str, status: int) -> Result:
    """Whether the tool reported what it should."""
    number = reported(log)
    if job.kind == "planted":
        return Result(job, number, bool(number) and f"planted {job.tool}" in log, log)
    return Result(job, number, number == 0 and status == 0 and log.count(f"checked {job.name} ") == CHECKED[job.kind], log)


def run(program: str, job: Job, port: int, seconds: float, end: float) -> Result:
    """Runs a job for at most so many seconds, and not beyond `end`, a time of the monotonic clock."""
    seconds = min(seconds, end - time.monotonic())
    if seconds <= 0:
        return judge(job, "not started: the time of all jobs together was up\n", 124)
    options = ["--tool", job.tool, "--port", str(port), "--launch-timeout", "300"]
    if job.tool == "memcheck":  # CuPy asks about pointers that CUDA does not know, and expects the error
        options += ["--report-api-errors", "no"]
    command = [program, *options, sys.executable, str(TARGET), job.kind, job.name]
    try:
        found = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        log = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return judge(job, f"{log}\nstopped after {seconds} s\n", 124)
    return judge(job, found.stdout, found.returncode)


def main() -> int:
    """Runs all jobs; returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, metavar="PATH", help="append the numbers there, one JSON object a line")
    p.add_argument("--log", type=Path, metavar="PATH", help="append everything that the tools print there")
    p.add_argument("--seconds", type=float, default=200, help="that a job may take")
    p.add_argument("--together", type=float, default=3600, help="seconds that all jobs together may take; the rest fail")
    p.add_argument("--parallel", type=int, default=min(16, os.cpu_count() or 1))
    p.add_argument("--kinds", nargs="*", choices=list(NAMES), default=list(NAMES), help="of kernels to look at")
    given = p.parse_args()
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        print("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit.")
        return 1

    jobs = [Job(tool, "planted", tool) for tool in TOOLS]
    jobs += [Job(tool, kind, name) for kind in given.kinds for tool in TOOLS for name in NAMES[kind]]
    end = time.monotonic() + given.together
    with ThreadPoolExecutor(given.parallel) as pool:  # each needs a port of its own
        results = list(pool.map(lambda k: run(program, jobs[k], 49152 + 32 * k, given.seconds, end), range(len(jobs))))
    for result in results:
        job, number = result.job, "no summary" if result.reported is None else f"{result.reported} reported"
        print(f"{job.tool:<10} {job.kind:<8} {job.name:<26} {number:<16} {'ok' if result.passed else 'FAILED'}")
        if not result.passed:
            print("\n".join(f"    {line}" for line in result.log.splitlines()[-25:]))
        if given.log:
            with given.log.open("a") as file:
                file.write(f"===== {' '.join(job)}\n{result.log}\n")
    figures = Figures("sanitizer", given.json)
    for tool in TOOLS:
        for kind in (*given.kinds, "planted"):
            own = [r for r in results if r.job.tool == tool and r.job.kind == kind]
            passed = all(r.passed for r in own)
            figures.add(f"{tool}.{kind}", sum(r.reported or 0 for r in own), "reports", SOURCES[kind], passed=passed)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
