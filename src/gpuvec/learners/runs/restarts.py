"""What processes that start again read of a run: which one they had begun, and what they exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuvec.learners.runs.checkpoint import checkpoint_names
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, PROCESSES, RESULT, parse_json
from gpuvec.learners.shards.torchrun import Sync


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
            is_own = _processes_record(folder).get("run_id") == run_id
            if is_own and RESULT not in folder.file_names() and checkpoint_names(folder):
                return path
    return None


def recorded_sync(folder: RunFolder) -> Sync:
    """Returns what the processes of a run exchange.

    Args:
        folder: the run folder.
    """
    return "iteration" if _processes_record(folder).get("sync") == "iteration" else "gradient"


def _processes_record(folder: RunFolder) -> dict[str, Any]:
    """The contents of processes.json; empty for a run of one shard."""
    if PROCESSES not in folder.file_names():
        return {}
    record = parse_json(folder.read(PROCESSES, MAX_RECORD_BYTES))
    return record if isinstance(record, dict) else {}
