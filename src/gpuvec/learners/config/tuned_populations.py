"""Settings that searches found for agents of a population, which have few environments each. This module imports no torch.

The file `tuned_populations.json` has an entry for each environment, which `tools/write_tuned.py` writes:
{"settings": those that differ from the defaults, "search": what was searched, and what the settings reached on fresh seeds}.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

NUM_ENVS = 16
"""The number of environments of an agent, if nothing else says it."""
FILE = Path(__file__).with_name("tuned_populations.json")


@functools.cache
def tuned_populations() -> dict[str, dict[str, Any]]:
    """Returns {id of an environment: its entry}."""
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return entries


def population_settings(env: str) -> dict[str, Any] | None:
    """Returns the settings that differ from the defaults of PPO, for an agent of a population; None where no search was made.

    Args:
        env: id of an environment.
    """
    entry = tuned_populations().get(env.rpartition(":")[2])
    if entry is None:
        return None
    # JSON has lists in place of tuples.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry["settings"].items()}
