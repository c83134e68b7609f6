"""`gpuvec bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import tyro

SUITE = Path("benchmarks", "tools", "suite.py")


def bench(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    listed: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: Path | None = None,
    to: Path | None = None,
) -> int:
    """Run benchmarks. They are part of a checkout of gpuvec, and not of the installed package.

    Args:
        names: the names of the benchmarks. By default all run, which takes an hour or more.
        listed: print the names, and run nothing.
        json: a file to which figures are appended, one JSON object per line.
        to: the folder where learning curves are written. By default benchmarks/results.
    """
    options = ["--list"] if listed else []
    for option, path in (("--json", json), ("--to", to)):
        options += [option, str(path)] if path is not None else []
    return subprocess.run([sys.executable, str(checkout() / SUITE), *names, *options], check=False).returncode


def checkout() -> Path:
    """The folder that this file was checked out into, or the one where we are.

    Raises:
        FileNotFoundError: neither has the benchmarks.
    """
    source, here = Path(__file__).resolve().parents[3], Path.cwd()
    for folder in (source, here):
        if (folder / SUITE).is_file():
            return folder
    raise FileNotFoundError(
        f"the benchmarks are no part of the installed package: neither {source} nor {here} has {SUITE}. "
        "Run `gpuvec bench` in a checkout of gpuvec."
    )
