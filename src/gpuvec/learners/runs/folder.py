"""The folder of a run, in which several processes and the archives of other people may have put files.

Files are opened relative to a descriptor of the folder and links are not followed, so that a link in the folder cannot lead to
another file. A new file is written under a temporary name and then renamed, so that a reader finds it complete or not at all.
"""

from __future__ import annotations

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

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where `RunFolder` raises an error
    fcntl = None  # type: ignore[assignment]

from gpuvec.errors import CheckpointError, RunInUseError, RunWriteError

LOCK_NAME = "lock"
LOCK_ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 5, 0.1  # `gpuvec runs` holds the lock for a moment while it tests it
PART_NAME = re.compile(r"\.[\w.-]+\.[0-9a-f]{16}\.part")
# Windows has none of these. Without O_NONBLOCK, opening a pipe would wait for a writer.
OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))


class RunFolder:
    """An existing run folder. Use it as a context manager, or call `close`.

    Args:
        path: the path of the folder. A link to a folder is followed, links inside the folder are not.

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: this system cannot open files relative to a folder, or has no locks.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._closed = True  # until there is something to close
        if fcntl is None or os.open not in os.supports_dir_fd:
            raise OSError(
                f"run folders such as {self.path} need Linux or macOS, whose files can be opened relative to a folder and "
                "locked; this system has no such calls. On Windows use WSL, or train in Python without run_folder=."
            )
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"there is no folder {self.path}: give the folder of a run, or create it first.") from error
        self._closed = False

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock and closes the descriptors. Further calls have no effect."""
        if self._closed:
            return
        self._closed = True
        os.close(self._descriptor)
        if self._lock is not None:
            os.close(self._lock)

    def file_names(self) -> list[str]:
        """The names of the regular files in the folder, sorted."""
        return [name for name in self.all_names() if self._is_regular(name)]

    def all_names(self) -> list[str]:
        """The names of all entries of the folder, sorted."""
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208  # pathlib does not list descriptors

    def modification_time(self, name: str) -> float:
        """The time of the last change of a file, in seconds since the epoch.

        Args:
            name: the name of the file.
        """
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime

    def require_not_link(self, name: str) -> None:
        """Checks that an entry is not a link, because what is written to it would be written elsewhere.

        Args:
            name: the name of an entry, which need not exist.

        Raises:
            CheckpointError: the entry is a link.
        """
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode):
                raise CheckpointError(f"{self.path / name} is a link, and links in a run folder are not followed: remove it.")

    def open(self, name: str) -> IO[bytes]:
        """Opens a regular file for reading.

        Args:
            name: the name of the file.

        Raises:
            FileNotFoundError: there is no such file.
            CheckpointError: it is a link, a folder or a pipe, or cannot be opened.
        """
        return os.fdopen(self._open_regular(name, os.O_RDONLY), "rb")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Reads a whole file.

        Args:
            name: the name of the file.
            max_bytes: the size up to which the file is read.

        Raises:
            FileNotFoundError: there is no such file.
            CheckpointError: it is not a regular file, or has more than `max_bytes` bytes.
        """
        with self.open(name) as file:
            is_large = os.fstat(file.fileno()).st_size > max_bytes
            content = b"" if is_large else file.read(max_bytes + 1)
        if is_large or len(content) > max_bytes:
            raise CheckpointError(f"{self.path / name} has more than the {max_bytes:,} bytes that are allowed for this file.")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, which replaces the one of the same name.

        Args:
            name: the name of the file.
            content: the whole content.

        Raises:
            RunWriteError: the file cannot be written; the previous one is unchanged.
        """
        with self.open_replacement(name) as file:
            file.write(content)

    @contextmanager
    def open_replacement(self, name: str, keep_open: bool = False) -> Iterator[IO[bytes]]:
        """Opens a new file, which replaces the one of the same name when the block ends without an error.

        Args:
            name: the name of the file.
            keep_open: whether the file stays open after the block.

        Raises:
            RunWriteError: the file cannot be written; the previous one is unchanged, and the new one is removed.
        """
        part_name = f".{name}.{secrets.token_hex(8)}.part"
        with self._write_errors(name):
            descriptor = os.open(part_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o644, dir_fd=self._descriptor)
            file = _ErrorRecordingFile(os.fdopen(descriptor, "wb", buffering=0 if keep_open else -1))
            try:
                try:
                    yield file  # type: ignore[misc]  # it has the methods that writers of files call
                    file.flush()
                except Exception as error:
                    if file.error is None or file.error is error:
                        raise
                    raise file.error from error
                os.fsync(descriptor)
                os.replace(part_name, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
                os.fsync(self._descriptor)
            except BaseException:
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    os.unlink(part_name, dir_fd=self._descriptor)
                raise
            if not keep_open:
                file.close()

    def remove(self, name: str) -> None:
        """Removes a file if it exists. If it is a link, the link itself is removed.

        Args:
            name: the name of the file.

        Raises:
            RunWriteError: the file cannot be removed.
        """
        with self._write_errors(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def lock(self) -> None:
        """Locks the folder until this object is closed, and removes unfinished files of a process that was killed.

        Raises:
            RunInUseError: another process, or another object of this process, has locked the folder.
            CheckpointError: the lock file is not a regular file.
            RunWriteError: the lock file cannot be written.
        """
        if self._lock is not None:
            return
        with self._write_errors(LOCK_NAME):
            descriptor = self._open_regular(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == LOCK_ATTEMPTS:
                    os.close(descriptor)
                    raise RunInUseError(
                        f"{self.path} is in use: another process trains there. Wait for it, or stop it first."
                    ) from None
                time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            except OSError as error:  # some network file systems have no locks
                warnings.warn(f"{self.path} cannot be locked ({error.strerror}): start no second run in it.", stacklevel=2)
                break
        self._lock = descriptor
        for name in self.all_names():
            if PART_NAME.fullmatch(name):
                self.remove(name)

    def is_locked(self) -> bool:
        """Whether a process has locked the folder."""
        try:
            descriptor = self._open_regular(LOCK_NAME, os.O_RDONLY)
        except (FileNotFoundError, CheckpointError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # this file system has no locks
            return False
        finally:
            os.close(descriptor)
        return False

    def _is_regular(self, name: str) -> bool:
        with suppress(OSError):
            return stat.S_ISREG(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)
        return False

    def _open_regular(self, name: str, flags: int) -> int:
        """Opens a regular file and returns its descriptor; raises as `open`, and OSError if the file would be created."""
        try:
            descriptor = os.open(name, flags | OPEN_FLAGS, 0o644, dir_fd=self._descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.require_not_link(name)
            if flags & os.O_CREAT:
                raise
            raise CheckpointError(f"{self.path / name} cannot be opened: {error.strerror}.") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{self.path / name} is not a regular file.")
        return descriptor

    @contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        """Converts an OSError in the block to a RunWriteError that names the file."""
        try:
            yield
        except RunWriteError:
            raise
        except OSError as error:
            raise RunWriteError(f"{self.path / name} cannot be written: {error.strerror or error}.") from error


class _ErrorRecordingFile:
    """A file that stores the first error of writing, because torch.save replaces it by one that does not name the cause."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Writes all of `content`, bytes or a buffer, and returns their number."""
        try:
            view = memoryview(content).cast("B")
            num_written = 0
            while num_written < len(view):  # at a size limit, a write stores a part before the next one fails
                num_written += self._file.write(view[num_written:])
            return num_written
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Passes buffered bytes to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
