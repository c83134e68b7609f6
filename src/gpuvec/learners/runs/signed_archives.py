"""Signatures of zip archives, which checkpoints and files of populations are: the comment at the end of the archive."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from typing import IO, Any

from gpuvec.learners.runs.trusted_code import Signature, code_modules, sign

NO_COMMENT = b"\0\0"  # the end of an archive is the length of its comment, and the comment
CHUNK_BYTES = 1 << 20


def write_signed(file: Any, write: Callable[[Any], object], policies: object) -> None:
    """Writes an archive with the signature of this user if its policies name code, and as it is otherwise.

    Args:
        file: a file that is open for writing; it needs no other method than `write` and `flush`.
        write: writes an archive without a comment to the file that it is called with.
        policies: {role: settings} in the archive, as for `trusted_code.code_modules`.
    """
    if not code_modules(policies):
        write(file)
        return
    hashed = _HashingFile(file)
    write(hashed)
    signature = sign(policies, hashed.hash.digest()).encode()
    file.write(len(signature).to_bytes(len(NO_COMMENT), "little") + signature)


def archive_signature(file: IO[bytes]) -> Signature:
    """Returns the signature of an archive, whose content is read only to compute its digest.

    Args:
        file: an open zip archive that anybody may have written.
    """
    with zipfile.ZipFile(file) as archive:
        comment = archive.comment

    def digest() -> bytes:
        remaining, content = file.seek(0, os.SEEK_END) - len(comment) - len(NO_COMMENT), hashlib.sha256()
        file.seek(0)
        while chunk := file.read(max(0, min(remaining, CHUNK_BYTES))):
            content.update(chunk)
            remaining -= len(chunk)
        content.update(NO_COMMENT)
        return content.digest()

    return Signature(comment.decode("ascii", "replace") or None, digest)


class _HashingFile:
    """Computes the SHA-256 of what is written to a file, and leaves the last bytes, `NO_COMMENT`, to the caller."""

    def __init__(self, file: Any) -> None:
        self._file, self._last = file, b""
        self.hash = hashlib.sha256()

    def write(self, content: Any) -> int:
        """Writes bytes or a buffer, and returns their number."""
        view = memoryview(content).cast("B")
        self.hash.update(view)
        if len(view) < len(NO_COMMENT):
            last = self._last + bytes(view)
            self._file.write(last[: -len(NO_COMMENT)])
            self._last = last[-len(NO_COMMENT) :]
        else:
            self._file.write(self._last)
            self._file.write(view[: -len(NO_COMMENT)])
            self._last = bytes(view[-len(NO_COMMENT) :])
        return len(view)

    def flush(self) -> None:
        """Passes what was written to the file."""
        self._file.flush()
