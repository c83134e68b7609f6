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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import gymnasium as gym

from gpuvec.cli.terminal import print_lines
from gpuvec.errors import GpuvecError

COMMANDS = {
    "train": "train_command:train",
    "resume": "train_command:resume",
    "sweep": "sweep_command:sweep",
    "eval": "eval_command:evaluate",
    "watch": "watch_command:watch",
    "demo": "watch_command:demo",
    "record": "record_command:record",
    "export": "export_command:export",
    "runs": "runs_command:runs",
    "plot": "plot_command:plot",
    "compare": "compare_command:compare",
    "envs": "envs_command:envs",
    "check": "check_command:check",
    "new-env": "new_env_command:new_env",
    "doctor": "doctor_command:doctor",
    "bench": "bench_command:bench",
}
"""{name: "module:function" in this package}."""
OTHER_COMMANDS = {
    "evaluate": "eval", "test": "eval", "enjoy": "watch", "view": "watch", "show": "watch", "render": "watch", "play": "watch",
    "learn": "train", "run": "train", "fit": "train", "continue": "resume", "restart": "resume", "tune": "sweep",
    "search": "sweep", "optimize": "sweep", "hpo": "sweep", "video": "record", "list": "envs", "environments": "envs",
    "ls": "runs", "validate": "check", "verify": "check", "new": "new-env", "create": "new-env", "init": "new-env",
    "info": "doctor", "status": "doctor", "benchmark": "bench", "tensorboard": "plot", "diff": "compare", "save": "export",
    "convert": "export",
}  # fmt: skip
"""{name in other programs: command}."""
ENV_OPTION = ("train", "sweep")  # whose environment is the option --env, and may be the first word
ENV_WORD = ("check",)  # whose environment is a word, and may be the option --env
INTERRUPTED = 130  # the exit status of a program that SIGINT ended, in a shell


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
        print_lines('gpuvec: the command line needs tyro, which is not installed: pip install "gpuvec[train]"', is_error=True)
        return 1
    from gpuvec.cli.processes import output_of_first_process, reports_errors

    try:
        with path_restored(), output_of_first_process():
            return run_command(arguments)
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print_lines("gpuvec: interrupted", is_error=True)
        return INTERRUPTED
    except (GpuvecError, gym.error.Error, OSError, MemoryError, ModuleNotFoundError, ValueError) as error:
        remedy = ': pip install "gpuvec[train]"' if getattr(error, "name", None) in ("torch", "rich") else ""
        if reports_errors(error):
            print_lines(f"gpuvec: {in_one_line(error)}{remedy}", is_error=True)
        return getattr(error, "exit_status", 1)


def run_command(arguments: Sequence[str] | None) -> int:
    """Parses the command line, runs its command, and returns the exit status.

    Args:
        arguments: the words after `gpuvec`; those of the process by default.
    """
    command, *words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if command == "help":
        command, words = (words[0], ["--help"]) if words else ("--help", [])
    if command in ("--version", "-V"):
        import gpuvec

        print_lines(f"gpuvec {gpuvec.__version__}")
        return 0
    if command in ("--help", "-h"):
        return print_help()
    require_command(command, words)
    return parse_command(command, words)()


