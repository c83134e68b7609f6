"""The folder of a run as a place that several processes, and other people's archives, may have files in.

Everything is opened relative to a descriptor of the folder, without following links, and written under another name first: a
link that someone put there leads nowhere, and a reader finds a file whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gpuvec.errors import CheckpointError, RunInUseError, RunWriteError

LOCK = "lock"
LOCK_ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 5, 0.1  # `gpuvec runs` holds the lock for a moment when it looks at it
PART = re.compile(r"\.[\w.-]+\.[0-9a-f]{16}\.part")
OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is refused, and not waited for


class RunFolder:
    """A folder of a run that exists. Use it as a context manager, or call `close`.

    Args:
        path: where it is; a link to a folder is followed, links within it are not.

    Raises:
        FileNotFoundError: there is no such folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._closed = False
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"there is no folder {self.path}: give the folder of a run, or make it first.") from error

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock and closes the descriptors."""
        if self._closed:
            return
        self._closed = True
        os.close(self._handle)
        if self._lock is not None:
            os.close(self._lock)

    def names(self) -> list[str]:
        """The names of the regular files in it, sorted."""
        return [name for name in self.all_names() if self._is_regular(name)]

    def all_names(self) -> list[str]:
        """The names of all that is in it, sorted."""
        return sorted(os.listdir(self._handle))  # noqa: PTH208  # a descriptor has no pathlib

    def changed_at(self, name: str) -> float:
        """When a file in it was last changed, in seconds since the epoch."""
        return os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mtime

    def require_not_link(self, name: str) -> None:
        """Raises CheckpointError if `name` is a link: what is written there would be written elsewhere."""
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mode):
                raise CheckpointError(f"{self.path / name} is a link, and links in a run folder are not followed: remove it.")

    def open(self, name: str) -> IO[bytes]:
        """A regular file for reading.

        Raises:
            FileNotFoundError: there is none of that name.
            CheckpointError: it is a link, a folder or a pipe, or cannot be opened.
        """
        return os.fdopen(self._open_regular(name, os.O_RDONLY), "rb")

    def read(self, name: str, limit: int) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is none of that name.
            CheckpointError: it is no regular file, or longer than `limit` bytes.
        """
        with self.open(name) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise CheckpointError(f"{self.path / name} is longer than the {limit:,} bytes that such a file has at most.")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file in place of the one of that name, if there is one.

        Raises:
            RunWriteError: it cannot be written; what was there before is unchanged.
        """
        with self.replacing(name) as file:
            file.write(content)

    @contextmanager
    def replacing(self, name: str, keep_open: bool = False) -> Iterator[IO[bytes]]:
        """A new file, which takes the place of `name` once the block ends without an error. If `keep_open`, it stays open.

        Raises:
            RunWriteError: it cannot be written; what was there before is unchanged, and the part is removed.
        """
        part = f".{name}.{secrets.token_hex(8)}.part"
        with self._write_errors(name):
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o644, dir_fd=self._handle)
            file = _ErrorRecordingFile(os.fdopen(handle, "wb", buffering=0 if keep_open else -1))
            try:
                try:
                    yield file  # type: ignore[misc]  # it has the methods that writers of files call
                    file.flush()
                except Exception as error:
                    if file.error is None or file.error is error:
                        raise
                    raise file.error from error
                os.fsync(handle)
                os.replace(part, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
                os.fsync(self._handle)
            except BaseException:
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    os.unlink(part, dir_fd=self._handle)
                raise
            if not keep_open:
                file.close()

    def remove(self, name: str) -> None:
        """Removes a file, or the link itself, if there is one of that name."""
        with self._write_errors(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def lock(self) -> None:
        """Takes the folder for this object until it is closed, and removes the parts of a process that was killed.

        Raises:
            RunInUseError: another process, or another object of this one, has it.
            CheckpointError: the lock is no regular file.
            RunWriteError: the folder cannot be written.
        """
        if self._lock is not None:
            return
        with self._write_errors(LOCK):
            handle = self._open_regular(LOCK, os.O_RDWR | os.O_CREAT)
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == LOCK_ATTEMPTS:
                    os.close(handle)
                    raise RunInUseError(
                        f"{self.path} is in use: another process trains there. Wait for it, or stop it first."
                    ) from None
                time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            except OSError as error:  # some network file systems have none
                warnings.warn(f"{self.path} cannot be locked ({error.strerror}): start no second run in it.", stacklevel=2)
                break
        self._lock = handle
        for name in self.all_names():
            if PART.fullmatch(name):
                self.remove(name)

    def in_use(self) -> bool:
        """Whether something has the folder locked."""
        try:
            handle = self._open_regular(LOCK, os.O_RDONLY)
        except (FileNotFoundError, CheckpointError):
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no locks on this file system
            return False
        finally:
            os.close(handle)
        return False

    def _is_regular(self, name: str) -> bool:
        with suppress(OSError):
            return stat.S_ISREG(os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mode)
        return False

    def _open_regular(self, name: str, flags: int) -> int:
        try:
            handle = os.open(name, flags | OPEN_FLAGS, 0o644, dir_fd=self._handle)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.require_not_link(name)
            if flags & os.O_CREAT:
                raise
            raise CheckpointError(f"{self.path / name} cannot be opened: {error.strerror}.") from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise CheckpointError(f"{self.path / name} is no regular file.")
        return handle

    @contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        """Raises RunWriteError for an OSError within."""
        try:
            yield
        except RunWriteError:
            raise
        except OSError as error:
            raise RunWriteError(f"{self.path / name} cannot be written: {error.strerror or error}.") from error


class _ErrorRecordingFile:
    """A file that remembers its first error: torch.save raises one of its own in place of it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Writes all of `content`."""
        try:
            view = memoryview(content).cast("B")
            written = 0
            while written < len(view):  # a write may stop at a limit before it fails
                written += self._file.write(view[written:])
            return written
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Hands what is buffered to the system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
