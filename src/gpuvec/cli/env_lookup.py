"""Finds what a command line names: an environment, whose module is imported, or a policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium as gym

from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.wrong_options import closest
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.runs.trusted_code import import_named_module, search_working_folder, signing_problem
from gpuvec.policies import policy_names, policy_path
from gpuvec.registration import VECTOR_ENTRY_POINT, find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

NAMESPACE = "gpuvec/"  # of the bundled environments
VERSION = re.compile(r"-?v\d+$")


def env_ids() -> list[str]:
    """Returns the ids of all environments of gpuvec that are registered, sorted."""
    return sorted(spec.id for spec in gym.registry.values() if spec.vector_entry_point == VECTOR_ENTRY_POINT)


def complete_env_id(text: str, command: str) -> str:
    """Returns the full id of the environment that the user's command line names, such as gpuvec/CartPole-v1 for CartPole-v1.

    Args:
        text: "module:id", whose module is imported first, or "id"; the namespace and the version may be missing.
        command: the name of the command, for the message.

    Raises:
        ValueError: there is no such module or environment; the message suggests similar ones, or how to name one of a file.
    """
    module, colon, id = text.rpartition(":")
    if module and not module.endswith(".py"):
        search_working_folder()
        import_named_module(text, "environment")
    elif colon or text.endswith(".py") or Path(text).exists():
        path = Path(text.partition(":")[0])
        if path.suffix != ".py":
            raise ValueError(
                f"{text} names no environment: give an id, such as CartPole-v1, or module:id of a module of yours."
            )
        if not path.is_file():
            example = f"{path.stem}:my/Name-v0"
            raise ValueError(f"there is no file {path}: name an environment by its module and its id, such as {example}.")
        registered = re.findall(r"register\(\s*(?:id\s*=\s*)?[\"']([^\"']+)[\"']", path.read_text(errors="replace"))
        place, here = path.resolve(), Path.cwd().resolve()
        is_here = place.is_relative_to(here)
        own_module = ".".join((place.relative_to(here) if is_here else Path(place.name)).with_suffix("").parts)
        examples = (f"`gpuvec {command} {own_module}:{each}`" for each in registered or ["<the id that it registers>"])
        where = "" if is_here else f" in the folder {place.parent}"
        raise ValueError(f"{text} is a file: name an environment by its module and its id, {' or '.join(examples)}{where}.")
    ids = env_ids()
    if id in ids:
        return text
    names = {other.rpartition("/")[2]: other for other in ids}
    names_without_version = {VERSION.sub("", name): other for name, other in names.items()}
    if full_id := names.get(id) or names_without_version.get(id.removeprefix(NAMESPACE)):
        return f"{module}{colon}{full_id}"
    similar = [names_without_version[name] for name in closest(VERSION.sub("", id.rpartition("/")[2]), names_without_version)]
    problem = f"{id} is an environment of Gymnasium, not of gpuvec" if id in gym.registry else f"there is no environment {id!r}"
    remedy = (
        f"did you mean {' or '.join(similar)}? `gpuvec envs` lists all."
        if similar
        else "`gpuvec envs` lists those that there are, and module:id names yours."
    )
    raise ValueError(f"{problem}: {remedy}")


def complete_policy_name(text: str) -> str:
    """Returns the path of a policy, or the name of one that comes with gpuvec, that the user's command line names.

    Args:
        text: a path that exists, or a name; the namespace, the version and the variant of it may be missing.

    Raises:
        FileNotFoundError: there is no such policy; the message suggests similar ones.
    """
    names, name = policy_names(), text.removeprefix(NAMESPACE)
    if text in names or Path(text).exists():
        return text
    variants = [other for other in names if name in (other, VERSION.sub("", other)) or other.startswith(f"{name}-")]
    if len(variants) == 1:
        return variants[0]
    if similar := variants or closest(name, names):
        raise FileNotFoundError(f"there is no policy {text!r}: did you mean {' or '.join(similar)}?")
    if f"{NAMESPACE}{name}" in gym.registry:
        raise FileNotFoundError(
            f"gpuvec comes with no policy of {name}: `gpuvec train {name}` trains one, and its run folder is the policy. Those "
            f"that come with gpuvec are {', '.join(names)}."
        )
    return str(policy_path(text))  # which raises


def find_policy(name_or_path: str, device: str = "cpu", trust: bool = False) -> TrainedPolicy:
    """Returns trained policies.

    Args:
        name_or_path: a run folder, a checkpoint, a policy file, or the name of a policy that comes with gpuvec.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.

    Raises:
        FileNotFoundError: there is no such policy.
        StateError: a policy of the run was not trained, or the policies do not fit the environment.
        CheckpointError: the file cannot be used, or the module is not imported yet and not trusted.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.policy_files.trained_policy import TrainedPolicy, load_contents
        from gpuvec.learners.runs.checkpoint import require_trained_policies

    contents, path = load_contents(name_or_path, trust)
    require_trained_policies(contents, path)
    return TrainedPolicy(contents, device)


def find_own_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of the environment that the user's command line names.

    Its module is imported. If what the user trains with it will need --trust all the same, this is printed.

    Raises:
        ValueError, gymnasium.error.Error, ModuleNotFoundError: as `find_env_spec`.
    """
    if ":" in env_id:
        search_working_folder()
    spec = find_env_spec(env_id)
    if problem := signing_problem({ALL: {"env": env_id}}):
        print_lines(f"trust      {problem}")
    return spec


def import_own_module(name: str, setting: str) -> None:
    """Imports the module of the algorithm or the network that the user's command line names, as `find_own_env` does.

    Args:
        name: "module:object".
        setting: "algorithm" or "network".

    Raises:
        ValueError: there is no such module.
    """
    search_working_folder()
    import_named_module(name, f"--{setting}")
    if problem := signing_problem({ALL: {setting: name}}):
        print_lines(f"trust      {problem}")
