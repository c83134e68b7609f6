"""Decides which code of a user's own a file may import: one rule for checkpoints, policy files, populations and searches.

A file names code as "module:name", such as the environment "hover:my/Hover-v0". Importing a module runs its code, and anybody
may have written the file. It is imported if it is imported already, if the user says so, or if

- the file has the signature of this user, see `gpuvec.signing_key`, which covers its whole content, and
- the name leads to the same path as when the file was signed, with the same links on it, and
- no other user may write to that path.

The module itself may have changed, as a user's own files do. See design/0065.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import importlib.machinery
import importlib.util
import json
import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.records import parse_json
from gpuvec.signing_key import KeyUnusable, key_path, read_key, read_or_create_key

CODE_SETTINGS = ("env", "algorithm", "network")
"""Settings of a policy that name code as "module:name"; a name without a module is one of gpuvec."""
SIGNATURE = "signature"  # its name in files that have names for their parts


class Signature(NamedTuple):
    """What a file has as its signature, which anybody may have written."""

    text: str | None
    """None if it has none."""
    digest: Callable[[], bytes]
    """Computes the SHA-256 of the content that is signed."""


UNSIGNED = Signature(None, bytes)
NOT_HERE = "There is no such module here: change to the folder that has it, or install its package."


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


def sign(policies: object, digest: bytes) -> str:
    """Returns the signature of a file, which says that this user ran the code that its policies name, and where that was.

    Args:
        policies: {role: settings} in the file, as for `code_modules`.
        digest: the SHA-256 of the content that is signed.

    Returns:
        JSON in ASCII; "" if the policies name no code of a user, or if there is no key.
    """
    modules = code_modules(policies)
    try:
        key = read_or_create_key() if modules else b""
    except KeyUnusable:  # `signing_problem` reports it before a training
        return ""
    if not modules:
        return ""
    places = {name: _place(key, file) for name in modules if (file := module_file(name)) is not None}
    record = {"key": _mac(key, "key", ""), "content": digest.hex(), "modules": places}
    return json.dumps({**record, "mac": _mac(key, "signature", record)})


def digest_of(value: Any) -> bytes:
    """Returns the SHA-256 of a value.

    Args:
        value: what JSON can represent; lists and tuples are the same.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def signing_problem(policies: object) -> str:
    """Returns why files with these policies will need --trust though this user writes them, as sentences; "" if they won't.

    The key is created if there is none.

    Args:
        policies: {role: settings}, as for `code_modules`; their modules are imported.
    """
    problems = []
    for module in code_modules(policies):
        try:
            read_or_create_key()
            file = module_file(module)
            problems.append(f"The module {module!r} is not in a file." if file is None else others_may_write(file, module))
        except KeyUnusable as error:
            problems.append(str(error))
    problem = " ".join(dict.fromkeys(filter(None, problems)))
    return problem and f"{problem} So `gpuvec eval` and the other commands will need --trust for what is written now."


def import_code(policies: object, path: Path | str, trust: bool, signature: Signature = UNSIGNED) -> None:
    """Imports the modules that the policies of a file name, if the user trusts them or has signed the file.

    A module that is imported already is not imported again. Call it before the settings are checked, since a check may need the
    code.

    Args:
        policies: {role: settings} in the file, as for `code_modules`.
        path: of the file, for the message.
        trust: whether the user said that importing is allowed.
        signature: that of the file.

    Raises:
        CheckpointError: a module is not imported, and not trusted, or there is no such module here.
        ImportError: a module that is trusted imports another one that is missing.
    """
    for module in code_modules(policies):
        if module in sys.modules:
            continue
        folders = list(sys.path)
        search_working_folder()
        file = module_file(module)
        distrust = "" if trust else _reason_for_distrust(module, file, signature)
        if distrust or (not trust and file is not None and not file.is_relative_to(Path.cwd())):
            sys.path[:] = folders
        if distrust:
            raise CheckpointError(f"{path} {_not_imported(module, distrust)}")
        if _import_or_find_missing(module):
            raise CheckpointError(f"{path} names the module {module!r}. {NOT_HERE}")


def require_imported(policies: object) -> None:
    """Checks that the modules that policies name are imported.

    Args:
        policies: {role: settings}, as for `code_modules`.

    Raises:
        CheckpointError: a module is not imported.
    """
    for module in code_modules(policies):
        if module not in sys.modules:
            raise CheckpointError(f"The checkpoint {_not_imported(module, 'It was not read by gpuvec.load_policy.')}")