def print_help() -> int:
    """Prints what all commands are for; the parser ends the process."""
    import tyro

    status: int = tyro.extras.subcommand_cli_from_dict(
        {name: load_command(name) for name in COMMANDS},
        prog="gpuvec",
        description="Train and run reinforcement-learning environments on a GPU or a CPU.",
        args=["--help"],
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return status


def load_command(name: str) -> Callable[..., int]:
    """Imports and returns the function of a command.

    Args:
        name: of the command.
    """
    module, _, function = COMMANDS[name].partition(":")
    command: Callable[..., int] = getattr(importlib.import_module(f"gpuvec.cli.{module}"), function)
    return command


def require_command(command: str, words: Sequence[str]) -> None:
    """Checks that there is a command.

    Args:
        command: the first word of the command line; "" if there is none.
        words: the other words.

    Raises:
        UsageError: there is none of that name.
    """
    from gpuvec.cli.wrong_options import UsageError, closest

    if command in COMMANDS:
        return
    commands = f"the commands are {', '.join(COMMANDS)}; `gpuvec --help` says what they do."
    if not command:
        raise UsageError(f"name a command, such as `gpuvec demo` or `gpuvec train CartPole-v1`; {commands}")
    if command.startswith("-"):
        first = next((word for word in words if word in COMMANDS), "train")
        raise UsageError(f"the command comes before its options, such as `gpuvec {first} {command} ...`; {commands}")
    other = OTHER_COMMANDS.get(command.lower()) or next(iter(closest(command, COMMANDS, 1)), None)
    if other is not None:
        raise UsageError(f"there is no command {command!r}: did you mean `gpuvec {other}`? {commands.capitalize()}")
    if any(id.rpartition("/")[2] == command.rpartition("/")[2] for id in gym.registry):
        raise UsageError(f"{command} is no command: did you mean `gpuvec train {command}`? {commands.capitalize()}")
    raise UsageError(f"there is no command {command!r}: {commands}")


def parse_command(name: str, words: Sequence[str]) -> Callable[[], int]:
    """Returns a function that runs a command with its options.

    Args:
        name: of the command.
        words: of the command line after the command.

    Raises:
        UsageError: the command cannot take these words.
        ValueError: there is no such environment.
    """
    import tyro

    from gpuvec.cli.wrong_options import UsageError, command_options, explain, without_frame

    words, command = with_env(name, words), load_command(name)
    if name in ENV_OPTION:
        from gpuvec.cli.train_defaults import tuned_settings

        # The defaults of all other settings depend on these, so they are parsed first.
        options = parse_options(words, "env", "device", "algorithm", "population")
        if name == "sweep":  # which trains a population
            options["population"] = "1"
        command = with_defaults(command, settings=tuned_settings(**options))
    messages = io.StringIO()
    try:
        with redirect_stderr(messages):
            call: Callable[[], int] = tyro.cli(
                deferred(command), prog=f"gpuvec {name}", args=words, config=(tyro.conf.OmitArgPrefixes,)
            )
    except SystemExit as end:
        if not end.code:  # after --help
            raise
        raise UsageError(explain(name, command_options(command), words, without_frame(messages.getvalue()))) from None
    return call


def with_env(command: str, words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, where the environment that they name has its full id and its usual place.

    Args:
        command: the name of the command.
        words: of the command line after the command.

    Raises:
        UsageError: the environment is given twice.
        ValueError: there is no such environment; the message suggests similar ones.
    """
    from gpuvec.cli.wrong_options import UsageError

    words = list(words)
    if command not in (*ENV_OPTION, *ENV_WORD):
        return words
    option = parse_options(words, "env").get("env")
    is_first = command in ENV_OPTION and bool(words) and not words[0].startswith("-")
    if option is None and not is_first:
        return words
    if option is not None and (is_first or (command in ENV_WORD and words and not words[0].startswith("-"))):
        raise UsageError(f"{command} takes one environment, got {words[0]} and --env {option}: leave out one of them.")
    from gpuvec.cli.env_lookup import complete_env_id

    if is_first:
        option = words.pop(0)
    elif f"--env={option}" in words:
        words.remove(f"--env={option}")
    else:
        place = words.index("--env")
        del words[place : place + 2]
    assert option is not None, "one of the two is given"
    id = complete_env_id(option, command)
    return ["--env", id, *words] if command in ENV_OPTION else [id, *words]


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
        error: the error. One of the operating system is put in words, without its number.
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None and not isinstance(error, GpuvecError):
        return (
            f"{Path(os.fsdecode(error.filename))} cannot be read or written: {error.strerror[0].lower()}{error.strerror[1:]}."
        )
    return " ".join(str(error).split()) or type(error).__name__


def parse_options(arguments: Sequence[str], *names: str) -> dict[str, Any]:
    """Parses some options of a command line and ignores everything else in it.

    Args:
        arguments: the words after `gpuvec`.
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
    return _with_signature(function, function, signature.replace(parameters=parameters))


def deferred(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Returns a function of the same signature that returns a call of the function, so that parsing ends before the call.

    Args:
        function: a command.
    """
    return _with_signature(function, functools.partial(functools.partial, function), inspect.signature(function, eval_str=True))


def _with_signature(function: Callable[..., Any], call: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Returns a function that does what `call` does, with the name and the docstring of `function` and a signature."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return wrapper
