"""Explains why a command line is refused: what was given, what is allowed, and what to write instead."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, get_args, get_origin

import tyro

from gpuvec.learners.algorithms import ALGORITHMS

OTHER_NAMES = {
    "learning-rate": "lr alpha step-size", "actor-learning-rate": "lr lr-actor actor-lr",
    "critic-learning-rate": "lr-critic critic-lr", "algorithm": "algo alg agent",
    "env": "e env-id env-name environment game task gym-id", "num-envs": "n envs n-envs num-environments",
    "num-steps": "n-steps horizon rollout-length num-steps-per-env",
    "num-iterations": "iterations max-iterations num-updates",
    "total-steps": "steps timesteps total-timesteps num-timesteps max-timesteps max-steps", "batch-size": "minibatch-size",
    "update-epochs": "epochs n-epochs num-epochs num-learning-epochs",
    "num-minibatches": "minibatches num-mini-batches batch-size", "gamma": "discount discount-factor",
    "gae-lambda": "lam lambda", "clip": "clip-range clip-coef clip-param clip-eps epsilon",
    "ent-coef": "entropy entropy-coef entropy-cost", "vf-coef": "value-coef value-loss-coef", "target-kl": "desired-kl kl",
    "hidden": "net-arch layers hidden-sizes hidden-dims", "activation": "activation-fn", "tau": "polyak",
    "buffer-size": "replay-size memory-size", "learning-starts": "start-timesteps warmup-steps",
    "policy-delay": "policy-freq policy-frequency", "sigma": "noise action-noise exploration-noise expl-noise",
    "target-sigma": "policy-noise target-noise target-policy-noise", "device": "gpu cuda cpu no-cuda",
    "log": "track wandb tensorboard logger", "runs": "logdir log-dir save-dir output-dir", "to": "o out output file",
    "episodes": "n-eval-episodes num-episodes", "evaluate-every": "eval-freq eval-interval",
    "checkpoint-every": "save-freq save-every save-interval", "params": "env-kwargs env-args",
    "population": "pop-size agents", "trials": "n-trials num-trials", "stochastic": "deterministic", "force": "overwrite",
    "gpus": "num-gpus nproc-per-node",
}  # fmt: skip
"""{option: its names in other libraries and in everyday use} that are not similar to it."""


class UsageError(ValueError):
    """A command line that names no command, or that a command cannot take."""

    exit_status = 2


def option_names(command: Callable[..., Any]) -> set[str]:
    """Returns the names of the options of a command, without dashes.

    Args:
        command: the function that is the command. Fields of a parameter that is a dataclass are options too.
    """
    names = {"help"}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        hint, *marks = (
            get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else [parameter.annotation]
        )
        if dataclasses.is_dataclass(hint):
            names |= {field.name for field in dataclasses.fields(hint)}
        elif tyro.conf.Positional not in marks:
            names.add(next((mark.name for mark in marks if getattr(mark, "name", None)), parameter.name))
    return {name.replace("_", "-") for name in names}


def explain(command: str, options: Collection[str], words: Sequence[str], printed: str) -> str:
    """Returns why a command cannot take a command line, in one line.

    Args:
        words: of the command line after the command.
        printed: what the parser printed, a message in a frame with a title.
    """
    for name in [word.partition("=")[0].replace("_", "-") for word in words if re.match(r"--?[A-Za-z]", word)]:
        if not {name[2:], name.removeprefix("--no-")} & set(options):
            return f"{_unknown_option(command, name, options)} `gpuvec {command} --help` lists its options."
    lines = [line.strip(" │|") for line in printed.splitlines()[1:]]
    message = " ".join(line for line in lines if not re.fullmatch(r"[─╰╯+-]*", line))
    message = re.sub(r"\{None\}\|| \(required\)| ?For full helptext.*", "", message)
    if stray := re.match(r"Unrecognized options: (.*)", message):
        message = _stray_word(command, next((word for word in words if stray[1].startswith(word)), stray[1]), words, options)
    elif wrong := re.match(r"Error parsing (--[\w-]+): .* Argument helptext: (.*)", message):
        value = re.split(r" --[A-Za-z]", re.split(wrong[1].replace("-", "[-_]") + "[ =]", " ".join(words), maxsplit=1)[-1])[0]
        message = f"{wrong[1]} cannot be {value}: {command} takes {wrong[2]}."
        if re.search(r"^\S*INT", wrong[2].partition(" ")[2]):
            message += " An INT has digits alone, such as 1000000."
        if "=" in value:
            message += " A name and its value are two words."
    message = re.sub(r"^Missing value for argument '(.+)'\. Expected 1 values\.", r"\1 needs a value.", message)
    message = re.sub(r"^Missing value for argument '(.+)'\. Expected", r"\1 needs", message)
    message = re.sub(rf"^Missing from gpuvec {command}:( STR| PATH)?", f"{command} needs", message)
    return f"{message} `gpuvec {command} --help` says more."


def _unknown_option(command: str, name: str, options: Collection[str]) -> str:
    """The message for an option that a command does not have."""
    problem = f"{command} has no option {name}"
    name = name.lstrip("-")
    known = [option for option, names in OTHER_NAMES.items() if option in options and name in names.split()]
    if known := known or closest(name, options):
        return f"{problem}: did you mean {' or '.join(f'--{option}' for option in known)}?"
    setting = name.replace("-", "_")
    owners = [algorithm for algorithm, entry in ALGORITHMS.items() if setting in entry.args_class.__dataclass_fields__]
    return f"{problem}: it is a setting of {' and '.join(owners)}." if owners and "algorithm" in options else f"{problem}."


def _stray_word(command: str, word: str, words: Sequence[str], options: Collection[str]) -> str:
    """The message for a word that belongs to no option."""
    previous = words[words.index(word) - 1] if word in words else ""
    if re.search(r"\w-v\d+$", word) and "env" in options:
        return f"{command} does not take {word} here: the environment is the first word, or --env {word}."
    if re.fullmatch(r"--[^=]+", previous):
        return f"{command} does not take {word} after {previous}: {previous} alone says yes."
    return f"{command} does not take {word}."


def closest(name: str, names: Iterable[str], count: int = 2) -> list[str]:
    """Returns the names that are most like a name, the best one first; none if all differ much.

    Args:
        count: the largest number of names to return.
    """
    by_text = {other.lower(): other for other in sorted(names)}
    matches = [other for other in by_text if len(name) > 2 and other.startswith(name.lower())]
    matches = matches if len(matches) <= count else []  # the beginning of many
    matches += [other for other in difflib.get_close_matches(name.lower(), by_text, count, cutoff=0.65) if other not in matches]
    return [by_text[match] for match in matches[:count]]


def require_positive(**numbers: int | None) -> None:
    """Raises ValueError unless all options that are not None are at least 1."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")


def require_speed(fps: float | None) -> None:
    """Raises ValueError unless a number of pictures or steps per second can be shown, or is None."""
    if fps is not None and not 0.0 < fps <= 1000.0:
        raise ValueError(f"fps must be above 0 and at most 1000, got {fps}.")
