"""The files of a run folder that hold JSON: their names, and how they are read when anybody may have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SETTINGS, VERSIONS, METRICS, RESULT = "args.json", "versions.json", "metrics.jsonl", "result.json"
RECORD_LIMIT = 1 << 20  # bytes of one of these files, metrics aside


def parse_json(content: bytes) -> Any:
    """What JSON says, or None if it is none, or nested too deep to be read."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def to_json(values: Mapping[str, Any]) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(values, indent=2) + "\n").encode()
