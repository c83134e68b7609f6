"""The trials of a search and their scores, as its folder has them. This module imports no torch.

Letters: N trials.
"""

from __future__ import annotations

import reprlib
import zipfile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.population.search.search_space import FloatArray, SearchParameter, is_finite_number
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, parse_json

TRIALS = "trials.npz"


class Trials(NamedTuple):
    """The trials of a search."""

    env: str
    """The id of the environment."""
    parameters: tuple[SearchParameter, ...]
    """The settings that were varied."""
    values: dict[str, FloatArray]
    """{setting: (N,)}."""
    scores: FloatArray
    """(N,): the mean final return in the last part that a trial took; nan for none."""
    parts: NDArray[np.int64]
    """(N,): the number of that part, from 0; -1 for none."""


def parse_parameters(content: object) -> tuple[SearchParameter, ...]:
    """Returns the settings that a search varies, which a file contained.

    Args:
        content: expected as [[name, scale, low, high], ...].

    Raises:
        CheckpointError: it is something else.
    """
    if not isinstance(content, list) or not content:
        raise CheckpointError(f"parameters must be a list of settings, got {reprlib.repr(content)}.")
    for each in content:
        if not isinstance(each, list) or len(each) != 4 or not _is_parameter(*each):
            raise CheckpointError(f"parameters must have names, scales and ranges, got {reprlib.repr(each)}.")
    return tuple(SearchParameter(*each) for each in content)


def _is_parameter(name: Any, scale: Any, low: Any, high: Any) -> bool:
    is_range = is_finite_number(low) and is_finite_number(high) and low < high
    return isinstance(name, str) and is_range and (scale == "linear" or (scale == "log" and low > 0))


def read_trials(folder: RunFolder) -> Trials:
    """Reads the trials of a search from its folder, which anybody may have written.

    Args:
        folder: the folder of the search.

    Raises:
        FileNotFoundError: it is not the folder of a search, or no part of the search is finished.
        CheckpointError: a file is damaged.
    """
    record = parse_json(folder.read(SWEEP, MAX_RECORD_BYTES))
    try:
        parameters = parse_parameters(record.get("parameters") if isinstance(record, dict) else None)
    except CheckpointError as error:
        raise CheckpointError(f"{folder.path / SWEEP} is damaged: {error}") from error
    if TRIALS not in folder.file_names():
        raise FileNotFoundError(f"{folder.path} has no {TRIALS}: no part of the search is finished.")
    with folder.open(TRIALS) as file:
        try:
            with np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in (*(each.name for each in parameters), "score", "part")}
        except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{folder.path / TRIALS} is damaged: it has not the trials of a search ({error}).") from error
    parts = arrays.pop("part")
    if any(x.shape != (len(parts),) or x.dtype != np.float64 for x in arrays.values()) or parts.dtype.kind != "i":
        raise CheckpointError(f"{folder.path / TRIALS} is damaged: it has not a number for each trial.")
    base = record.get("base")
    env = str(base.get("env", "?"))[:80] if isinstance(base, dict) else "?"
    scores = arrays.pop("score")
    return Trials(env, parameters, arrays, scores, parts.astype(np.int64))
