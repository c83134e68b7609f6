"""Explains why a command line cannot be parsed: what was given, what is allowed, and what to write instead.

`tyro` parses the command lines. Its messages name its own parts and the types of Python, so that a command line that it refuses
is read again here, option by option, for one message in the user's words.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

from gpuvec.learners.algorithms import ALGORITHMS
from gpuvec.learners.config.setting_types import TYPE_NAMES

# Names in Stable-Baselines3, CleanRL, RLlib, rsl_rl, skrl, Brax, Gymnasium and the TD3 paper's program, and words of everyday
# use -> options here. The first one that the command has is suggested.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "alpha", "step-size", "lr-actor", "actor-lr"), ("learning-rate", "actor-learning-rate")),
    **dict.fromkeys(("lr-critic", "critic-lr"), ("critic-learning-rate",)),
    **dict.fromkeys(("algo", "alg", "agent", "method"), ("algorithm",)),
    **dict.fromkeys(("e", "env-id", "env-name", "environment", "game", "task", "gym-id", "id"), ("env",)),
    **dict.fromkeys(("n", "envs", "n-envs", "num-environments", "num-workers", "number-envs"), ("num-envs",)),
    **dict.fromkeys(("n-steps", "rollout-length", "unroll-length", "horizon", "num-transitions-per-env"), ("num-steps",)),
    **dict.fromkeys(
        ("timesteps", "n-timesteps", "total-timesteps", "num-timesteps", "max-timesteps", "max-steps", "steps", "budget"),
        ("total-steps", "num-steps"),
    ),
    **dict.fromkeys(("iterations", "max-iterations", "n-iterations", "num-updates"), ("num-iterations",)),
    **dict.fromkeys(("n-epochs", "epochs", "num-epochs", "num-learning-epochs", "num-sgd-iter"), ("update-epochs",)),
    **dict.fromkeys(("minibatches", "n-minibatches", "num-mini-batches"), ("num-minibatches",)),
    **dict.fromkeys(("minibatch-size", "train-batch-size"), ("batch-size", "num-minibatches")),
    **dict.fromkeys(("discount", "discount-factor", "discounting"), ("gamma",)),
    **dict.fromkeys(("lam", "lambda", "gae", "gae-gamma"), ("gae-lambda",)),
    **dict.fromkeys(("clip-range", "clip-coef", "clip-param", "clip-eps", "epsilon", "clipping-epsilon"), ("clip",)),
    **dict.fromkeys(("entropy", "entropy-coef", "entropy-coeff", "entropy-cost", "ent"), ("ent-coef",)),
    **dict.fromkeys(("vf", "vf-coeff", "value-coef", "value-loss-coef", "vf-loss-coeff"), ("vf-coef",)),
    **dict.fromkeys(("grad-clip", "clip-grad", "max-gradient-norm"), ("max-grad-norm",)),
    **dict.fromkeys(("kl", "kl-target", "desired-kl"), ("target-kl",)),
    **dict.fromkeys(("net-arch", "hidden-sizes", "hidden-size", "hidden-dims", "hidden-layers", "layers"), ("hidden",)),
    **dict.fromkeys(("polyak", "soft-update"), ("tau",)),
    **dict.fromkeys(("replay-size", "memory-size", "buffer", "replay-buffer-size"), ("buffer-size",)),
    **dict.fromkeys(("start-timesteps", "warmup-steps", "learning-start", "start-steps"), ("learning-starts",)),
    **dict.fromkeys(("exploration-noise", "expl-noise", "action-noise", "noise"), ("sigma",)),
    **dict.fromkeys(("policy-noise", "target-noise", "target-policy-noise"), ("target-sigma",)),
    **dict.fromkeys(("policy-freq", "policy-frequency", "update-frequency"), ("policy-delay",)),
    **dict.fromkeys(("gpu", "cuda", "cpu", "no-cuda", "use-cuda", "accelerator"), ("device",)),
    **dict.fromkeys(("random-seed", "rng-seed"), ("seed",)),
    **dict.fromkeys(("track", "wandb", "tensorboard", "logger", "log-to", "report-to"), ("log",)),
    **dict.fromkeys(("logdir", "log-dir", "run-dir", "runs-dir", "save-dir", "output-dir", "checkpoint-dir"), ("runs", "to")),
    **dict.fromkeys(("o", "out", "output", "file", "path", "save", "dest"), ("to", "png", "csv", "runs")),
    **dict.fromkeys(("n-eval-episodes", "num-episodes", "eval-episodes", "n-episodes"), ("episodes",)),
    **dict.fromkeys(("eval-freq", "eval-every", "eval-frequency", "eval-interval"), ("evaluate-every",)),
    **dict.fromkeys(("save-freq", "save-every", "save-interval", "checkpoint-freq"), ("checkpoint-every",)),
    **dict.fromkeys(("capture-video", "video", "render", "visualize"), ("watch", "live", "open")),
    **dict.fromkeys(("env-kwargs", "env-args", "kwargs", "parameters", "env-params"), ("params",)),
    **dict.fromkeys(("agents", "n-agents", "pop-size", "population-size"), ("population",)),
    **dict.fromkeys(("n-trials", "num-trials", "num-samples"), ("trials",)),
    **dict.fromkeys(("deterministic", "no-deterministic", "greedy", "sample"), ("stochastic",)),
    **dict.fromkeys(("overwrite", "y", "yes"), ("force",)),
    **dict.fromkeys(("n-gpus", "num-gpus", "nproc", "nproc-per-node", "devices"), ("gpus",)),
    **dict.fromkeys(("trust-remote-code", "unsafe"), ("trust",)),
    **dict.fromkeys(("normalize-obs", "norm-obs", "obs-norm", "vec-normalize"), ("normalize",)),
    **dict.fromkeys(("normalize-reward", "norm-reward", "reward-norm"), ("normalize-returns",)),
    **dict.fromkeys(("backends", "target"), ("targets", "backend")),
}  # fmt: skip
VALUE_NAMES = {**TYPE_NAMES, Path: "a path"}


class UsageError(ValueError):
    """A command line that names no command, or that a command cannot take."""

    exit_status = 2


class Option(NamedTuple):
    """An option of a command, or a word that needs no option before it."""

    name: str
    """As on the command line, without dashes; of a word what it is."""
    hint: Any
    """The type of its value."""
    is_word: bool
    """Whether it is a word without an option before it."""
    is_required: bool
    """Whether the command needs it."""
    is_repeatable: bool
    """Whether each value has an option of its own before it."""
    description: str = ""
    """What it is, for an option that the command needs."""


class Values(NamedTuple):
    """The values that an option takes."""

    types: tuple[Any, ...]
    """Of one group of values."""
    is_repeated: bool
    """Whether any number of groups may follow; otherwise one group follows."""


def command_options(command: Callable[..., Any]) -> dict[str, Option]:
    """Returns {name: option} of a command.

    Args:
        command: the function that is the command. Fields of a parameter that is a dataclass are options too.
    """
    options: dict[str, Option] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        required = parameter.default is parameter.empty
        for option in _options_of(parameter.name, parameter.annotation, required):
            options[option.name] = option._replace(description=_description(command, parameter.name)) if required else option
    return options


def _description(command: Callable[..., Any], parameter: str) -> str:
    """What the docstring of a command says of a parameter, in one line."""
    found = re.search(rf"^ +{parameter}: (.+?)(?=^ +\w+: |\n *\n|\Z)", command.__doc__ or "", re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()).rstrip(".") if found else ""


def _options_of(name: str, annotation: Any, is_required: bool) -> Iterator[Option]:
    """Yields the option of a parameter, or those of its fields if it is a dataclass."""
    hint, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if dataclasses.is_dataclass(hint):
        for field, field_hint in get_type_hints(hint, include_extras=True).items():
            if field in {each.name for each in dataclasses.fields(hint)}:
                yield from _options_of(field, field_hint, is_required=False)
        return
    name = next((mark.name for mark in marks if getattr(mark, "name", None)), name).replace("_", "-")
    is_word, is_repeatable = tyro.conf.Positional in marks, tyro.conf.UseAppendAction in marks
    yield Option(name, hint, is_word, is_required, is_repeatable)


def explain(command: str, options: dict[str, Option], words: Sequence[str], parser_message: str) -> str:
    """Returns why a command cannot take a command line.

    Args:
        command: the name of the command.
        options: those of the command.
        words: of the command line after the command.
        parser_message: of the parser, without its frame, for what is not found here.
    """
    help_hint = f"`gpuvec {command} --help` lists what it takes."
    for problem in _problems(command, options, words):
        return f"{problem} {help_hint}"
    return f"{command}: {parser_message} {help_hint}"


def _problems(command: str, options: dict[str, Option], words: Sequence[str]) -> Iterator[str]:
    """Yields what is wrong with a command line, the first problem first."""
    flags = {name for name, option in options.items() if option.hint is bool and not option.is_word}
    names = {name for name, option in options.items() if not option.is_word}
    names |= {f"no-{name}" for name in flags}
    positional = [option for option in options.values() if option.is_word]
    num_words = 1_000_000 if any(_values(option.hint).is_repeated for option in positional) else len(positional)
    given: set[str] = set()
    bare_words: list[str] = []
    for name, values in _groups(words):
        if not name:
            bare_words += values
        elif name not in names:
            yield _unknown_option(command, name, values, names)
        elif (flag := name.removeprefix("no-") if name not in options else name) in flags:
            given.add(flag)
            if values and len(bare_words) + len(values) > num_words:
                yield f"--{name} takes no value, got {values[0]}: write --{flag} for yes and --no-{flag} for no."
            bare_words += values
        else:
            given.add(name)
            bare_words += yield from _wrong_values(options[name], values)
    if len(bare_words) > num_words:
        yield _unexpected_word(command, bare_words[num_words], names)
    given |= {option.name for option, _ in zip(positional, bare_words, strict=False)}
    if missing := [option for option in options.values() if option.is_required and option.name not in given]:
        described = ", and ".join(
            f"{option.name.upper() if option.is_word else f'--{option.name}'} ({option.description})" for option in missing
        )
        yield f"{command} needs {described}."


def _groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields (option, the words after it); "" for the words before the first option."""
    name, values = "", []
    for word in words:
        if word == "--" or not re.match(r"--?[A-Za-z]", word):
            values.append(word)
            continue
        yield name, values
        text, equals, value = word.partition("=")
        name, values = text.lstrip("-").replace("_", "-"), [value] if equals else []
    yield name, values


