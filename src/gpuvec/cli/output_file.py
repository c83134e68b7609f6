"""Files that a command writes where the user says, without the loss of another file."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def require_writable(path: Path, force: bool) -> None:
    """Checks that a file may be written, before the work for its content.

    Raises:
        FileNotFoundError: its folder does not exist.
        FileExistsError: it exists, and `force` is not set or it is not a regular file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}: create it first.")
    if os.path.lexists(path) and not (force and path.is_file() and not path.is_symlink()):
        hint = (
            "give another name, or --force to replace it" if path.is_file() and not path.is_symlink() else "give another name"
        )
        raise FileExistsError(f"{path} exists: {hint}.")


def require_runs_folder(path: Path) -> None:
    """Checks that a folder for run folders exists or can be created.

    Args:
        path: what --runs names.

    Raises:
        NotADirectoryError: it is a file.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(
            f"{path} is a file, and --runs is the folder in which run folders are created: name another one."
        )


def write_file(path: Path, content: bytes, force: bool) -> None:
    """Writes a whole file or nothing.

    Args:
        force: whether an existing file is replaced.

    Raises:
        OSError: as `require_writable`, or the file cannot be written; an existing one is unchanged.
    """
    require_writable(path, force)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
        if force:
            part.replace(path)
            return
        try:
            os.link(part, path)  # which fails if another process has created it in the meantime
        except FileExistsError:
            raise FileExistsError(f"{path} exists: give another name, or --force to replace it.") from None
        except OSError:  # some file systems have no hard links
            with path.open("xb") as file:
                try:
                    file.write(content)
                except BaseException:
                    with suppress(OSError):
                        path.unlink()
                    raise
    finally:
        part.unlink(missing_ok=True)
