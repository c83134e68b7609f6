"""Imports the module of the environment that a command line or a checkpoint names."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import gymnasium as gym

from gpuvec.engine.backends.cache.store import is_file_remembered, remember_file
from gpuvec.errors import CheckpointError
from gpuvec.registration import find_env_spec


def search_working_folder() -> None:
    """Appends the working folder to the module search path, because the user names or trusts a module that may be in it.

    `python -m gpuvec` searches the working folder, but the installed command does not. The folder is searched last, so that a
    file in it never replaces an installed package, and not before a module of the user is imported: a library may import a
    package if it is installed, and the folder of a stranger may have a file of its name. Python's option -P excludes it.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and not {"", folder} & set(sys.path):
        sys.path.append(folder)


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
