"""The secret key of this user, with which gpuvec signs the files that it writes. Only the standard library is imported.

The key is 32 random bytes in the user's configuration folder, in a file that no other user may read.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32
FOLDERS = {"darwin": "Library/Application Support", "win32": "AppData/Roaming"}
"""{platform: the configuration folder in the home folder}; `.config` on others."""
OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))


class KeyUnusable(Exception):
    """There is no key that can be used; the message says why, as a sentence."""


def key_path() -> Path:
    """Returns the path of the file of the key, which need not exist.

    Raises:
        KeyUnusable: the user has no home folder.
    """
    folder = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    if Path(folder).is_absolute():  # the standard says that relative paths are ignored
        return Path(folder) / "gpuvec" / "key"
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the system has no entry for the user
        raise KeyUnusable("This user has no home folder for a key: set HOME or XDG_CONFIG_HOME.") from None
    return home / FOLDERS.get(sys.platform, ".config") / "gpuvec" / "key"


def read_key() -> bytes | None:
    """Returns the key; None if there is none.

    Raises:
        KeyUnusable: the file cannot be read, is damaged, or other users may have read or written it.
    """
    path = key_path()
    try:
        descriptor = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyUnusable(
            f"The key {path} is a link, and no link is followed: put the file there."
            if path.is_symlink()
            else f"The key {path} cannot be read: {error.strerror}."
        ) from error
    try:
        status = os.fstat(descriptor)
        remedy = "Remove it, and the next training creates another one; what was signed with it then needs --trust."
        if not stat.S_ISREG(status.st_mode):
            raise KeyUnusable(f"The key {path} is not a regular file. {remedy}")
        if hasattr(os, "geteuid"):
            if status.st_uid != os.geteuid():
                raise KeyUnusable(
                    f"The key {path} belongs to another user (uid {status.st_uid}, and this process has {os.geteuid()}): set "
                    "HOME or XDG_CONFIG_HOME to a folder of this user."
                )
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise KeyUnusable(
                    f"Other users may read or write the key {path}, so they can sign, too: its mode is "
                    f"{stat.S_IMODE(status.st_mode):03o}, and must be 600. {remedy}"
                )
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise KeyUnusable(f"The key {path} is damaged: it must have {KEY_BYTES} bytes. {remedy}")
    return key


def read_or_create_key() -> bytes:
    """Returns the key, which is created if there is none. Of processes that do so at once, all get the same one.

    Raises:
        KeyUnusable: as `read_key`, or it cannot be created.
    """
    key = read_key()
    if key is None:
        _create_key(key_path())
        key = read_key()
    if key is None:
        raise KeyUnusable(f"The key {key_path()} was removed at once.")
    return key


def _create_key(path: Path) -> None:
    """Creates the file of the key unless there is one. A reader finds it complete or not at all."""
    part = path.with_name(f".key.{secrets.token_hex(8)}.part")
    try:
        existing = next(folder for folder in path.parents if folder.exists())
        if hasattr(os, "geteuid") and os.geteuid() == 0 and existing.stat().st_uid != 0:  # root with the HOME of a user
            raise KeyUnusable(
                f"No key can be created as {path}: {existing} belongs to another user, and this process is root's."
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):  # another process was faster
                os.link(part, path)
        finally:
            part.unlink()
    except OSError as error:
        raise KeyUnusable(f"No key can be created as {path}: {error.strerror}.") from error
