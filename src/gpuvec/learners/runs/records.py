"""Names of the files in a run folder, and the contents of those in JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import IO, Any

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.folder import RunFolder

SETTINGS, VERSIONS, METRICS, RESULT = "args.json", "versions.json", "metrics.jsonl", "result.json"
POPULATION = "population.npz"  # all of a population: its settings, its numbers, and the state from which it continues
PBT = "pbt"  # in the record of a population whose settings change: what changes, and how often
SWEEP = "sweep.json"  # of a search: its settings and, at the end, its result
PROCESSES = "processes.json"  # of several shards, or of torchrun: the processes, the shards, and which job wrote them
FAILURE = "failure.html"  # the replay of a number that was not finite
STOPPED = "on_iteration"  # as "ended_by" of a result: the caller of `training.train` stopped it before its time
PYTHON_OBJECTS = ("opponent", "loss", "metrics")  # arguments of `train` of which args.json has names alone
CHECKPOINT_EVERY = 50  # iterations between two checkpoints, unless a user says otherwise
MAX_RECORD_BYTES = 1 << 20  # the size up to which these files, and lines of metrics, are read
MAX_METRICS_BYTES = 1 << 33  # the size up to which metrics are read
MAX_METRIC_NAMES = 1024  # of the lines of a file
MAX_DEPTH = 64  # of lists and objects in each other


def open_metrics(folder: RunFolder) -> IO[bytes]:
    """Opens metrics.jsonl for reading. Read it by `readline(MAX_RECORD_BYTES)`, because it may be one long line.

    Args:
        folder: the run folder.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is not a regular file, or has more than `MAX_METRICS_BYTES` bytes.
    """
    file = folder.open(METRICS)
    if os.fstat(file.fileno()).st_size > MAX_METRICS_BYTES:
        file.close()
        raise CheckpointError(f"{folder.path / METRICS} has more than the {MAX_METRICS_BYTES:,} bytes that are read.")
    return file


def read_record(run: RunFolder, name: str) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if there is no such file or it is damaged.

    Args:
        run: the run folder.
        name: the name of the file.
    """
    try:
        record = parse_json(run.read(name, MAX_RECORD_BYTES))
    except (FileNotFoundError, CheckpointError):
        return {}
    return record if isinstance(record, dict) else {}


def finite_number(values: dict[str, Any], name: str) -> float:
    """Returns a number of a JSON object as a float, or nan if there is none or it is not finite.

    Args:
        values: the JSON object.
        name: the name of the number.
    """
    value = values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is one


def parse_json(content: bytes) -> Any:
    """Parses JSON that anybody may have written.

    Args:
        content: the text, in UTF-8.

    Returns:
        The value, or None if the text is not JSON or is nested more than `MAX_DEPTH` times.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    num_begins = content.count(b"[") + content.count(b"{")
    return value if num_begins <= MAX_DEPTH or _is_nested_at_most(value, MAX_DEPTH) else None


def _is_nested_at_most(value: Any, depth: int) -> bool:
    """Whether lists and objects are in each other at most `depth` times; what writes or prints them is recursive."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth >= 0 and all(_is_nested_at_most(part, depth - 1) for part in parts)


def to_json(values: Mapping[str, Any]) -> bytes:
    """Returns the content of a JSON file, indented, in UTF-8.

    Args:
        values: {name: value}, which can be represented in JSON.
    """
    return (json.dumps(values, indent=2) + "\n").encode()
