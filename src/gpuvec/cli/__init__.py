"""The command line `gpuvec`.

Each command is a function in its own module. It imports large packages when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from gpuvec.cli.terminal import print_lines
from gpuvec.errors import GpuvecError, install_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after `gpuvec`; those of the process by default.

    Returns:
        The exit status: 0 for success, 1 for a failure with a message, 2 for a wrong command line, and 75 if another process of
        the training ended.
    """
    try:
        import tyro  # noqa: F401  # imported first, because a missing tyro has its own message
    except ModuleNotFoundError:
        message = f"gpuvec: the command line needs tyro, which is not installed: {install_command('train')}"
        print_lines(message, is_error=True)
        return 1
    from gpuvec.cli.processes import output_of_first_process, reports_errors

    try:
        with path_restored(), output_of_first_process():
            return run_command(arguments)
    except (GpuvecError, gym.error.Error, OSError, MemoryError, ModuleNotFoundError, ValueError) as error:
        remedy = f": {install_command('train')}" if getattr(error, "name", None) in ("torch", "rich") else ""
        if reports_errors(error):
            print_lines(f"gpuvec: {in_one_line(error)}{remedy}", is_error=True)
        return getattr(error, "exit_status", 1)


def run_command(arguments: Sequence[str] | None) -> int:
    """Parses the command line, runs its command, and returns the exit status.

    Args:
        arguments: the words after `gpuvec`; those of the process by default.
    """
    import tyro

    from gpuvec.cli.bench_command import bench
    from gpuvec.cli.check_command import check
    from gpuvec.cli.compare_command import compare
    from gpuvec.cli.doctor_command import doctor
    from gpuvec.cli.env_lookup import import_own_module
    from gpuvec.cli.envs_command import envs
    from gpuvec.cli.eval_command import evaluate
    from gpuvec.cli.export_command import export
    from gpuvec.cli.new_env_command import new_env
    from gpuvec.cli.play_command import play_env
    from gpuvec.cli.plot_command import plot
    from gpuvec.cli.record_command import record
    from gpuvec.cli.runs_command import runs
    from gpuvec.cli.sweep_command import sweep
    from gpuvec.cli.train_command import resume, train
    from gpuvec.cli.train_defaults import tuned_settings
    from gpuvec.cli.watch_command import demo, watch

    # The defaults of all other settings depend on these, so they are parsed first.
    options = parse_options(arguments, "env", "device", "algorithm", "population")
    if list(sys.argv[1:] if arguments is None else arguments)[:1] == ["sweep"]:  # which trains a population
        options["population"] = "1"
    if ":" in (algorithm := options.get("algorithm", "")):
        import_own_module(algorithm, "algorithm")
    settings = tuned_settings(**options)
    commands: dict[str, Callable[..., int]] = {
        "train": with_defaults(train, settings=settings),
        "resume": resume,
        "sweep": with_defaults(sweep, settings=settings),
        "eval": evaluate,
        "watch": watch,
        "demo": demo,
        "play": play_env,
        "record": record,
        "export": export,
        "runs": runs,
        "plot": plot,
        "compare": compare,
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
def path_restored() -> Iterator[None]:
    """At the end the module search path has the folders that it had at the start; see `search_working_folder`."""
    folders = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = folders


def in_one_line(error: BaseException) -> str:
    """The message of an error without line breaks, or the name of its type if it has no message.

    Args:
        error: the error.
    """
    return " ".join(str(error).split()) or type(error).__name__


def parse_options(arguments: Sequence[str] | None, *names: str) -> dict[str, Any]:
    """Parses some options of a command line and ignores everything else in it.

    Args:
        arguments: the words after `gpuvec`; those of the process by default.
        names: the names of the options, without dashes.

    Returns:
        {name: text} of the options that the command line contains.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS)
    try:
        return vars(parser.parse_known_args(arguments)[0])
    except argparse.ArgumentError:  # an option without a value, which the parser of the command reports
        return {}


def with_defaults(function: Callable[..., int], **defaults: Any) -> Callable[..., int]:
    """Returns a function that does the same and whose signature has other defaults.

    Args:
        function: a command.
        defaults: {name of a parameter: its default}, whose type becomes the annotation of the parameter.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(default=defaults[name], annotation=type(defaults[name])) if name in defaults else p
        for name, p in signature.parameters.items()
    ]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return function(*args, **kwargs)

    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect.signature reads it
    return wrapper
