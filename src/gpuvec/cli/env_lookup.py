"""Finds the environment, or the policy, that a command line names, and imports the module that it or a checkpoint names."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path

import gymnasium as gym

from gpuvec.cli.wrong_options import closest
from gpuvec.engine.backends.cache.store import is_file_remembered, remember_file
from gpuvec.errors import CheckpointError
from gpuvec.policies import policy_names
from gpuvec.registration import VECTOR_ENTRY_POINT, find_env_spec

NAMESPACE = "gpuvec/"  # of the bundled environments


def search_working_folder() -> None:
    """Appends the working folder to the module search path, because the user names or trusts a module that may be in it.

    `python -m gpuvec` searches the working folder, but the installed command does not. The folder is searched last, so that a
    file in it never replaces an installed package, and not before a module of the user is imported: a library may import a
    package if it is installed, and the folder of a stranger may have a file of its name. Python's option -P excludes it.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and not {"", folder} & set(sys.path):
        sys.path.append(folder)


def env_ids() -> list[str]:
    """Returns the ids of all environments of gpuvec that are registered, sorted."""
    return sorted(spec.id for spec in gym.registry.values() if spec.vector_entry_point == VECTOR_ENTRY_POINT)


def complete_env_id(text: str, command: str) -> str:
    """Returns the full id of the environment that the user's command line names, such as gpuvec/CartPole-v1 for CartPole-v1.

    Args:
        text: "module:id", whose module is imported first, or "id"; the namespace and the version may be missing.
        command: the name of the command, for the message.

    Raises:
        ValueError: there is no such environment; the message suggests similar ones, or how to name one of a file.
        ModuleNotFoundError: there is no such module.
    """
    module, colon, id = text.rpartition(":")
    if colon and module and not module.endswith(".py"):
        search_working_folder()
        importlib.import_module(module)
    elif colon or text.endswith(".py") or Path(text).exists():
        raise ValueError(_env_of_a_file(text, command))
    ids = env_ids()
    if id in ids:
        return text
    namesakes = [other for other in ids if other.rpartition("/")[2] == id]
    namesakes = namesakes or [other for other in ids if re.sub(r"-v\d+$", "", other) in (id, NAMESPACE + id)]
    if len(namesakes) == 1:
        return f"{module}{colon}{namesakes[0]}"
    problem = (
        f"there is no environment {id!r}" if id not in gym.registry else f"{id} is an environment of Gymnasium, not of gpuvec"
    )
    similar = namesakes or similar_envs(id)
    if similar:
        raise ValueError(f"{problem}: did you mean {' or '.join(similar)}? `gpuvec envs` lists all.")
    raise ValueError(
        f"{problem}: `gpuvec envs` lists those that there are, and `gpuvec new-env NAME` writes one to start from."
    )


def similar_envs(id: str) -> list[str]:
    """Returns the ids of gpuvec's environments whose names are most like that of an id.

    Args:
        id: what the user wrote; its namespace and its version do not count.
    """
    names = {re.sub(r"-v\d+$", "", other.rpartition("/")[2]): other for other in env_ids()}
    return [names[name] for name in closest(re.sub(r"-?v\d+$", "", id.rpartition("/")[2]), names)]


def _env_of_a_file(text: str, command: str) -> str:
    """How to name the environment of a file, or what a folder is for."""
    path = Path(text.partition(":")[0])
    if path.is_dir():
        return (
            f"{text} is a folder, and {command} takes the id of an environment, such as CartPole-v1. A run folder is for "
            f"`gpuvec resume {text}` and `gpuvec eval {text}`."
        )
    if path.suffix != ".py":
        return f"{text} names no environment: give an id, such as CartPole-v1, or module:id of a module of yours."
    module = ".".join([*path.parent.parts, path.stem])
    ids = (
        re.findall(r"register\(\s*(?:id\s*=\s*)?[\"']([^\"']+)[\"']", path.read_text(errors="replace"))
        if path.is_file()
        else []
    )
    place = "" if path.is_file() else ", and there is no such file"
    examples = " or ".join(f"`gpuvec {command} {module}:{id}`" for id in ids[:3] or ["namespace/Name-v0"])
    source = "" if ids else ", with the id that it gives to gpuvec.register"
    return f"{text} is a file{place}: an environment is named by its module and its id, {examples}{source}."


