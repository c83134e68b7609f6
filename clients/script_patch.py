"""Changes lines of a client's script and runs it, for clients that are scripts which users copy and edit."""

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def patch(text: str, replacements: Iterable[tuple[str, str]]) -> tuple[str, int]:
    """Replaces parts of a script.

    Args:
        text: the script.
        replacements: pairs of a text, which the script must contain once, and the text that replaces it.

    Returns:
        The changed script, and how many lines differ: a line that is replaced, added or removed counts once.
    """
    changed = text
    for old, new in replacements:
        if changed.count(old) != 1:
            sys.exit(f"the script is not the one that this check was written for: it has {changed.count(old)} times {old!r}")
        changed = changed.replace(old, new)
    blocks = difflib.SequenceMatcher(None, text.splitlines(), changed.splitlines(), autojunk=False).get_opcodes()
    return changed, sum(max(a1 - a0, b1 - b0) for tag, a0, a1, b0, b1 in blocks if tag != "equal")


def run_script(name: str, text: str, *arguments: str) -> str:
    """Writes a script to the working folder and runs it.

    Args:
        name: of the file.
        text: the script.
        arguments: of its command line.

    Returns:
        What it printed.
    """
    script = Path(name).resolve()
    script.write_text(text)
    environment = {**os.environ, "WANDB_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], check=False, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def returns_in(output: str) -> list[float]:
    """Returns the returns of the episodes, in order, in the `output` of a script of CleanRL."""
    return [float(number) for number in re.findall(r"episodic_return=\[?\s*(-?[\d.]+(?:e[+-]?\d+)?)", output)]
