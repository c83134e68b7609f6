"""Machine code on disk, so that a process whose kernels were compiled before needs no compiler.

The code in these files is executed, on the CPU or the GPU. Therefore the folder must belong to the user of this process and
give no permissions to others, or it is not used. The environment variable `GPUVEC_CACHE` is "off", or the folder in which a
folder for machine code is created. Only files that this module has written are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

from gpuvec.engine.backends.cache.key import NotHashable

CACHE_VARIABLE = "GPUVEC_CACHE"
SUBFOLDER = "gpuvec-kernels"  # of the folder that `CACHE_VARIABLE` names
MAGIC = b"gpuvec machine code 1\n"  # the first bytes of each file
MAX_BYTES = 256 << 20  # of all files; the oldest ones are removed beyond that
DIGEST_SIZE = hashlib.sha256().digest_size

R = TypeVar("R", bound=tuple[Any, ...])


def load_or_compile(
    key: Callable[[], str],
    compile_all: Callable[[], list[R]],
    record_class: type[R],
    is_cacheable: Callable[[R], bool] | None = None,
) -> list[R]:
    """Reads machine code from disk, or compiles and stores it.

    Nothing is stored if `key` raises `NotHashable`, if the key changes during the compilation, if the folder cannot be used, or
    if a record is not cacheable.

    Args:
        key: computes the name of the file from all that the code is compiled from.
        compile_all: compiles the code.
        record_class: a NamedTuple class whose first member is bytes, and whose others are strings and numbers.
        is_cacheable: whether another process can use a record; None if that is so for all records.

    Returns:
        The records that `compile_all` returns, or returned in another process.
    """
    return load_or_start(key, lambda: compile_all, record_class, is_cacheable)()


def load_or_start(
    key: Callable[[], str],
    start_all: Callable[[], Callable[[], list[R]]],
    record_class: type[R],
    is_cacheable: Callable[[R], bool] | None = None,
) -> Callable[[], list[R]]:
    """Reads machine code from disk, or starts to compile it. What is stored, and when, is as for `load_or_compile`.

    Args:
        key: computes the name of the file from all that the code is compiled from.
        start_all: starts to compile the code, and returns a function that waits for the code and returns it.
        record_class: a NamedTuple class whose first member is bytes, and whose others are strings and numbers.
        is_cacheable: whether another process can use a record; None if that is so for all records.

    Returns:
        A function that waits for the code, stores it, and returns the records.
    """
    path = cache_folder()
    if path is None:
        return start_all()
    try:
        name = key()
    except NotHashable:
        return start_all()
    with _open_folder(path) as folder:
        stored = None if folder is None else _read(folder, name, record_class)
    if stored is not None:
        return lambda: stored
    wait = start_all()

    def wait_and_store() -> list[R]:
        records = wait()
        if (is_cacheable is None or all(map(is_cacheable, records))) and key() == name:
            # A full or read-only disk costs the next process a compilation.
            with _open_folder(path) as folder, suppress(OSError):
                if folder is not None:
                    _write(folder, name, records)
                    _prune(folder, MAX_BYTES)
        return records

    return wait_and_store


def cache_folder() -> Path | None:
    """The folder of the files; None if the cache is off, or the system has no user ids."""
    setting = os.environ.get(CACHE_VARIABLE, "")
    if setting == "off" or not hasattr(os, "geteuid"):
        return None
    if setting:
        return Path(setting) / SUBFOLDER
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuvec"
    except RuntimeError:  # HOME is not set, and the system has no entry for the user
        _warn_of_no_home()
        return None


def is_cache_empty() -> bool:
    """Whether no machine code is on disk, so that the next kernel will be compiled."""
    path = cache_folder()
    try:
        return path is None or not any(path.iterdir())
    except OSError:  # there is no folder, or it cannot be read
        return True


@cache
def _warn_of_no_home() -> None:
    warnings.warn(
        f"this user has no home folder, so no machine code is stored on disk: set HOME or {CACHE_VARIABLE} to a folder, or "
        f'{CACHE_VARIABLE} to "off".',
        stacklevel=4,
    )


@contextmanager
def _open_folder(path: Path) -> Iterator[int | None]:
    """A context with a descriptor of the folder, which is created if it is missing; None if it cannot be used.

    Files are opened relative to the descriptor, so that renaming a folder on the path in the meantime has no effect.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # the home folder is missing or read-only, or the path is a link
        yield None
        return
    try:
        status = os.fstat(folder)
        is_private = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077 == 0
        if not is_private:
            warnings.warn(
                f"{path} is open to other users, so no machine code is stored in it: `chmod 700` it if it is yours, or set "
                f'{CACHE_VARIABLE} to another folder, or to "off".',
                stacklevel=2,
            )
        yield folder if is_private else None
    finally:
        os.close(folder)


def _read(folder: int, name: str, record_class: type[R]) -> list[R] | None:
    """The records of a file; None if there is no such file, or it is damaged."""
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
            magic, digest, content = file.read(len(MAGIC)), file.read(DIGEST_SIZE), file.read()
    except OSError:
        return None
    if magic != MAGIC or hashlib.sha256(content).digest() != digest:
        return None
    header, _, codes = content.partition(b"\n")
    records, start = [], 0
    for size, *values in json.loads(header):
        records.append(record_class(codes[start : start + size], *values))
        start += size
    return records


def _write(folder: int, name: str, records: list[R]) -> None:
    """Writes a temporary file and renames it, so that no process reads a part of it."""
    header = [(len(code), *values) for code, *values in records]
    content = json.dumps(header).encode() + b"\n" + b"".join(code for code, *_ in records)
    temporary = f".{name}.{os.getpid()}.{get_ident()}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), "wb") as file:
            file.write(MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _prune(folder: int, max_bytes: int) -> None:
    """Deletes the oldest files of machine code until the others have no more than `max_bytes`."""
    files = []
    for name in os.listdir(folder):
        with suppress(OSError):  # another process deleted it, or it is a link or a folder
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and file.read(len(MAGIC)) == MAGIC:
                    files.append((status.st_mtime, name, status.st_size))
    total = sum(size for _, _, size in files)
    for _, name, size in sorted(files):
        if total <= max_bytes:
            return
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        total -= size
