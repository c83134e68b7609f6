"""Machine code on disk, so that a process whose kernels were compiled before needs no compiler.

What is read here runs, on the CPU or the GPU. So the folder belongs to the user of this process, and nobody else may look into
it or write there; one that others can reach is left alone. `GPUVEC_CACHE` names a folder in which a folder for this purpose is
made, or is "off". Files that something else wrote are never removed.
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
from typing import Any, NamedTuple, TypeVar

from gpuvec.engine.backends.cache.key import NotHashable
from gpuvec.engine.backends.cuda.launch_config import GridSize

SWITCH = "GPUVEC_CACHE"
OWN_FOLDER = "gpuvec-kernels"  # in the folder that the user names
FORMAT = b"gpuvec machine code 1\n"  # how each file begins
LIMIT = 256 << 20  # bytes of all files; beyond, those go that were written longest ago
DIGEST = hashlib.sha256().digest_size


C = TypeVar("C", bound=tuple[Any, ...])


class Cubin(NamedTuple):
    """A kernel as it is loaded and launched."""

    code: bytes
    name: str
    threads: int  # per block
    blocks: GridSize


def load_or_compile(
    key: Callable[[], str], make: Callable[[], list[C]], kind: type[C], is_cacheable: Callable[[C], bool] | None = None
) -> list[C]:
    """What is on disk under `key()`, or else what `make()` gives, which is put there.

    A key that raises `NotHashable` or changes meanwhile, a folder that cannot be used, and code that is not cacheable mean that
    nothing is kept. A `kind` is a NamedTuple of bytes and then what JSON knows.
    """
    place = folder()
    if place is None:
        return make()
    try:
        name = key()
    except NotHashable:
        return make()
    with _opened(place) as handle:
        found = None if handle is None else _read(handle, name, kind)
    if found is not None:
        return found
    made = make()
    if (is_cacheable is not None and not all(map(is_cacheable, made))) or key() != name:
        return made
    with _opened(place) as handle:
        if handle is not None:
            with suppress(OSError):  # a full or read-only disk costs the next process a compilation
                _write(handle, name, made)
                _prune(handle, LIMIT)
    return made


def folder() -> Path | None:
    """Where the files are; None if there shall be none, or the system does not tell users apart."""
    named = os.environ.get(SWITCH, "")
    if named == "off" or not hasattr(os, "geteuid"):
        return None
    if named:
        return Path(named) / OWN_FOLDER
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuvec"
    except RuntimeError:  # neither HOME nor an entry for the user
        _warn_of_no_home()
        return None


@cache
def _warn_of_no_home() -> None:
    warnings.warn(
        f"this user has no home folder, so no machine code is kept on disk: set HOME or {SWITCH} to a folder, or {SWITCH} to "
        '"off".',
        stacklevel=4,
    )


@contextmanager
def _opened(place: Path) -> Iterator[int | None]:
    """A descriptor of the folder, which is made if it is missing: whoever renames things meanwhile changes nothing. None if
    there is none to use.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # no home, a read-only one, a link
        yield None
        return
    try:
        found = os.fstat(handle)
        own = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0
        if not own:
            warnings.warn(
                f"{place} is open to other users, so no machine code is kept in it: `chmod 700` it if it is yours, or set "
                f'{SWITCH} to another folder, or to "off".',
                stacklevel=2,
            )
        yield handle if own else None
    finally:
        os.close(handle)


def _read(handle: int, name: str, kind: type[C]) -> list[C] | None:
    """None if it is not there, or not whole."""
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle), "rb") as file:
            begin, digest, content = file.read(len(FORMAT)), file.read(DIGEST), file.read()
    except OSError:
        return None
    if begin != FORMAT or hashlib.sha256(content).digest() != digest:
        return None
    head, _, codes = content.partition(b"\n")
    found, at = [], 0
    for size, *rest in json.loads(head):
        found.append(kind(codes[at : at + size], *(GridSize(*x) if isinstance(x, list) else x for x in rest)))
        at += size
    return found


def _write(handle: int, name: str, made: list[C]) -> None:
    """All of it or nothing: under another name first."""
    head = [(len(code), *rest) for code, *rest in made]
    content = json.dumps(head).encode() + b"\n" + b"".join(code for code, *_ in made)
    other = f".{name}.{os.getpid()}.{get_ident()}"
    try:
        with os.fdopen(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=handle), "wb") as file:
            file.write(FORMAT + hashlib.sha256(content).digest() + content)
        os.replace(other, name, src_dir_fd=handle, dst_dir_fd=handle)
    except OSError:
        with suppress(OSError):
            os.unlink(other, dir_fd=handle)
        raise


def _prune(handle: int, limit: int) -> None:
    """Deletes the oldest files of machine code until the others take no more than `limit` bytes."""
    files = []
    for name in os.listdir(handle):
        with suppress(OSError):  # another process deleted it, or it is a link or a folder
            place = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
            with os.fdopen(place, "rb") as file:
                found = os.fstat(place)
                if stat.S_ISREG(found.st_mode) and file.read(len(FORMAT)) == FORMAT:
                    files.append((found.st_mtime, name, found.st_size))
    total = sum(size for _, _, size in files)
    for _, name, size in sorted(files):
        if total <= limit:
            return
        with suppress(OSError):
            os.unlink(name, dir_fd=handle)
        total -= size
