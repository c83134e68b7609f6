"""The command `gpuvec`.

Each command is a function in a file of its own, which imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym

from gpuvec.errors import GpuvecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status: 0, 1 for a failure that it explains, 2 for a wrong command line."""
    try:
        import tyro
    except ModuleNotFoundError:
        print('gpuvec: the command line needs tyro, which is not installed: pip install "gpuvec[train]"', file=sys.stderr)
        return 1
    from gpuvec.cli import bench, check, doctor, envs, eval, new_env, train
    from gpuvec.learners.args.tuned import tuned

    try:
        settings = replace(tuned(**asked_for(arguments, "env", "device", "algorithm")), params={})
        commands: dict[str, Callable[..., int]] = {
            "train": with_default(train.train, settings=settings),
            "resume": train.resume,
            "eval": eval.evaluate,
            "envs": envs.envs,
            "check": check.check,
            "new-env": new_env.new_env,
            "doctor": doctor.doctor,
            "bench": bench.bench,
        }
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


def asked_for(arguments: Sequence[str] | None, *options: str) -> dict[str, Any]:
    """Those options that are given on the command line: the defaults of the others hang on them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        parser.add_argument(f"--{option}", default=argparse.SUPPRESS)
    try:
        return vars(parser.parse_known_args(arguments)[0])
    except argparse.ArgumentError:  # an option without its value, which the parser of the command explains
        return {}


def with_default(function: Callable[..., int], **defaults: Any) -> Callable[..., int]:
    """`function` with other defaults, and parameters of their types."""
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(default=defaults[name], annotation=type(defaults[name])) if name in defaults else p
        for name, p in signature.parameters.items()
    ]

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> int:
        return function(*args, **kwargs)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect asks for
    return called
