"""The files of live replays in a run folder.

::

    live-<iteration>.html           a replay of the policies after an iteration
    live-<iteration>.safetensors    these policies
    live-<iteration>.mp4, .gif      the episode of the first environment, if the training captures videos
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.folder import RunFolder

MAX_REPLAYS = 20  # that a run folder keeps
REPLAY, POLICY = ".html", ".safetensors"
SUFFIXES = (REPLAY, POLICY, ".mp4", ".gif")
REPLAY_NAME = re.compile(r"live-(\d{1,18})\.html")


def file_name(iteration: int, suffix: str) -> str:
    """Returns the name of a file of a live replay.

    Args:
        iteration: the number of iterations of the policy.
        suffix: one of `SUFFIXES`, or "" for the part that all have in common.
    """
    return f"live-{iteration}{suffix}"


def live_iterations(folder: RunFolder) -> list[int]:
    """Returns the iterations of which a run folder has live replays, in ascending order.

    Args:
        folder: the run folder.
    """
    return sorted(int(match[1]) for name in folder.file_names() if (match := REPLAY_NAME.fullmatch(name)))


def remove_surplus(folder: RunFolder) -> None:
    """Removes replays with their policies and videos until `MAX_REPLAYS` are left, which cover the whole training.

    Args:
        folder: the run folder.
    """
    iterations = live_iterations(folder)
    while len(iterations) > MAX_REPLAYS:
        surplus = iterations.pop(find_surplus(iterations))
        for suffix in SUFFIXES:
            folder.remove(file_name(surplus, suffix))


def find_surplus(iterations: Sequence[int]) -> int:
    """Returns the position of the iteration between the two neighbours that are closest to each other.

    Args:
        iterations: at least three, in ascending order.
    """
    return min(range(1, len(iterations) - 1), key=lambda k: iterations[k + 1] - iterations[k - 1])


def require_live_replays(folder: RunFolder) -> None:
    """Checks that a run folder has live replays, or that a training that may write them is running.

    Args:
        folder: the run folder.

    Raises:
        CheckpointError: there are none, and no training writes to the folder.
    """
    if not live_iterations(folder) and not folder.is_locked():
        raise CheckpointError(
            f"{folder.path} has no live replays, and no training is running in it: `gpuvec train --watch 30` saves one every "
            "30 seconds. Without --live, `gpuvec watch` plays the newest checkpoint."
        )
