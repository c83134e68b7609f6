"""Runs a comparison in another process, since a target may crash and Numba reads environment variables when it is imported.

The job and the report are files in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gpuvec.errors import GpuvecError
from gpuvec.python_command import python_command
from gpuvec.testing.cpu_time import allow_cpu_time
from gpuvec.testing.target_check.target_comparison import ComparisonJob, ComparisonReport, compare, merge_reports

COMMAND = "from gpuvec.testing.target_check.target_process import main; main(*sys.argv[1:])"
PLACE = "place.txt"  # the name of the file with the place of the present call, which remains if the process ends in it
COMPILATION_SECONDS = 600.0  # of CPU time; the first call of each kind compiles its kernels


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
    with tempfile.TemporaryDirectory() as folder:
        job_file, report_file, place_file = (Path(folder, name) for name in ("job.json", "report.json", PLACE))
        job_file.write_text(json.dumps(job._asdict()))
        process = subprocess.run(
            python_command(COMMAND, str(job_file), str(report_file)),
            env={**os.environ, **job.variables},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if report_file.exists():
            return ComparisonReport(**json.loads(report_file.read_text()))
        place = f"{place_file.read_text()}: " if place_file.exists() else ""
    status = process.returncode
    if status < 0 and status == -signal.SIGXCPU:  # Windows has neither
        limit = f"a call on cpu or on {job.target} does not return within {job.time_limit:g} s of CPU time"
        return ComparisonReport(difference=f"{place}{limit}; if it is only slow, raise --time-limit")
    cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return ComparisonReport(difference=f"{place}the process of the target ended with {cause}\n{process.stderr.strip()}")


def main(job_file: str, report_file: str) -> None:
    """Runs the job in a file and writes the report to another file.

    Args:
        job_file: the path of a `ComparisonJob` in JSON.
        report_file: the path of the `ComparisonReport` to write.
    """
    job = ComparisonJob(**json.loads(Path(job_file).read_text()))
    place_file = Path(report_file).with_name(PLACE)

    def on_call(place: str, is_first: bool) -> None:
        place_file.write_text(place)
        allow_cpu_time(job.time_limit + (COMPILATION_SECONDS if is_first else 0.0))

    try:
        report = compare(job, on_call)
    except GpuvecError as error:
        report = ComparisonReport(difference=f"{type(error).__name__}: {error}")
    Path(report_file).write_text(json.dumps(report._asdict()))
