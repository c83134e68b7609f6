"""Imports the module of the environment that a checkpoint names."""

from __future__ import annotations

import importlib
from pathlib import Path

from gpuvec.errors import CheckpointError


def import_env_module(env_id: str, trust: bool, path: Path) -> None:
    """Imports the module of a checkpoint's environment if the user trusts it.

    Args:
        env_id: the id of the environment, "module:id" or "id".
        trust: whether importing the module is allowed.
        path: the path of the run or the checkpoint, for the message.

    Raises:
        CheckpointError: the module is not imported yet, and not trusted.
    """
    from gpuvec.learners.runs.content_checks import require_trusted

    module, _, _ = env_id.rpartition(":")
    if module and trust:
        importlib.import_module(module)
    try:
        require_trusted(env_id)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
