"""A replay as a header, which is JSON, and the bytes of its tracks; read from and written to one HTML file.

`design/0045-replays.md` describes the format.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gpuvec.errors import ReplayError
from gpuvec.replay.page import build_page
from gpuvec.replay.tracks import Track, decode, encode, encode_exactly, parse_track

FORMAT, VERSION = "gpuvec-replay", 2
MAX_BYTES = 1 << 30  # of the tracks of a file


class TrackWriter:
    """Collects the tracks of a replay."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any], step: float = 0.0) -> dict[str, Any]:
        """Adds an array, and returns the description of its track for the header.

        Args:
            values: (T, ...) of floats, ints or bools.
            step: the quantisation step of floats, as in `tracks.encode`.
        """
        return self._append(*encode(values, step))

    def add_exactly(self, values: NDArray[Any]) -> dict[str, Any] | None:
        """Adds floats of few different values without an error, and returns the description of their track.

        Args:
            values: (T, ...) of float32.

        Returns:
            The description; None, with nothing added, for more than 256 different values.
        """
        encoded = encode_exactly(values)
        return None if encoded is None else self._append(*encoded)

    def _append(self, track: Track, data: bytes) -> dict[str, Any]:
        description = {"offset": self._size, **track._asdict(), "shape": list(track.shape), "table": list(track.table)}
        if not track.table:
            del description["table"]
        self._parts.append(data)
        self._size += len(data)
        return description

    @property
    def data(self) -> bytes:
        """The bytes of all tracks."""
        return b"".join(self._parts)


class Replay(NamedTuple):
    """A replay.

    Attributes:
        header: what design/0045 describes.
        data: the bytes of all tracks.
    """

    header: Mapping[str, Any]
    data: bytes

    def array(self, description: Mapping[str, Any]) -> NDArray[Any]:
        """Returns the array of a track: (T, ...) float32, int32 or bool.

        Args:
            description: the track's part of the header.

        Raises:
            ReplayError: the description is not valid, or its bytes are missing.
        """
        track = parse_track(description)
        offset = description.get("offset")
        if not isinstance(offset, int) or offset < 0 or offset + track.size > len(self.data):
            raise ReplayError(
                f"a track begins at byte {offset} and has {track.size}, and the replay has {len(self.data)}: it is damaged."
            )
        return decode(track, self.data[offset : offset + track.size])


def write_replay(path: str | Path, replay: Replay) -> Path:
    """Writes a replay to an HTML file, and returns its path. An existing file is replaced once the new one is complete.

    Args:
        path: of the file.
        replay: what is written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(to_page(replay), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def to_page(replay: Replay) -> str:
    """Returns the text of an HTML file that plays a replay.

    Args:
        replay: what it plays.
    """
    return build_page(dict(replay.header), _compress(replay.data))


def _compress(data: bytes) -> bytes:
    """Returns a zlib stream, made for small numbers that vary at random, which residuals are."""
    compressor = zlib.compressobj(9, strategy=zlib.Z_FILTERED)
    return compressor.compress(data) + compressor.flush()


def read_replay(path: str | Path) -> Replay:
    """Reads a replay from an HTML file.

    Args:
        path: of the file.

    Raises:
        ReplayError: the file is not a replay of this version, or it is damaged.
        OSError: the file cannot be read.
    """
    return parse_replay(Path(path).read_text(encoding="utf-8", errors="replace"), path)


def parse_replay(text: str, path: str | Path) -> Replay:
    """Returns the replay in the text of an HTML file.

    Args:
        text: the whole content of the file.
        path: of the file, for messages.

    Raises:
        ReplayError: the file is not a replay of this version, or it is damaged.
    """
    header, data = (_element(text, name, path) for name in ("replay-header", "replay-data"))
    try:
        parsed = json.loads(header)
    except ValueError as error:
        raise ReplayError(f"{path}: the header of the replay is not JSON ({error}): the file is damaged.") from error
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise ReplayError(f"{path} is not a replay of gpuvec.")
    if parsed.get("version") != VERSION:
        raise ReplayError(
            f"{path} has version {parsed.get('version')!r} of the format, and this gpuvec reads version {VERSION}: use the "
            f"gpuvec that wrote it ({parsed.get('generator', 'unknown')})."
        )
    try:
        inflater = zlib.decompressobj()
        inflated = inflater.decompress(base64.b64decode(data, validate=True), MAX_BYTES)
        if not inflater.eof:
            raise ReplayError(f"{path}: the data of the replay end early, or have more than {MAX_BYTES:,} bytes.")
    except (binascii.Error, zlib.error) as error:
        raise ReplayError(f"{path}: the data of the replay are damaged ({error}).") from error
    return Replay(parsed, inflated)


def _element(text: str, id: str, path: str | Path) -> str:
    """Returns the text of the element with an id."""
    match = re.search(rf'<script type="[a-z/]+" id="{id}">(.*?)</script>', text, re.DOTALL)
    if match is None:
        raise ReplayError(f"{path} is not a complete replay: it has no element {id!r}.")
    return match[1].strip()
