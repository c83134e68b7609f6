"""The command line `gpuvec`.

Each command is a function in its own module. It imports large packages when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym

from gpuvec.cli.terminal import print_lines
from gpuvec.errors import GpuvecError, install_command

COMMANDS = {
    "train": "cli.train_command:train",
    "resume": "cli.train_command:resume",
    "sweep": "cli.sweep_command:sweep",
    "eval": "cli.eval_command:evaluate",
    "watch": "cli.watch_command:watch",
    "demo": "cli.watch_command:demo",
    "play": "cli.play_command:play_env",
    "record": "cli.watch_command:record",
    "export": "cli.export_command:export",
    "runs": "cli.runs_command:runs",
    "plot": "cli.plot_command:plot",
    "compare": "cli.compare_command:compare",
    "envs": "cli.envs_command:envs",
    "check": "cli.check_command:check",
    "new-env": "cli.new_env_command:new_env",
    "doctor": "doctor:main",
    "bench": "cli.bench_command:bench",
}
"""{name: "module:function" in gpuvec}."""
INTERRUPTED = 130  # the exit status that a shell gives a program that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after `gpuvec`; those of the process by default.

    Returns:
        The exit status: 0 for success, 1 for a failure with a message, 2 for a wrong command line, 75 if another process of
        the training ended, and 130 after Ctrl-C where nothing is left to save.
    """
    try:
        import tyro  # noqa: F401  # imported first, because a missing tyro has its own message
    except ModuleNotFoundError:
        message = f"gpuvec: the command line needs tyro, which is not installed: {install_command('train')}"
        print_lines(message, is_error=True)
        return 1
    from gpuvec.learners.shards.torchrun import read_launch

    folders = list(sys.path)  # to which commands add the working folder, see `search_working_folder`
    is_first = True
    try:
        with ExitStack() as stack:
            launch = read_launch()
            if launch is not None and launch.rank > 0:  # of the processes of a training, the first one prints
                is_first = False
                null = stack.enter_context(Path(os.devnull).open("w"))
                stack.enter_context(redirect_stdout(null))
                stack.enter_context(redirect_stderr(null))
            return run_command(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print_lines("gpuvec: interrupted", is_error=True)
        return INTERRUPTED
    except (GpuvecError, gym.error.Error, OSError, MemoryError, ModuleNotFoundError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None and not isinstance(error, GpuvecError):
            message = f"{os.fsdecode(error.filename)} cannot be read or written: {error.strerror.lower()}."
        remedy = f": {install_command('train')}" if getattr(error, "name", None) in ("torch", "rich") else ""
        if is_first or getattr(error, "is_first_alive", False):
            print_lines(f"gpuvec: {message}{remedy}", is_error=True)
        return getattr(error, "exit_status", 1)
    finally:
        sys.path[:] = folders


def run_command(arguments: Sequence[str]) -> int:
    """Parses the command line, runs its command, and returns the exit status.

    Raises:
        UsageError: there is no such command, or it cannot take these words.
    """
    import tyro

    name, *words = arguments or [""]
    if name in COMMANDS:
        return parse_command(name, words)()
    if name == "--version":
        import gpuvec

        print_lines(f"gpuvec {gpuvec.__version__}")
        return 0
    if name in ("--help", "-h"):
        status: int = tyro.extras.subcommand_cli_from_dict(
            {name: load_command(name) for name in COMMANDS},
            prog="gpuvec",
            description="Train and run reinforcement-learning environments on a GPU or a CPU.",
            args=["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
        )
        return status
    from gpuvec.cli.wrong_options import UsageError, closest

    problem = f"there is no command {name!r}" if name else "name a command, such as `gpuvec demo`"
    suggestions = [f"`gpuvec {other}`" for other in closest(name, COMMANDS)]
    if name.startswith("-"):
        problem, suggestions = f"the command comes before {name}", []
    elif f"gpuvec/{name.removeprefix('gpuvec/')}" in gym.registry:
        suggestions = [f"`gpuvec train {name}`"]
    remedy = f": did you mean {' or '.join(suggestions)}? The" if suggestions else ": the"
    raise UsageError(f"{problem}{remedy} commands are {', '.join(COMMANDS)}, and `gpuvec --help` says what they do.")


def load_command(name: str) -> Callable[..., int]:
    """Imports and returns the function of a command."""
    module, _, function = COMMANDS[name].partition(":")
    command: Callable[..., int] = getattr(importlib.import_module(f"gpuvec.{module}"), function)
    return command


def parse_command(name: str, words: list[str]) -> Callable[[], int]:
    """Returns a function that runs a command with its options.

    Raises:
        UsageError: the command cannot take these words.
        ValueError: there is no such environment.
    """
    import tyro

    from gpuvec.cli.wrong_options import UsageError, explain, option_names

    command, defaults = load_command(name), None
    if name in ("train", "sweep"):
        from gpuvec.cli.env_lookup import complete_env_id, import_own_module
        from gpuvec.cli.train_defaults import chosen_settings, parser_default, tuned_settings

        if words and not words[0].startswith("-"):  # the environment
            if "env" in parse_options(words[1:], "env"):
                raise UsageError(f"{name} takes one environment, got {words[0]} and --env: leave out one of them.")
            words = ["--env", *words]
        # The defaults of all other settings depend on these, so they are parsed first.
        options = parse_options(words, "env", "device", "algorithm", "population")
        if "env" in options:
            options["env"] = complete_env_id(options["env"], name)
            words = [*words, "--env", options["env"]]  # the parser takes the last one
        if name == "sweep":  # which trains a population
            options["population"] = "1"
        if ":" in (algorithm := options.get("algorithm", "")):
            import_own_module(algorithm, "algorithm")
        defaults = tuned_settings(**options)
    parser = make_parser(command, **({} if defaults is None else {"settings": parser_default(defaults)}))
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            values = tyro.cli(parser, prog=f"gpuvec {name}", args=words, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit as end:
        if not end.code:  # after --help
            raise
        raise UsageError(explain(name, option_names(parser), words, printed.getvalue())) from None
    try:
        if defaults is not None:
            values["settings"] = chosen_settings(values["settings"], defaults)
    except ValueError as error:
        raise UsageError(f"{error} `gpuvec {name} --help` says more.") from None
    return functools.partial(command, **values)


def parse_options(arguments: Sequence[str], *names: str) -> dict[str, Any]:
    """Parses some options of a command line and ignores everything else in it.

    Args:
        arguments: the words of the command line.
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


def make_parser(function: Callable[..., int], **defaults: Any) -> Callable[..., dict[str, Any]]:
    """Returns a function of a command's signature that returns its arguments, {name: value}.

    Args:
        function: a command.
        defaults: {name of a parameter: its default in place of that of the command}, whose type becomes its annotation.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(default=defaults[name], annotation=type(defaults[name])) if name in defaults else p
        for name, p in signature.parameters.items()
    ]

    def parse(**values: Any) -> dict[str, Any]:
        return values

    parse.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    parse.__annotations__, parse.__doc__ = {p.name: p.annotation for p in parameters}, function.__doc__
    return parse