def _unknown_option(command: str, name: str, values: Sequence[str], names: Iterable[str]) -> str:
    """The message for an option that a command does not have."""
    given = f"--{name}" if len(name) > 1 else f"-{name}"
    known = [other for other in OTHER_NAMES.get(name, ()) if other in names][:1] or closest(name, names)
    if known:
        return f"{command} has no option {given}: did you mean {' or '.join(f'--{other}' for other in known)}?"
    setting = name.replace("-", "_")
    owners = [
        algorithm
        for algorithm, entry in ALGORITHMS.items()
        if setting in {field.name for field in dataclasses.fields(entry.args_class)}
    ]
    if owners and "algorithm" in names:
        return f"{command} has no option {given} for this algorithm: it is a setting of {' and '.join(owners)}."
    remedy = f" A policy names its environment, so leave out {given}." if name == "env" and values else ""
    return f"{command} has no option {given}.{remedy}"


def closest(name: str, names: Iterable[str], count: int = 2) -> list[str]:
    """Returns the names that are most like a name, the best one first; none if all differ much.

    Args:
        name: what the user wrote.
        names: those that exist.
        count: the largest number of names to return.
    """
    own = {other.lower(): other for other in sorted(names)}
    matches = [other for other in own if len(name) > 2 and other.startswith(name.lower())]
    if len(matches) > count:  # the beginning of many
        matches = []
    matches += [other for other in difflib.get_close_matches(name.lower(), own, count, cutoff=0.65) if other not in matches]
    return [own[match] for match in matches[:count]]


