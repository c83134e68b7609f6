"""Names of the files in a run folder, and the contents of those in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SETTINGS, VERSIONS, METRICS, RESULT = "args.json", "versions.json", "metrics.jsonl", "result.json"
POPULATION, POPULATION_HISTORY, POPULATION_STATE = "population.json", "population.npz", "population.pt"
PBT = "pbt.json"  # of a population whose settings change: what changes, and how often
SWEEP = "sweep.json"  # of a search: its settings and, at the end, its result
PROCESSES = "processes.json"  # of several shards, or of torchrun: the processes, the shards, and which job wrote them
FAILURE = "failure.html"  # the replay of a number that was not finite
STOPPED = "on_iteration"  # as "ended_by" of a result: the caller of `training.train` stopped it before its time
MAX_RECORD_BYTES = 1 << 20  # the size up to which these files are read, metrics excepted


def parse_json(content: bytes) -> Any:
    """Parses JSON that anybody may have written.

    Args:
        content: the text, in UTF-8.

    Returns:
        The value, or None if the text is not JSON or is nested too deeply.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def to_json(values: Mapping[str, Any]) -> bytes:
    """Returns the content of a JSON file, indented, in UTF-8.

    Args:
        values: {name: value}, which can be represented in JSON.
    """
    return (json.dumps(values, indent=2) + "\n").encode()