def _not_imported(module: str, reason: str) -> str:
    return (
        f"names the module {module!r}, which is not imported, and importing it runs its code. {reason} If you trust it, give "
        f"--trust, or in Python `import {module}` before."
    )


def _reason_for_distrust(module: str, file: Path | None, signature: Signature) -> str:
    """Returns why a file does not show that this user ran the code of a module, as a sentence; "" if it does."""
    if signature.text is None:
        return "The file is not signed: another user wrote it, or there was no key."
    try:
        key = read_key()
        if key is None:
            return f"The file is signed, and you have no key {key_path()} that could have signed it."
    except KeyUnusable as error:
        return str(error)
    record = parse_json(signature.text.encode(errors="replace"))
    if not isinstance(record, dict):
        return "The signature of the file is damaged."
    if record.get("key") != _mac(key, "key", ""):
        return (
            f"The file is signed with another key than yours, {key_path()}: another user wrote it, or you did on another "
            "machine, or before this key was created."
        )
    mac = str(record.pop("mac", "")).encode(errors="replace")
    if not hmac.compare_digest(mac, _mac(key, "signature", record).encode()):
        return "The signature of the file is damaged."
    if not hmac.compare_digest(record["content"], signature.digest().hex()):
        return "The file has changed since it was signed, or its signature is that of another file."
    if file is None:
        return NOT_HERE
    if module not in record["modules"]:
        return "The file is signed for other modules."
    if record["modules"][module] != _place(key, file):
        return f"The name leads to {file}, and led to another file, or through other links, when this file was signed."
    return others_may_write(file, module)


def _mac(key: bytes, purpose: str, value: Any) -> str:
    return hmac.new(key, json.dumps([purpose, value], sort_keys=True).encode(), "sha256").hexdigest()


def _place(key: bytes, file: Path) -> str:
    """A name for a path and the places to which it and the folders around it lead, some of which may be links."""
    return _mac(key, "place", [str(file), *(os.path.realpath(place) for place in (file, *file.parents))])


def others_may_write(file: Path, module: str) -> str:
    """Returns which place on the path of a module other users may write to, as a sentence; "" if there is none.

    Who may write there can run code as this user when the module is imported.

    Args:
        file: the absolute path of the module.
        module: its dotted name, whose first part is found in a folder that other modules may be imported from, too.
    """
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if not hasattr(os, "geteuid") or installed & set(file.parents):  # Python itself runs what is in the latter
        return ""
    depth = module.count(".") + 1 + (file.stem == "__init__")
    searched = {place for folder in file.parents[:depth] for place in (folder, folder.resolve())}
    for place in dict.fromkeys(each for path in (file, file.resolve()) for each in (path, *path.parents)):
        try:
            status = place.stat()
        except (FileNotFoundError, NotADirectoryError):  # in an archive
            continue
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user (uid {status.st_uid})."
        # In a sticky folder, such as /tmp, others can only create files of their own.
        is_safe = status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode) and place not in searched
        shared_bits = stat.S_IWOTH if _is_private_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & shared_bits and not is_safe:
            return f"Other users may write to {place} (its mode is {stat.S_IMODE(status.st_mode):03o})."
    return ""


def _is_private_group(gid: int) -> bool:
    """Whether a group has the name of this user and no other member, as many systems create one for each user."""
    import grp  # not on Windows
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def import_named_module(name: str, kind: str) -> None:
    """Imports the module in a name that the user gave, which needs no trust.

    Args:
        name: "module:object".
        kind: what it is the name of, for the message.

    Raises:
        ValueError: there is no such module. Another error in the module is raised as it is.
    """
    if missing := _import_or_find_missing(name.rpartition(":")[0]):
        raise ValueError(
            f"{kind} {name!r}: there is no module {missing!r}. Give module:name of one in the working folder, or of an "
            "installed package."
        )


def _import_or_find_missing(module: str) -> str:
    """Imports a module, and returns its name, or that of a package around it, if there is none; otherwise "".

    Another error in the module is raised as it is.
    """
    if module.startswith("."):  # relative to nothing
        return module
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise
        return error.name
    return ""


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
