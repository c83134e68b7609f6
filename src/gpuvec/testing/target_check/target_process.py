"""A comparison in a process of its own: what a backend needs must be set before Numba is imported, and it may crash.

`python -m gpuvec.testing JOB REPORT` plays the job that is in the first file and writes the second; both are JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuvec.errors import GpuvecError
from gpuvec.testing.target_check.target_comparison import Job, Report, compare


def compared(job: Job, processes: int = 1) -> Report:
    """`compare(job)`, in other processes: in so many at the same time, each of which plays some of the modes.

    A process that ends without a report, or an environment that the backend cannot play, is a report's `difference`.
    """
    parts = [job._replace(modes=(mode,)) for mode in job.modes] if processes > 1 else [job]
    with ThreadPoolExecutor(processes) as waiting:
        return united(waiting.map(_compared, parts))


def united(reports: Iterable[Report]) -> Report:
    """One report of several: their sums, and the first difference."""
    total = Report()
    for one in reports:
        sums = (total.results + one.results, total.identical and one.identical, total.on_threshold + one.on_threshold)
        first = total if total.difference else one
        total = Report(*sums, first.difference, first.script)
    return total


def _compared(job: Job) -> Report:
    path = os.pathsep.join(place for place in sys.path if place)  # it finds what this one finds
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder, "job.json"), Path(folder, "report.json")
        asked.write_text(json.dumps(job._asdict()))
        done = subprocess.run(
            [sys.executable, "-m", "gpuvec.testing", str(asked), str(report)],
            env={**os.environ, **job.variables, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if report.exists():
            return Report(**json.loads(report.read_text()))
    how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"status {done.returncode}"
    return Report(difference=f"the process that played it ended with {how}\n{done.stderr.strip()}")


def main(asked: str, report: str) -> None:
    """Plays the job in one file and writes what was found to the other."""
    try:
        found = compare(Job(**json.loads(Path(asked).read_text())))
    except GpuvecError as error:
        found = Report(difference=f"{type(error).__name__}: {error}")
    Path(report).write_text(json.dumps(found._asdict()))
