"""Runs a comparison in another process, since a target may crash and Numba reads environment variables when it is imported.

`python -m gpuvec.testing JOB REPORT` runs the job in the first file and writes the second file; both are JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuvec.errors import GpuvecError
from gpuvec.testing.target_check.target_comparison import ComparisonJob, ComparisonReport, compare, merge_reports


def compare_in_processes(job: ComparisonJob, num_processes: int = 1) -> ComparisonReport:
    """Runs `compare(job)` in other processes.

    Args:
        job: the comparison. A process that ends without a report, or an environment that the target cannot run, is reported
            as a difference.
        num_processes: the number of processes that run at the same time; with more than one, each compares one autoreset
            mode.
    """
    parts = [job._replace(modes=(mode,)) for mode in job.modes] if num_processes > 1 else [job]
    with ThreadPoolExecutor(num_processes) as executor:
        return merge_reports(list(executor.map(_compare_in_process, parts)))


def _compare_in_process(job: ComparisonJob) -> ComparisonReport:
    path = os.pathsep.join(entry for entry in sys.path if entry)  # the process imports from the same folders
    with tempfile.TemporaryDirectory() as folder:
        job_file, report_file = Path(folder, "job.json"), Path(folder, "report.json")
        job_file.write_text(json.dumps(job._asdict()))
        process = subprocess.run(
            [sys.executable, "-m", "gpuvec.testing", str(job_file), str(report_file)],
            env={**os.environ, **job.variables, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if report_file.exists():
            return ComparisonReport(**json.loads(report_file.read_text()))
    status = process.returncode
    cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return ComparisonReport(difference=f"the process of the target ended with {cause}\n{process.stderr.strip()}")


def main(job_file: str, report_file: str) -> None:
    """Runs the job in a file and writes the report to another file.

    Args:
        job_file: the path of a `ComparisonJob` in JSON.
        report_file: the path of the `ComparisonReport` to write.
    """
    try:
        report = compare(ComparisonJob(**json.loads(Path(job_file).read_text())))
    except GpuvecError as error:
        report = ComparisonReport(difference=f"{type(error).__name__}: {error}")
    Path(report_file).write_text(json.dumps(report._asdict()))