def _wrong_values(option: Option, words: list[str]) -> Generator[str, None, list[str]]:
    """Yields what is wrong with the words after an option.

    Returns:
        Those words that are not values of the option.
    """
    values, name = _values(option.hint), f"--{option.name}"
    size = len(values.types)
    own = words if values.is_repeated and not option.is_repeatable else words[:size]
    if len(own) < size or len(own) % size:
        joined = next((word for word in own if "=" in word), None)
        if joined is not None:
            key, _, value = joined.partition("=")
            yield f"{name} takes {_describe(option.hint)}, separated by a space, got {joined}: write {name} {key} {value}."
        else:
            yield f"{name} takes {_describe(option.hint)}, got {' '.join(own) or 'nothing'}."
    for k, word in enumerate(own):
        hint = values.types[k % size]
        if not _accepts(word, hint):
            similar = closest(word, [str(choice) for choice in _choices(hint)], 1)
            remedy = f": did you mean {similar[0]}?" if similar else f".{_number_hint(word, hint)}"
            yield f"{name} takes {_describe(option.hint)}, got {word}{remedy}"
    return words[len(own) :]


def _number_hint(word: str, hint: Any) -> str:
    """How a whole number is written, for a word such as 1e6 or 1,000 in place of one."""
    text = word.replace(",", "")
    if _accepts("1", hint) and _accepts(text, float) and float(text) == float(text) // 1:
        return f" Write {float(text):.0f}."
    return ""