def complete_policy_name(text: str) -> str:
    """Returns the path of a policy, or the name of one that comes with gpuvec, that the user's command line names.

    Args:
        text: a path that exists, or a name; the namespace, the version and the variant of it may be missing.

    Raises:
        FileNotFoundError: there is no such policy; the message suggests similar ones.
    """
    names, name = policy_names(), text.removeprefix(NAMESPACE)
    if name in names:
        return name
    if Path(text).exists():
        return text
    variants = [other for other in names if other.startswith(f"{name}-")]
    if len(variants) == 1:
        return variants[0]
    similar = variants or closest(name, names)
    if similar:
        raise FileNotFoundError(f"there is no policy {text!r}: did you mean {' or '.join(similar)}?")
    ids = [
        id for id in env_ids() if name in (id, id.removeprefix(NAMESPACE), re.sub(r"-v\d+$", "", id.removeprefix(NAMESPACE)))
    ]
    if ids:
        raise FileNotFoundError(
            f"gpuvec comes with no policy of {ids[0]}: `gpuvec train {ids[0].removeprefix(NAMESPACE)}` trains one, and its run "
            f"folder is the policy. Those that come with gpuvec are {', '.join(names)}."
        )
    raise FileNotFoundError(
        f"there is no policy {text!r}: give the path of a run folder, of a checkpoint-<iteration>.pt or of a policy file, or "
        f"the name of a policy that comes with gpuvec: {', '.join(names)}."
    )


def find_own_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of the environment that the user's command line names.

    Its module is imported, and remembered: a run that names the same file later needs no --trust, since the user has run this
    file before.

    Args:
        env_id: the id of the environment, "module:id" or "id".

    Raises:
        ValueError, gymnasium.error.Error, ModuleNotFoundError: as `find_env_spec`.
    """
    if ":" in env_id:
        search_working_folder()
    spec = find_env_spec(env_id)
    if (file := module_file(env_id.rpartition(":")[0])) is not None:
        remember_file(file)
    return spec


def import_env_module(env_id: str, trust: bool, path: Path) -> None:
    """Imports the module of a checkpoint's environment if the user trusts it, or has run it before.

    Args:
        env_id: the id of the environment, "module:id" or "id".
        trust: whether importing the module is allowed.
        path: the path of the run or the checkpoint, for the message.

    Raises:
        CheckpointError: the module is not imported yet, not trusted, and not the file that the user has run before.
    """
    from gpuvec.learners.runs.content_checks import require_trusted

    module, _, _ = env_id.rpartition(":")
    if module and module not in sys.modules:
        folders = list(sys.path)
        search_working_folder()
        if not trust:
            file = module_file(module)
            trust = file is not None and is_file_remembered(file)
            if file is None or not trust or not file.is_relative_to(Path.cwd()):
                sys.path[:] = folders
    if module and trust:
        importlib.import_module(module)
    try:
        require_trusted(env_id)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def module_file(module: str) -> Path | None:
    """The absolute path of the file that importing a module would run; None if there is none. Nothing is imported.

    Args:
        module: the dotted name of the module; it may be any text, since it may come from a file.
    """
    name, *submodules = module.split(".")
    if not all(part.isidentifier() for part in (name, *submodules)):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as a script, cannot be imported again
        return None
    for submodule in submodules:  # `find_spec` of a dotted name would import the packages around it
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{submodule}", spec.submodule_search_locations)
    # Links are not followed, since the import does not: it runs compiled code beside the link, and the packages around it.
    return Path(spec.origin).absolute() if spec is not None and spec.has_location and spec.origin else None
