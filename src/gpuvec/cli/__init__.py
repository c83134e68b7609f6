"""The command `gpuvec`.

Each command is a function in a file of its own, which imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

from gpuvec.errors import GpuvecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status: 0, 1 for a failure that it explains, 2 for a wrong command line."""
    try:
        import tyro  # noqa: F401  # before anything else, for its absence has a message of its own
    except ModuleNotFoundError:
        print('gpuvec: the command line needs tyro, which is not installed: pip install "gpuvec[train]"', file=sys.stderr)
        return 1
    try:
        with working_folder_on_path():
            return run_command(arguments)
    except (GpuvecError, gym.error.Error, OSError, MemoryError, ModuleNotFoundError, ValueError) as error:
        remedy = ': pip install "gpuvec[train]"' if getattr(error, "name", None) in ("torch", "rich") else ""
        print(f"gpuvec: {in_one_line(error)}{remedy}", file=sys.stderr)
        return 1


def run_command(arguments: Sequence[str] | None) -> int:
    """Parses the command line and runs its command; the exit status."""
    import tyro

    from gpuvec.cli.bench_command import bench
    from gpuvec.cli.check_command import check
    from gpuvec.cli.doctor_command import doctor
    from gpuvec.cli.envs_command import envs
    from gpuvec.cli.eval_command import evaluate
    from gpuvec.cli.new_env_command import new_env
    from gpuvec.cli.runs_command import runs
    from gpuvec.cli.train_command import resume, train
    from gpuvec.cli.train_defaults import tuned_settings

    settings = tuned_settings(**asked_for(arguments, "env", "device", "algorithm"))
    commands: dict[str, Callable[..., int]] = {
        "train": with_default(train, settings=settings),
        "resume": resume,
        "eval": evaluate,
        "runs": runs,
        "envs": envs,
        "check": check,
        "new-env": new_env,
        "doctor": doctor,
        "bench": bench,
    }
    status: int = tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="gpuvec",
        description="Train and run reinforcement-learning environments on a GPU or a CPU.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return status


@contextmanager
def working_folder_on_path() -> Iterator[None]:
    """Lets `--env module:id` name a module in the working folder, as `python -m gpuvec` does.

    The installed command has its own folder on the path, and not the working folder. The working folder comes last: a file in
    it that has the name of an installed package does not take the package's place. With Python's option -P it is left out.
    """
    folder = str(Path.cwd())
    added = not sys.flags.safe_path and not {"", folder} & set(sys.path)
    if added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def in_one_line(error: BaseException) -> str:
    """The message of an error, or its type where it has none, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def asked_for(arguments: Sequence[str] | None, *options: str) -> dict[str, Any]:
    """Those options that are given on the command line: the defaults of the others depend on them."""
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
