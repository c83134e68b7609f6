"""Runs a client's script with a few lines changed, for clients that are scripts to copy and edit."""

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def patch(text: str, replacements: Iterable[tuple[str, str]]) -> tuple[str, int]:
    """The script with each pair's first text, which must be there once, replaced by its second; how many lines differ.

    A line that was replaced counts once, and so does one that was added or removed alone.
    """
    changed = text
    for old, new in replacements:
        if changed.count(old) != 1:
            sys.exit(f"the script is not the one that this check was written for: it has {changed.count(old)} times {old!r}")
        changed = changed.replace(old, new)
    blocks = difflib.SequenceMatcher(None, text.splitlines(), changed.splitlines(), autojunk=False).get_opcodes()
    return changed, sum(max(a1 - a0, b1 - b0) for tag, a0, a1, b0, b1 in blocks if tag != "equal")


def run_script(name: str, text: str, *arguments: str) -> str:
    """Writes the script to the working folder and runs it; what it printed."""
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
    """The episodes' returns that a script of CleanRL printed, in order."""
    return [float(found) for found in re.findall(r"episodic_return=\[?\s*(-?[\d.]+(?:e[+-]?\d+)?)", output)]
