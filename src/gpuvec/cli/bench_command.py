"""The command `gpuvec bench`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import tyro

SUITE = Path("benchmarks", "tools", "suite.py")


def bench(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    list_names: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: Path | None = None,
    to: Path | None = None,
) -> int:
    """Run benchmarks, which are part of a checkout of gpuvec and not of the installed package.

    Args:
        names: the names of the benchmarks. By default all run, which takes an hour or more.
        list_names: print the names, and run nothing.
        json: a file to which figures are appended, one JSON object per line.
        to: the folder to which learning curves are written. By default benchmarks/results.
    """
    folders = Path(__file__).resolve().parents[3], Path.cwd()  # of the checkout that this file is in, or the working folder
    checkout = next((folder for folder in folders if (folder / SUITE).is_file()), None)
    if checkout is None:
        raise FileNotFoundError(
            f"the benchmarks are not part of the installed package: neither {folders[0]} nor {folders[1]} has {SUITE}. "
            "Run `gpuvec bench` in a checkout of gpuvec."
        )
    options = ["--list"] if list_names else []
    for option, path in (("--json", json), ("--to", to)):
        options += [option, str(path)] if path is not None else []
    with subprocess.Popen([sys.executable, str(checkout / SUITE), *names, *options]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # A terminal has sent it to the script, too, which takes the first one: it ends what it has started.
            process.send_signal(signal.SIGINT)
            return process.wait()
