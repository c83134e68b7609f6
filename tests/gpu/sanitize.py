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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures
from gpuvec import SingleAgentEnv
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.registration import registered_envs

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUNDLED_ENVS = registered_envs("gpuvec")
SINGLE_AGENT = tuple(name for name, env in BUNDLED_ENVS.items() if isinstance(env, SingleAgentEnv))
WITH_ROLLOUTS = tuple(name for name in SINGLE_AGENT if not isinstance(make_schema(BUNDLED_ENVS[name]), MultiAgentSchema))
TARGET = Path(__file__).with_name("sanitizer_target.py")
MULTI_AGENT_CASES = (
    "direct-all", "direct-nearest", "tiled-all", "tiled-argmin", "tiled-argmin-of-1000",
    "split_tiled-all", "split_tiled-all-of-1025", "split_tiled-nearest", "split_tiled-nearest-of-1100",
    "split_tiled-argmin-of-1025", "split_direct-all-of-1025",
)  # fmt: skip
FUSED = ("CartPole-v1", "Pendulum-v1", "TagContinuous-v0")
NAMES = {
    "game": MULTI_AGENT_CASES,
    "env": SINGLE_AGENT,
    "rollout": WITH_ROLLOUTS,
    "rows": ("draws", "estimates", "convolutions", "convolution_linear", "gather", "biases", "losses", "adam"),
    "fused": FUSED,
}
NAMES["extreme"] = tuple(BUNDLED_ENVS)
SOURCES = {
    "game": ("TagGridWorld-v0", *FUSED[2:]),
    "env": SINGLE_AGENT,
    "rollout": WITH_ROLLOUTS,
    "extreme": NAMES["extreme"],
    "rows": ("learners",),
    "fused": ("learners", *FUSED),
    "planted": (),
}
CHECKED = {"env": 6, "game": 3, "rollout": 3, "rows": 2, "fused": 2, "extreme": 1}  # lines that the target prints for one name


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


def count_reports(log: str) -> int | None:
    """The number of errors or hazards in the summary of the tool; None without a summary."""
    counts: list[str] = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    return int(counts[-1]) if counts else None


def make_result(job: Job, log: str, status: int) -> Result:
    """The result of a job, which passes if the tool reported an error in a faulty kernel only."""
    number = count_reports(log)
    if job.kind == "planted":
        return Result(job, number, bool(number) and f"planted {job.tool}" in log, log)
    return Result(job, number, number == 0 and status == 0 and log.count(f"checked {job.name} ") == CHECKED[job.kind], log)


def run(program: str, job: Job, port: int, seconds: float, end: float) -> Result:
    """Runs a job for at most `seconds`, and not beyond `end`, a time of the monotonic clock."""
    seconds = min(seconds, end - time.monotonic())
    if seconds <= 0:
        return make_result(job, "not started: the time limit of all jobs was reached\n", 124)
    options = ["--tool", job.tool, "--port", str(port), "--launch-timeout", "300"]
    if job.tool == "memcheck":  # CuPy queries pointers that CUDA does not know, and handles the error.
        options += ["--report-api-errors", "no"]
    environment = dict(os.environ)
    if (job.tool, job.kind) == ("memcheck", "rows"):  # An access beyond a tensor is then one beyond an allocation.
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    command = [program, *options, sys.executable, str(TARGET), job.kind, job.name]
    try:
        process = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired as error:
        log = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return make_result(job, f"{log}\nstopped after {seconds} s\n", 124)
    return make_result(job, process.stdout, process.returncode)


def list_jobs(tools: Sequence[str], kinds: Sequence[str], names: Sequence[str]) -> list[Job]:
    """Returns the runs of `tools` on their faulty kernels, and on all kernels of `kinds` whose names are in `names`."""
    planted = [Job(tool, "planted", tool) for tool in tools]
    return planted + [Job(tool, kind, name) for kind in kinds for tool in tools for name in NAMES[kind] if name in names]


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
    with ThreadPoolExecutor(args.parallel) as pool:  # Each job needs its own port.
        results = list(pool.map(lambda k: run(program, jobs[k], 49152 + 32 * k, args.seconds, end), range(len(jobs))))
    for result in results:
        job, number = result.job, "no summary" if result.reported is None else f"{result.reported} reported"
        print(f"{job.tool:<10} {job.kind:<8} {job.name:<26} {number:<16} {'ok' if result.passed else 'FAILED'}")
        if not result.passed:
            print("\n".join(f"    {line}" for line in result.log.splitlines()[-25:]))
        if args.log:
            with args.log.open("a") as file:
                file.write(f"===== {' '.join(job)}\n{result.log}\n")
    figures = Figures("sanitizer", args.json)
    for tool in args.tools:
        for kind in (*args.kinds, "planted"):
            results_of_kind = [r for r in results if r.job.tool == tool and r.job.kind == kind]
            passed = all(r.passed for r in results_of_kind)
            figures.add(
                f"{tool}.{kind}", sum(r.reported or 0 for r in results_of_kind), "reports", SOURCES[kind], passed=passed
            )
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
