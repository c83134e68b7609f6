"""The metrics of several runs, among them the agents of populations, for plots and comparisons. It does not import torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuvec.learners.population.results.agent_runs import read_agent_runs
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import RunHistory, read_history
from gpuvec.learners.runs.records import POPULATION, SETTINGS


def read_histories(paths: Iterable[Path], metric_name: str) -> tuple[list[RunHistory], list[str]]:
    """Reads the histories of runs; those that cannot be read are left out.

    Args:
        paths: run folders, folders of populations, whose agents are a run each, or folders that contain such folders.
        metric_name: as in `read_history`.

    Returns:
        The histories, and messages about what was left out.
    """
    histories, messages = [], []
    # The same folder may be named twice, such as by `runs runs/first`.
    unique_paths = {path.resolve(): path for folder in paths for path in run_paths(folder)}
    for path in unique_paths.values():
        try:
            with RunFolder(path) as run:
                runs = _read_runs(run, metric_name)
        except (OSError, ValueError) as error:
            messages.append(f"{error} It is left out.")
            continue
        histories += runs
        messages += [note for history in runs for note in history.notes]
    return histories, list(dict.fromkeys(messages))


def _read_runs(run: RunFolder, metric_name: str) -> list[RunHistory]:
    """Reads a run, or the agents of a population."""
    if POPULATION not in run.file_names():
        return [read_history(run, metric_name)]
    return read_agent_runs(run, metric_name)


def run_paths(folder: Path) -> list[Path]:
    """Returns the run folders that a path names: those in a folder that is none itself, or else the path.

    Args:
        folder: the path.
    """
    if not folder.is_dir() or _is_run(folder):
        return [folder]
    return sorted(filter(_is_run, folder.iterdir())) or [folder]


def _is_run(path: Path) -> bool:
    return (path / SETTINGS).is_file() or (path / POPULATION).is_file()