def _values(hint: Any) -> Values:
    """The values that an option of a type takes."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not NoneType]
    if origin in (Union, UnionType) and len(parts) == 1:
        return _values(parts[0])
    if origin is dict:
        return Values(tuple(parts), True)
    if origin is tuple:
        types = [part for part in parts if part is not ...]
        group = [each for part in types for each in _values(part).types]
        return Values(tuple(group), ... in parts)
    return Values((hint,), False)


def _choices(hint: Any) -> tuple[Any, ...]:
    """The values among which a type chooses; () if it does not."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return tuple(choice for part in get_args(hint) for choice in _choices(part))
    return ()


def _accepts(word: str, hint: Any) -> bool:
    """Whether a word is a value of a type."""
    if get_origin(hint) in (Union, UnionType):
        return any(_accepts(word, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return word in map(str, get_args(hint))
    if hint in (int, float):
        try:
            hint(word)
        except ValueError:
            return False
    if hint is bool:
        return word in ("True", "False")
    return hint is not NoneType or word == "None"


def _describe(hint: Any) -> str:
    """The values that an option of a type takes, in words."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not NoneType]
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, parts))
    if origin is Literal:
        return " or ".join(filter(None, (", ".join(map(str, parts[:-1])), str(parts[-1]))))
    if origin is dict:
        return "pairs of a name and a value"
    if origin is tuple:
        values = _values(hint)
        described = [_describe(part) for part in values.types]
        if len(described) == 1:
            return f"one or more values, each {described[0]}" if values.is_repeated else described[0]
        return ", then ".join(described)
    return VALUE_NAMES.get(hint, str(hint))


def _unexpected_word(command: str, word: str, names: Iterable[str]) -> str:
    """The message for a word that belongs to no option."""
    name, equals, value = word.partition("=")
    if equals and name.replace("_", "-") in names:
        return f"{command} does not take {word}: write --{name.replace('_', '-')} {value}."
    if "env" in names and re.search(r"[A-Za-z].*-v\d+$", word):
        return (
            f"{command} does not take {word} here: the environment is the first word, gpuvec {command} {word}, or --env {word}."
        )
    if similar := closest(word, names, 1):
        return f"{command} does not take {word}: did you mean --{similar[0]}?"
    return f"{command} does not take {word}, which follows no option that takes it."


def without_frame(text: str) -> str:
    """Returns a message of the parser in one line, without the frame that it draws and its hints.

    Args:
        text: what the parser printed.
    """
    lines = [re.sub(r"[╭╮╰╯│─┆|]", " ", line).strip() for line in text.splitlines()[1:]]
    lines = [line for line in lines if line and not line.startswith("For full helptext")]
    return re.sub(r"__tyro.dummy.inner__\.?\S*:?\s*", "", " ".join(lines)).strip() or "the command line cannot be parsed."
