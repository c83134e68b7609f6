"""Replays that anybody may have written: what cannot be a replay is refused by its error, before it takes memory or time."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuvec import replay
from gpuvec.errors import CheckpointError, ReplayError
from gpuvec.replay import document
from gpuvec.replay.document import Replay, TrackWriter, parse_replay, to_page
from gpuvec.replay.tracks import decode, encode, parse_track

TRACK, DATA = encode(np.arange(6.0).reshape(2, 3).astype(np.float32))


def make_page(header: Any, data: bytes = b"", *, encoded: bytes | None = None) -> bytes:
    """Returns the smallest page with a header, which may be text of JSON, and the bytes of tracks."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    encoded = base64.b64encode(zlib.compress(data)) if encoded is None else encoded
    parts = (("application/json", "replay-header", text), ("text/plain", "replay-data", encoded))
    return b"\n".join(f'<script type="{kind}" id="{id}">'.encode() + part + b"</script>" for kind, id, part in parts)


def make_header(**changes: Any) -> dict[str, Any]:
    """Returns a header with one scene of three frames."""
    rewards = {"offset": 0, **TRACK._asdict(), "shape": [2, 3]}
    scene = {"title": "t", "env": "e", "policy": "", "num_frames": 3, "fps": 10, "rewards": rewards, "events": []}
    return {"format": "gpuvec-replay", "version": document.VERSION, "generator": "gpuvec", "scenes": [scene], **changes}


def test_the_smallest_page_is_a_replay(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(make_page(make_header(), DATA))
    read = replay.read_replay(tmp_path / "page.html")
    np.testing.assert_allclose(read.array(read.header["scenes"][0]["rewards"]), np.arange(6.0).reshape(2, 3), atol=1e-3)
    assert parse_replay(to_page(read).encode(), "again") == read


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[" * 200_000, "is not JSON"), (b'{"a":' * 100_000, "is not JSON"), (b"\xff\xfe{", "is not JSON"), (b"9" * 5000,
        "is not JSON"),
        (b'{"format": NaN}', "NaN"), (make_header(start_frame=float("inf")), "Infinity"), (b"[]", "is not a replay of gpuvec"),
        (b"", "is not JSON"),
        (make_header(version="9" * 9000), "has version '999"), (make_header(scenes=[]), "scenes"), (make_header(scenes={}),
        "scenes"),
        (make_header(scenes=[[]]), "scenes"), (make_header(scenes=[{}]), "scenes"), (make_header(scenes=[{"num_frames": "3"}]),
        "scenes"),
        (make_header(scenes=[{"num_frames": 0}]), "scenes"), (make_header(scenes=[{"num_frames": True}]), "scenes"),
        (make_header(scenes=[{"num_frames": 10**400}]), "scenes"), (make_header(scenes=[{"num_frames": 3, "env": ["x"]}]),
        "scenes"),
        (make_header(scenes=[{"num_frames": 3, "title": 7}]), "scenes"),
        (b"x" * (document.MAX_HEADER_BYTES + 1), "the header has more than 16,777,216 bytes"),
    ],
)  # fmt: skip
def test_headers_that_are_none_are_refused(header: Any, message: str) -> None:
    with pytest.raises(ReplayError, match=message) as caught:
        parse_replay(make_page(header, DATA), "page.html")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "encoded", ["\u00e9".encode(), b"\xff" * 100, b"AAAA====", b"A", b"\0" * 1000, b"", b"eJw=", b"!" * 50]
)
def test_data_that_are_none_are_refused(encoded: bytes) -> None:
    with pytest.raises(ReplayError, match=r"damaged|end early"):
        parse_replay(make_page(make_header(), encoded=encoded), "page.html")


def test_data_are_bounded_before_they_are_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_TRACK_BYTES", 1 << 20)
    page = make_page(make_header(), bytes(1 << 27))
    tracemalloc.start()
    with pytest.raises(ReplayError, match=r"more than 1,048,576 bytes"):
        parse_replay(page, "page.html")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23
    assert len(parse_replay(make_page(make_header(), bytes(1 << 20)), "page.html").data) == 1 << 20


def test_what_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    header = make_header()
    monkeypatch.setattr(document, "MAX_TRACK_BYTES", 10)
    with pytest.raises(ReplayError, match="has 11 bytes of tracks, and a replay has at most 10"):
        to_page(Replay(header, bytes(11)))
    monkeypatch.setattr(document, "MAX_HEADER_BYTES", 10)
    with pytest.raises(ReplayError, match="header"):
        to_page(Replay(header, bytes(10)))


