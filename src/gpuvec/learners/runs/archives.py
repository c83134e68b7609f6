"""Zip archives without compression: files of arrays, npz, and the signatures of these and of checkpoints.

Anybody may have written a file. The arrays of an npz file are written as a stream, and read without pickle: one by one, after
their types and shapes were checked, and none of them is larger than the file. The signature of an archive is its comment. This
module imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import is_numeric
from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, parse_json, to_json
from gpuvec.learners.runs.trusted_code import Signature, code_modules, sign

RECORD = "record"  # the name of an array of bytes, which are a JSON object
SEPARATOR = "/"  # between the names of nested arrays; names of parameters and fields do not contain it
SUFFIX = ".npy"
MAX_ARRAYS, MAX_NESTING = 4096, 8
NO_COMMENT = b"\0\0"  # the end of an archive is the length of its comment, and the comment
CHUNK_BYTES = 1 << 20


def write_npz(file: Any, arrays: Mapping[str, Any], record: Mapping[str, Any] | None = None) -> None:
    """Writes an npz file, whose bytes depend on the arrays alone.

    Args:
        file: a file that is open for writing; it needs no other method than `write` and `flush`.
        arrays: {name: array}.
        record: a JSON object, which is stored as the array `RECORD`; None for none.
    """
    if record is not None:
        arrays = {RECORD: np.frombuffer(to_json(record), np.uint8), **arrays}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, x in arrays.items():
            with archive.open(zipfile.ZipInfo(name + SUFFIX), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(x, order="C"), allow_pickle=False)


def to_npz(arrays: Mapping[str, Any]) -> bytes:
    """Returns the content of an npz file.

    Args:
        arrays: {name: array}.
    """
    file = io.BytesIO()
    write_npz(file, arrays)
    return file.getvalue()


class NpzReader:
    """The arrays of an npz file, whose types and shapes are known before they are read.

    Args:
        file: an open file that anybody may have written.
        name: what messages call it.

    Raises:
        CheckpointError: it is no such file, is compressed, or has arrays of other types than numbers.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name, self.file = name, file
        try:
            self._archive = zipfile.ZipFile(file)
            entries = self._archive.infolist()
        except Exception as error:  # a damaged archive makes zipfile raise errors of many types
            raise self.error("it is not an npz file, or it is incomplete") from error
        names = [entry.filename for entry in entries]
        if len(entries) > MAX_ARRAYS or len(set(names)) < len(names) or not all(name.endswith(SUFFIX) for name in names):
            raise self.error(f"it must have at most {MAX_ARRAYS:,} arrays, each with a name of its own")
        if not is_stored(entries, file):
            raise self.error("its arrays are compressed, or larger than the file")
        self._entries = {entry.filename.removesuffix(SUFFIX): entry for entry in entries}
        self.specs = {name: self._read_spec(name) for name in self._entries}
        """{name: (shape, dtype)}."""

    def error(self, problem: str) -> CheckpointError:
        """Returns the error that names the file and a `problem`, a clause."""
        return CheckpointError(f"{self.name} is damaged: {problem}.")

    def _read_spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        entry = self._entries[name]
        try:
            with self._archive.open(entry) as content:
                shape, dtype = _read_header(content)
                header_size = content.seek(0, os.SEEK_CUR)
        except Exception as error:  # as above
            raise self.error(f"{name[:80]!r} is no array ({str(error)[:80]})") from error
        count = 1
        for length in shape:
            count *= length
        if min(shape, default=0) < 0 or not is_numeric(dtype) or not dtype.isnative:
            raise self.error(f"{name[:80]!r} has the type {dtype} and the shape {str(shape)[:80]}, and must have numbers")
        if header_size + count * dtype.itemsize != entry.file_size:
            raise self.error(f"{name[:80]!r} has the shape {str(shape)[:80]}, and another number of bytes")
        return shape, dtype

    def require(self, name: str, shape: tuple[int, ...] | None, dtype: Any) -> None:
        """Checks an array before it is read.

        Args:
            name: its name.
            shape: that which it must have; None for any.
            dtype: that which it must have.

        Raises:
            CheckpointError: there is no such array, or it has another shape or type.
        """
        if name not in self.specs:
            raise self.error(f"it has no array {name!r}")
        own_shape, own_dtype = self.specs[name]
        if own_dtype != np.dtype(dtype) or (shape is not None and own_shape != shape):
            expected = np.dtype(dtype).name + (f" of the shape {shape}" if shape is not None else "")
            raise self.error(f"{name!r} must be {expected}, got {own_dtype.name} of the shape {str(own_shape)[:80]}")

    def read(self, name: str) -> NDArray[Any]:
        """Returns an array, whose type and shape `specs` has.

        Args:
            name: its name.

        Raises:
            CheckpointError: its content is damaged.
        """
        shape, dtype = self.specs[name]
        x = np.empty(shape, dtype)
        try:
            with self._archive.open(self._entries[name]) as content:
                _read_header(content)
                data = memoryview(x.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # arrays are buffers
                while data:
                    count = content.readinto(data)  # type: ignore[attr-defined]  # it is buffered, which its type does not say
                    if not count:
                        raise EOFError("the file ends before it")
                    data = data[count:]
                content.read(1)  # at the end the checksum is compared
        except Exception as error:  # as above
            raise self.error(f"{name[:80]!r} cannot be read ({str(error)[:80]})") from error
        return x

    def read_all(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Returns {name without the prefix: array} of the arrays whose names begin with a `prefix`.

        Raises:
            CheckpointError: the content of an array is damaged.
        """
        return {name.removeprefix(prefix): self.read(name) for name in self.specs if name.startswith(prefix)}

    def read_expected(self, expected: Mapping[str, tuple[tuple[int, ...], Any]], prefix: str = "") -> dict[str, NDArray[Any]]:
        """Returns {name without the prefix: array} of arrays, after a check of all of them.

        Args:
            expected: {name without the prefix: (shape, dtype)}.
            prefix: of the names.

        Raises:
            CheckpointError: an array is missing, has another shape or type, or its content is damaged.
        """
        for name, (shape, dtype) in expected.items():
            self.require(prefix + name, shape, dtype)
        return {name: self.read(prefix + name) for name in expected}

    def record(self) -> dict[str, Any]:
        """Returns the JSON object of the file.

        Raises:
            CheckpointError: there is none, or it is too large.
        """
        self.require(RECORD, None, np.uint8)
        is_small = self._entries[RECORD].file_size <= MAX_RECORD_BYTES
        values = parse_json(self.read(RECORD).tobytes()) if is_small else None
        if not isinstance(values, dict):
            raise self.error("its record is not a JSON object")
        return values


def flatten(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {name: array} of nested dicts, with names such as "tensors/obs".

    Args:
        arrays: nested dicts of arrays.
        prefix: of the names.
    """
    flat: dict[str, Any] = {}
    for name, x in arrays.items():
        if isinstance(x, Mapping):
            flat |= flatten(x, f"{prefix}{name}{SEPARATOR}")
        else:
            flat[prefix + name] = x
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dicts that `flatten` turned into {name: array}.

    Args:
        flat: the arrays.

    Raises:
        ValueError: the names are no nesting.
    """
    nested: dict[str, Any] = {}
    for path, x in flat.items():
        *parents, name = path.split(SEPARATOR, MAX_NESTING)
        group = nested
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ValueError(f"{path[:80]!r} is in an array")
        if name in group or SEPARATOR in name:
            raise ValueError(f"{path[:80]!r} is a group and an array, or is nested too deeply")
        group[name] = x
    return nested


def _read_header(content: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Reads the header of an array in the format npy, and returns its shape and type; other layouts than rows are refused."""
    version = np.lib.format.read_magic(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, is_fortran, dtype = readers[version](content)
    if is_fortran and len(shape) > 1:
        raise ValueError("its columns are stored one after the other")
    return shape, dtype


def is_stored(entries: Sequence[zipfile.ZipInfo], file: IO[bytes]) -> bool:
    """Whether nothing in an archive is compressed, which might need any amount of memory, or larger than the file.

    Args:
        entries: those of the archive.
        file: the open file.
    """
    sizes = [entry.file_size for entry in entries if entry.compress_type == zipfile.ZIP_STORED]
    return len(sizes) == len(entries) and sum(sizes) <= file.seek(0, os.SEEK_END)


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
