"""Finds the run that the processes of torchrun had begun before one of them failed."""

from __future__ import annotations

from pathlib import Path

from gpuvec.learners.runs.checkpoint import checkpoint_names
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, PROCESSES, RESULT, parse_json


def find_interrupted_run(runs: Path, run_id: str) -> Path | None:
    """Returns the path of the run folder that processes of the same torchrun wrote; None if it has no checkpoint yet.

    Args:
        runs: the path of the folder in which the run folders are.
        run_id: what torchrun calls itself.
    """
    for path in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else []:
        if not (path / PROCESSES).is_file():
            continue
        with RunFolder(path) as folder:
            record = parse_json(folder.read(PROCESSES, MAX_RECORD_BYTES))
            is_own = isinstance(record, dict) and record.get("run_id") == run_id
            if is_own and RESULT not in folder.file_names() and checkpoint_names(folder):
                return path
    return None
