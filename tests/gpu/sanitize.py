"""Runs the four tools of compute-sanitizer on every kernel, and each on a faulty kernel, which it must report.

    python tests/gpu/sanitize.py [--json PATH] [--log PATH]

The exit status is 0 if no tool reported an error in our kernels and each reported its faulty kernel. A tool that does not run
counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.gpu.sanitizer_learners import MISSING_BARRIERS, POPULATION_ENVS, PORTABLE_POPULATIONS
from tests.support.population_emulation import CASES

from benchmarks.tools.measure import Figures
from gpuvec.registration import registered_envs

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUNDLED_ENVS = tuple(registered_envs("gpuvec"))
TARGET = Path(__file__).with_name("sanitizer_target.py")
FUSED_ENVS = ("CartPole-v1", "Pendulum-v1", "TagGridWorld-v0", "TagContinuous-v0")
NAMES = {
    "population": (*POPULATION_ENVS, *PORTABLE_POPULATIONS, *CASES),  # takes longest, and so begins first
    "env": BUNDLED_ENVS,
    "game": (
        "direct-all", "direct-nearest", "tiled-all", "tiled-argmin", "tiled-argmin-of-1000",
        "split_tiled-all", "split_tiled-all-of-1025", "split_tiled-nearest", "split_tiled-nearest-of-1100",
        "split_tiled-argmin-of-1025", "split_direct-all-of-1025",
    ),
    "declared": (
        "tests.support.signal_env:ENV", "tests.support.guess_env:GUESSERS", "tests.support.harbor_env:HARBOR",
        "tests.support.guess_env:VISITORS", "tests.support.trolley_env:TROLLEYS", "tests.support.street_env:STREET",
        "tests.support.street_env:SLIPPERY_STREET",
    ),
    "rows": ("draws", "estimates", "convolutions", "convolution_linear", "gather", "biases", "losses", "adam"),
    "fused": (*FUSED_ENVS, "TagContinuous-v0 (roles)", "CartPole-v1 (256 units)"),
    "captured": ("Breakout-v0",),
    "visible": tuple(CASES),
}  # fmt: skip
SOURCES = {
    "env": BUNDLED_ENVS,
    "game": FUSED_ENVS[2:],
    "declared": FUSED_ENVS[2:],  # they contain the program for many agents, and rules of their own that nothing names
    "rows": ("learners",),
    "fused": ("learners", *FUSED_ENVS),
    "captured": ("learners", "Breakout-v0"),
    "population": ("learners", *POPULATION_ENVS),
    "visible": ("learners",),
    "planted": (),
}
# initcheck does not see what matrix products of libraries write, and reports the kernels of PyTorch that read it. The kernel
# whose accesses are "visible" is for racecheck, which does not see those of wgmma and stmatrix.
TOOLS_OF_KIND = {"captured": ("memcheck", "racecheck", "synccheck"), "visible": ("racecheck",)}
PLANTED = {tool: (tool,) for tool in TOOLS} | {
    "racecheck": ("racecheck", *MISSING_BARRIERS)
}  # names of the faults of each tool


class Job(NamedTuple):
    """A run of the target under a tool."""

    tool: str
    kind: str  # as in `NAMES`, or "planted"
    name: str


class Result(NamedTuple):
    """The result of a job."""

    job: Job
    reported: int | None  # None: the tool gave no summary
    passed: bool
    log: str
    seconds: float


def count_reports(log: str) -> int | None:
    """The number of errors or hazards in the summary of the tool; None without a summary."""
    counts: list[str] = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    return int(counts[-1]) if counts else None


def make_result(job: Job, log: str, status: int, seconds: float) -> Result:
    """The result of a job, which passes if the tool reported an error in a faulty kernel only."""
    number = count_reports(log)
    if job.kind == "planted":
        return Result(job, number, bool(number) and f"planted {job.name}" in log, log, seconds)
    return Result(job, number, number == 0 and status == 0 and f"finished {job.name}" in log, log, seconds)


def run(program: str, job: Job, port: int, seconds: float, end: float) -> Result:
    """Runs a job for at most `seconds`, and not beyond `end`, a time of the monotonic clock."""
    seconds = min(seconds, end - time.monotonic())
    if seconds <= 0:
        return make_result(job, "not started: the time limit of all jobs was reached\n", 124, 0.0)
    options = ["--tool", job.tool, "--port", str(port), "--launch-timeout", "300"]
    if job.tool == "memcheck":  # CuPy queries pointers that CUDA does not know, and handles the error.
        options += ["--report-api-errors", "no"]
    command = [program, *options, sys.executable, str(TARGET), job.kind, job.name]
    start = time.monotonic()
    try:
        process = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        log = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return make_result(job, f"{log}\nstopped after {seconds} s\n", 124, seconds)
    return make_result(job, process.stdout, process.returncode, time.monotonic() - start)


def list_jobs(tools: Sequence[str], kinds: Sequence[str], names: Sequence[str]) -> list[Job]:
    """Returns the runs of `tools` on their faulty kernels, and on all kernels of `kinds` whose names are in `names`.

    The runs of one tool follow those of another, so that only the first of them compile.
    """
    planted = [Job(tool, "planted", name) for tool in tools for name in PLANTED[tool]]
    jobs = [Job(tool, kind, name) for tool in tools for kind in kinds for name in NAMES[kind] if name in names]
    return [job for job in jobs if job.tool in TOOLS_OF_KIND.get(job.kind, TOOLS)] + planted


def main() -> int:
    """Runs all jobs; returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, metavar="PATH", help="append the figures to this file, one JSON object a line")
    p.add_argument("--log", type=Path, metavar="PATH", help="append the output of the tools to this file")
    p.add_argument("--seconds", type=float, default=200, help="time limit of a job")
    p.add_argument("--together", type=float, default=3600, help="time limit of all jobs in seconds; the remaining ones fail")
    p.add_argument("--parallel", type=int, default=min(16, os.cpu_count() or 1))
    p.add_argument("--kinds", nargs="*", choices=list(NAMES), default=list(NAMES), help="kinds of kernels to check")
    all_names = sorted({name for names in NAMES.values() for name in names})
    p.add_argument("--names", nargs="*", choices=all_names, default=all_names, metavar="NAME", help="kernels to check")
    p.add_argument("--tools", nargs="*", choices=TOOLS, default=TOOLS, help="tools that run")
    args = p.parse_args()
    if args.json and args.names != all_names:
        p.error("figures are those of all kernels of a kind: --json cannot be used with --names")
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        print("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit.")
        return 1

    jobs = list_jobs(args.tools, args.kinds, args.names)
    end = time.monotonic() + args.together
    results = []
    with ThreadPoolExecutor(args.parallel) as pool:  # Each job needs its own port.
        futures = [pool.submit(run, program, job, 49152 + 32 * k, args.seconds, end) for k, job in enumerate(jobs)]
        for future in as_completed(futures):
            result = future.result()
            results.append(result)
            job, number = result.job, "no summary" if result.reported is None else f"{result.reported} reported"
            verdict = "ok" if result.passed else "FAILED"
            print(f"{job.tool:<10} {job.kind:<10} {job.name:<28} {number:<16} {result.seconds:4.0f} s {verdict}", flush=True)
            if not result.passed:
                print("\n".join(f"    {line}" for line in result.log.splitlines()[-25:]), flush=True)
            if args.log:
                with args.log.open("a") as file:
                    file.write(f"===== {' '.join(job)}\n{result.log}\n")
    figures = Figures("sanitizer", args.json)
    for tool in args.tools:
        for kind in (*args.kinds, "planted"):
            results_of_kind = [r for r in results if r.job.tool == tool and r.job.kind == kind]
            passed, reported = all(r.passed for r in results_of_kind), sum(r.reported or 0 for r in results_of_kind)
            if results_of_kind:
                figures.add(f"{tool}.{kind}", reported, "reports", SOURCES[kind], passed=passed, runs=len(results_of_kind))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
