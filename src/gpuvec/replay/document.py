"""A replay as a header, which is JSON, and the bytes of its tracks; read from and written to one HTML file.

`design/0045-replays.md` describes the format.
"""

from __future__ import annotations

import base64
import json
import reprlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gpuvec.errors import ReplayError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.page import build_page
from gpuvec.replay.tracks import Track, decode, encode, encode_exactly, parse_track

FORMAT, VERSION = "gpuvec-replay", 2
MAX_TRACK_BYTES = 1 << 27  # of all tracks of a replay, inflated
MAX_HEADER_BYTES = 1 << 24
MAX_PAGE_BYTES = 3 << 26  # of a file, which has the tracks in base64
HEADER, DATA = b'<script type="application/json" id="replay-header">', b'<script type="text/plain" id="replay-data">'


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
        if type(offset) is not int or offset < 0 or offset + track.size > len(self.data):
            raise ReplayError(
                f"a track begins at byte {reprlib.repr(offset)} and has {track.size}, and the replay has {len(self.data)}: it "
                "is damaged."
            )
        return decode(track, self.data[offset : offset + track.size])


def write_replay(path: str | Path, replay: Replay) -> Path:
    """Writes a replay to an HTML file, and returns its path. An existing file is replaced once the new one is complete.

    Args:
        path: of the file.
        replay: what is written.

    Raises:
        ReplayError: as `to_page`.
        RunWriteError: the file cannot be written.
    """
    path = Path(path)
    with RunFolder(path.parent) as folder:
        folder.write(path.name, to_page(replay).encode())
    return path


def to_page(replay: Replay) -> str:
    """Returns the text of an HTML file that plays a replay.

    Args:
        replay: what it plays.

    Raises:
        ReplayError: it has more bytes than `parse_replay` reads, or the header has a value that JSON does not have.
    """
    if len(replay.data) > MAX_TRACK_BYTES:
        raise ReplayError(
            f"it has {len(replay.data):,} bytes of tracks, and a replay has at most {MAX_TRACK_BYTES:,}: record fewer steps, "
            "or fewer environments."
        )
    try:
        text = json.dumps(replay.header, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ReplayError(f"the header of a replay must consist of what JSON has: {error}.") from error
    header = text.replace("<", "\\u003c")  # so that no text can end the element that has it
    if len(header) > MAX_HEADER_BYTES:
        raise ReplayError(f"its header has {len(header):,} bytes, and that of a replay at most {MAX_HEADER_BYTES:,}.")
    compressor = zlib.compressobj(9, strategy=zlib.Z_FILTERED)  # for small numbers that vary at random, which residuals are
    return build_page(replay.header, header, compressor.compress(replay.data) + compressor.flush())


def read_replay(path: str | Path) -> Replay:
    """Reads a replay from an HTML file. Nothing in it is executed; `write_replay` makes a new page of what is returned.

    Args:
        path: of the file.

    Raises:
        ReplayError: the file is not a replay of this version, or it is damaged.
        CheckpointError: it is a link or no regular file, or has more than `MAX_PAGE_BYTES` bytes.
        OSError: the file cannot be read.
    """
    with RunFolder(Path(path).parent) as folder:
        return read_replay_in(folder, Path(path).name)


def read_replay_in(folder: RunFolder, name: str) -> Replay:
    """Reads a replay from a file of a folder, as `read_replay` does.

    Args:
        folder: the folder.
        name: of the file.
    """
    return parse_replay(folder.read(name, MAX_PAGE_BYTES), folder.path / name)


def parse_replay(page: bytes, path: str | Path) -> Replay:
    """Returns the replay in an HTML file.

    Args:
        page: the whole content of the file.
        path: of the file, for messages.

    Raises:
        ReplayError: the file is not a replay of this version, or it is damaged.
    """
    header = _parse_header(_element(page, HEADER, path), path)
    encoded = _element(page, DATA, path)
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(encoded, validate=True), MAX_TRACK_BYTES + 1)
    except (ValueError, zlib.error) as error:
        raise ReplayError(f"{path}: the data of the replay are damaged ({error}).") from error
    if len(data) > MAX_TRACK_BYTES:
        raise ReplayError(f"{path}: the data of the replay have more than {MAX_TRACK_BYTES:,} bytes.")
    if not inflater.eof:
        raise ReplayError(f"{path}: the data of the replay end early: the file is damaged.")
    return Replay(header, data)


def _parse_header(text: bytes, path: str | Path) -> dict[str, Any]:
    if len(text) > MAX_HEADER_BYTES:
        raise ReplayError(f"{path}: the header has more than {MAX_HEADER_BYTES:,} bytes.")
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ReplayError(f"{path}: the header of the replay is not JSON ({error}): the file is damaged.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ReplayError(f"{path} is not a replay of gpuvec.")
    if header.get("version") != VERSION:
        raise ReplayError(
            f"{path} has version {reprlib.repr(header.get('version'))} of the format, and this gpuvec reads version {VERSION}: "
            f"use the gpuvec that wrote it ({reprlib.repr(header.get('generator', 'unknown'))})."
        )
    scenes = header.get("scenes")
    if not isinstance(scenes, list) or not scenes or not all(map(_is_scene, scenes)):
        raise ReplayError(f"{path}: the scenes of the replay are not a list of scenes with frames: the file is damaged.")
    return header


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _is_scene(scene: Any) -> bool:
    """Whether a value of a header has what a page and its title are made of; the player checks the rest."""
    return (
        isinstance(scene, dict)
        and type(scene.get("num_frames")) is int
        and 1 <= scene["num_frames"] <= MAX_TRACK_BYTES
        and all(isinstance(scene.get(name, ""), str) for name in ("env", "title"))
    )


def _element(page: bytes, begin: bytes, path: str | Path) -> bytes:
    """Returns the text of the element that begins with the tag `begin`."""
    _, tag, rest = page.partition(begin)
    text, end, _ = rest.partition(b"</script>")
    if not tag or not end:
        name = begin.decode().split('"')[3]
        raise ReplayError(f"{path} is not a complete replay: it has no element {name!r}.")
    return text.strip()
