"""Decides which code of a user's own a file may import: one rule for checkpoints, policy files, populations and searches.

A file names code as "module:name", such as the environment "hover:my/Hover-v0". Importing a module runs its code, and anybody
may have written the file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuvec.engine.backends.cache.store import is_file_remembered
from gpuvec.errors import CheckpointError

CODE_SETTINGS = ("env",)
"""Settings of a policy that name code as "module:name"; a name without a module is one of gpuvec."""


def code_modules(policies: object) -> tuple[str, ...]:
    """Returns the modules of the code that policies name, each once.

    Args:
        policies: {role: settings}, expected as `args_to_dict` returns them. It may come from a file that was not checked: parts
            of other types name nothing.
    """
    roles = policies.values() if isinstance(policies, Mapping) else ()
    names = [each.get(name) for each in roles if isinstance(each, Mapping) for name in CODE_SETTINGS]
    modules = [name.rpartition(":")[0] for name in names if isinstance(name, str)]
    return tuple(dict.fromkeys(module for module in modules if module))


def import_code(policies: object, path: Path | str, trust: bool) -> None:
    """Imports the modules that the policies of a file name, if the user trusts them.

    A module that is imported already is not imported again. Call it before the settings are checked, since a check may need the
    code.

    Args:
        policies: {role: settings} in the file, as for `code_modules`.
        path: of the file, for the message.
        trust: whether the user said that importing is allowed.

    Raises:
        CheckpointError: a module is not imported, and not trusted.
        ImportError: a module that is trusted cannot be imported.
    """
    for module in code_modules(policies):
        if module not in sys.modules:
            _import_module(module, trust)
    try:
        require_imported(policies)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _import_module(module: str, trust: bool) -> None:
    """Imports a module that is trusted."""
    folders = list(sys.path)
    search_working_folder()
    if not trust:
        file = module_file(module)
        trust = file is not None and is_file_remembered(file)
        if file is None or not trust or not file.is_relative_to(Path.cwd()):
            sys.path[:] = folders
    if trust:
        importlib.import_module(module)


def require_imported(policies: object) -> None:
    """Checks that the modules that policies name are imported.

    Args:
        policies: {role: settings}, as for `code_modules`.

    Raises:
        CheckpointError: a module is not imported.
    """
    for module in code_modules(policies):
        if module not in sys.modules:
            raise CheckpointError(
                f"its policies name the module {module!r}, which is not imported, and importing it runs its code. If you trust "
                f"it, give --trust, or in Python `import {module}` before. After a training of your own on this machine no "
                "option is needed, as long as the name leads to the same file."
            )


def search_working_folder() -> None:
    """Appends the working folder to the module search path, because the user names or trusts a module that may be in it.

    `python -m gpuvec` searches the working folder, but the installed command does not. The folder is searched last, so that a
    file in it never replaces an installed package, and not before a module of the user is imported: a library may import a
    package if it is installed, and the folder of a stranger may have a file of its name. Python's option -P excludes it.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and not {"", folder} & set(sys.path):
        sys.path.append(folder)


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