def test_elements_are_found_in_linear_time() -> None:
    """With a regular expression that tries each beginning, this page takes an hour."""
    for text in (
        b'<script type="',
        b'<script type="a" id="replay-header">',
        b'<script type="application/json" id="replay-header">',
    ):
        with pytest.raises(ReplayError, match="is not a complete replay"):
            parse_replay(text * 200_000, "page.html")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1] * 100}, {"shape": [1] * 65}, {"shape": [0, 10**18, 10**18]}, {"shape": [2**62]}, {"shape": [1.5, 4]},
        {"shape": "23"},
        {"shape": [True, 6]}, {"shape": None}, {"shape": {"0": 1}}, {"shape": [[2], [3]]}, {"low": 1e308, "kind": "int"},
        {"low": 1e308, "kind": "bool"}, {"low": 2.0**31, "kind": "int"}, {"low": 0.5, "kind": "int"},
        {"low": -(2.0**31) - 1, "kind": "int"},
        {"low": True}, {"low": "1"}, {"low": [1]}, {"step": "inf"}, {"step": 10**400}, {"order": True}, {"order": 1.0},
        {"planes": "1"},
        {"kind": ["float"]}, {"table": None}, {"table": [None]}, {"table": "12"}, {"table": {"1": 2}}, {"table": [10**400]},
        {"offset": -1},
        {"offset": None}, {"offset": 0.0}, {"offset": True}, {"offset": 10**30},
    ],
)  # fmt: skip
def test_descriptions_that_are_none_are_refused(change: dict[str, Any]) -> None:
    read = Replay({}, DATA)
    description = {"offset": 0, **TRACK._asdict(), "shape": [2, 3]}
    assert read.array(description).shape == (2, 3)
    with pytest.raises(ReplayError):
        read.array(description | change)


@pytest.mark.parametrize("description", [None, [], "track", 3, {}, {"shape": [2, 3]}])
def test_values_that_are_no_descriptions_are_refused(description: Any) -> None:
    with pytest.raises(ReplayError):
        Replay({}, DATA).array(description)


def test_numbers_beyond_float32_become_infinite() -> None:
    track = parse_track({**TRACK._asdict(), "low": 1e308, "step": 1e308})
    assert np.isinf(decode(track, DATA)).all()


def test_texts_of_a_header_are_texts_in_the_page() -> None:
    evil = '</script><script>alert(1)</script><h1></h1>" \ud800 \u202e\x1b'
    scene = {**make_header()["scenes"][0], "title": evil, "env": evil}
    page = to_page(Replay(make_header(scenes=[scene]), DATA)).encode()
    assert b"<script>alert" not in page
    assert parse_replay(page, "page").header["scenes"][0]["title"] == evil


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(make_page(make_header(), DATA))
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    with pytest.raises(CheckpointError, match="is a link"):
        replay.read_replay(tmp_path / "link.html")


@pytest.mark.parametrize("size", [document.MAX_PAGE_BYTES + 1, 20 << 30])
def test_large_files_are_refused_unread(size: int, tmp_path: Path) -> None:
    with (tmp_path / "page.html").open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="more than the"):
        replay.read_replay(tmp_path / "page.html")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def mutate(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value in which one member or element is replaced or removed."""
    strange = [None, True, -1, 0.5, 1e308, 10**40, "", "\u202e\x1b[31m", [], {}, [1] * 100, {"offset": 0}, [[[]]], "x" * 10_000]
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        copy = value.copy()
        key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
        if rng.random() < 0.1:
            del copy[key]
        else:
            copy[key] = mutate(copy[key], rng)
        return copy
    return rng.choice(strange)


def find_tracks(value: Any) -> list[Any]:
    """Returns the values that have the member of a track, and those at the places of tracks."""
    if isinstance(value, dict):
        return [value] * ("offset" in value) + [track for part in value.values() for track in find_tracks(part)]
    return [track for part in value for track in find_tracks(part)] if isinstance(value, list) else []


def test_mutated_replays_are_read_or_refused() -> None:
    """Whatever is read makes a page that is read as the same replay, and each of its tracks is an array or is refused."""
    rng, tracks = random.Random(0), TrackWriter()
    scene = {
        **make_header()["scenes"][0],
        "rewards": tracks.add(np.ones((2, 3), np.float32)),
        "layout": tracks.add(np.zeros(3, int)),
    }
    scene["state"] = {"x": tracks.add_exactly(np.float32([[1.0], [2.5], [np.nan]]))}
    num_read = 0
    for _ in range(400):
        header = mutate(make_header(scenes=[scene, scene]), rng)
        data = bytearray(tracks.data)
        for _ in range(rng.choice([0, 0, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read = parse_replay(make_page(header, bytes(data)), "page")
            assert parse_replay(to_page(read).encode(), "again") == read
            num_read += 1
        except ReplayError:
            continue
        for track in find_tracks(read.header):
            with suppress(ReplayError):
                read.array(track)
    assert num_read > 80
