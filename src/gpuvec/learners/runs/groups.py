"""Groups of runs that differ in their seed alone. This module does not import torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuvec.learners.runs.history import RunHistory

# The number of iterations only determines total_steps, and how often a policy is evaluated does not change it.
IGNORED_SETTINGS = ("env", "algorithm", "seed", "num_iterations", "evaluate_every", "evaluate_episodes")
MAX_VALUE_LENGTH = 40


class RunGroup(NamedTuple):
    """Runs of one environment and algorithm with equal settings, each with its own seed."""

    env: str
    algorithm: str
    settings: dict[str, str]
    """{setting: value as JSON}, those of `params` as "params.gravity"; without the seed."""
    runs: list[RunHistory]

    @property
    def metric_names(self) -> list[str]:
        """The names of the metric, one for each role if there are several policies."""
        return list(dict.fromkeys(name for run in self.runs for name in run.selected))


def group_runs(histories: Iterable[RunHistory]) -> tuple[list[RunGroup], list[str]]:
    """Groups runs by environment, algorithm and settings.

    Runs of the same seed are no independent samples, so the longest of them counts.

    Args:
        histories: the runs.

    Returns:
        The groups in the order of their first runs, and messages about runs that are left out.
    """
    groups: dict[str, RunGroup] = {}
    for history in histories:
        settings = _comparable_settings(history.settings)
        key = json.dumps([history.env, history.algorithm, sorted(settings.items())])
        groups.setdefault(key, RunGroup(history.env, history.algorithm, settings, [])).runs.append(history)
    messages = []
    for group in groups.values():
        by_seed: dict[str, RunHistory] = {}
        for run in sorted(group.runs, key=lambda run: -run.columns["steps"][-1]):
            longest = by_seed.setdefault(run.seed, run)
            if longest is not run:
                messages.append(f"{run.path} has the seed and the settings of {longest.path}. It is left out.")
        group.runs[:] = [run for run in group.runs if by_seed[run.seed] is run]
    return list(groups.values()), messages


def differing_settings(groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """Returns for each group the settings whose values are not the same in all groups that have them.

    Args:
        groups: the groups.
    """
    values: dict[str, set[str]] = {}
    for group in groups:
        for name, value in group.settings.items():
            values.setdefault(name, set()).add(value)
    return [{name: value for name, value in group.settings.items() if len(values[name]) > 1} for group in groups]


def describe_settings(settings: Mapping[str, str]) -> str:
    """Returns settings as text, such as "gamma=0.9 params.gravity=3.7"; long values are shortened.

    Args:
        settings: {setting: value as JSON}.
    """
    texts = (value.strip('"') for value in settings.values())
    texts = (text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..." for text in texts)
    return " ".join(f"{name}={text}" for name, text in zip(settings, texts, strict=True))


def unique_descriptions(groups: Sequence[RunGroup]) -> list[str]:
    """Returns a short name of each group among `groups`: its algorithm, and the settings that differ.

    Args:
        groups: the groups, of one environment.
    """
    names = [
        " ".join(filter(None, (group.algorithm, describe_settings(differing))))
        for group, differing in zip(groups, differing_settings(groups), strict=True)
    ]
    counts = Counter(names)  # shortened values may be equal
    return [f"{name} ({k})" if counts[name] > 1 else name for k, name in enumerate(names, 1)]


def _comparable_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "params" and isinstance(value, dict):
            flat |= {f"params.{parameter}": number for parameter, number in value.items()}
        elif name not in IGNORED_SETTINGS:
            flat[name] = value
    if isinstance(flat.get("device"), str):
        flat["device"] = re.sub(r":\d+$", "", flat["device"])  # GPUs of one machine are alike
    return {str(name)[:80]: json.dumps(value, sort_keys=True)[:1000] for name, value in flat.items()}
