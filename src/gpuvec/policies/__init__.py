"""Trained policies that come with gpuvec: a file and a model card for each. `gpuvec.load_policy(name)` reads one.

`tools/train_policies.py` trains them and writes both files. Importing this package imports neither torch nor safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"
RECORD = "<!-- record: ", " -->"  # around the JSON of a model card


def policy_names() -> tuple[str, ...]:
    """Returns the names of the policies that come with gpuvec, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}")))


def policy_path(name: str) -> Path:
    """Returns the path of the file of a policy that comes with gpuvec.

    Args:
        name: one of `policy_names()`.

    Raises:
        FileNotFoundError: there is no such policy; the message lists those that exist.
    """
    if name not in policy_names():
        raise FileNotFoundError(
            f"there is no policy {name!r}: give one that comes with gpuvec, {', '.join(policy_names())}, or the path of a run "
            "folder, of a checkpoint-<iteration>.pt or of a policy file."
        )
    return FOLDER / f"{name}{SUFFIX}"


def model_card(name: str) -> str:
    """Returns the model card of a policy, in Markdown: how it was trained, and its returns.

    Args:
        name: one of `policy_names()`.

    Raises:
        FileNotFoundError: there is no such policy; the message lists those that exist.
    """
    return policy_path(name).with_suffix(".md").read_text()


def read_record(card: str) -> dict[str, Any]:
    """Returns the record of a model card: what `tools/policy_card.py` describes, as it is stored in JSON.

    Args:
        card: the text of the card.

    Raises:
        ValueError: the card has no record.
    """
    for line in card.splitlines():
        if line.startswith(RECORD[0]) and line.endswith(RECORD[1]):
            record: dict[str, Any] = json.loads(line.removeprefix(RECORD[0]).removesuffix(RECORD[1]))
            return record
    raise ValueError("the card has no record: write it again with `python tools/train_policies.py train NAME`.")
