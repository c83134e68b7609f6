"""The command `gpuvec`.

Each command is a function in a file of its own, which imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import gymnasium as gym

from gpuvec.errors import GpuvecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status: 0, 1 for a failure that it explains, 2 for a wrong command line."""
    try:
        import tyro
    except ModuleNotFoundError:
        print('gpuvec: the command line needs tyro, which is not installed: pip install "gpuvec[train]"', file=sys.stderr)
        return 1
    from gpuvec.cli import doctor, envs, eval, train

    commands: dict[str, Callable[..., int]] = {
        "train": train.train,
        "eval": eval.evaluate,
        "envs": envs.envs,
        "doctor": doctor.doctor,
    }
    try:
        status: int = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="gpuvec",
            description="Environments and learners on one GPU, or on a CPU.",
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except (GpuvecError, gym.error.Error, FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        remedy = ': pip install "gpuvec[train]"' if getattr(error, "name", None) in ("torch", "rich") else ""
        print(f"gpuvec: {error}{remedy}", file=sys.stderr)
        return 1
    return status
