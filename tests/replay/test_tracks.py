"""Arrays of a replay: what is decoded equals what was encoded, up to half a quantisation step."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuvec.errors import ReplayError
from gpuvec.replay.tracks import MAX_CODE, decode, encode, encode_exactly, parse_track

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7)


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e6, 1e6, width=32)), st.sampled_from([0.0, 0.125, 100.0]))
def test_floats_are_within_half_a_step(values, step) -> None:
    track, data = encode(values, step)
    decoded = decode(track, data)
    assert (decoded.shape, decoded.dtype) == (values.shape, np.float32)
    assert len(data) == track.size
    if values.size:
        assert step in (0.0, track.step) or track.step == pytest.approx(np.ptp(values.astype(np.float64)) / MAX_CODE)
        assert np.abs(decoded.astype(np.float64) - values).max() <= 0.5 * track.step + 1e-6 * np.abs(values).max()


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.int32, SHAPES, elements=st.integers(-30_000, 30_000)))
def test_integers_are_exact(values) -> None:
    np.testing.assert_array_equal(decode(*encode(values)), values)


def test_bools_are_exact() -> None:
    values = np.random.default_rng(0).random((9, 5)) < 0.5
    decoded = decode(*encode(values))
    assert decoded.dtype == np.bool_
    np.testing.assert_array_equal(decoded, values)


def test_numbers_that_are_not_finite_become_nan() -> None:
    values = np.array([[1.0, np.nan], [np.inf, 3.0], [2.0, -np.inf]], np.float32)
    decoded = decode(*encode(values))
    np.testing.assert_array_equal(np.isnan(decoded), ~np.isfinite(values))
    np.testing.assert_allclose(decoded[np.isfinite(values)], [1.0, 3.0, 2.0], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e6, 1e6, width=32) | st.just(np.nan)))
def test_few_different_floats_are_exact(values) -> None:
    track, data = encode_exactly(values)
    assert len(track.table) <= 256
    np.testing.assert_array_equal(decode(track, data), values)


def test_more_different_floats_have_no_table() -> None:
    assert encode_exactly(np.arange(256, dtype=np.float32)) is not None
    assert encode_exactly(np.arange(257, dtype=np.float32)) is None


def test_codes_beyond_a_table_are_refused() -> None:
    track, data = encode_exactly(np.arange(5, dtype=np.float32))
    with pytest.raises(ReplayError, match="codes beyond the 4 values of its table"):
        decode(track._replace(table=track.table[:4]), data)


def test_steady_motion_takes_few_bytes() -> None:
    """Positions of constant velocity have differences of 0 in the second order, up to rounding."""
    position = np.arange(1000.0)[:, None] * np.linspace(-1.0, 1.0, 50)
    track, data = encode(position.astype(np.float32), 1.0 / 8.0)
    assert track.order > 0
    assert len(zlib.compress(data)) < position.size / 4


def test_integers_of_a_large_range_are_refused() -> None:
    with pytest.raises(ReplayError, match=r"within a range of 65,535, got 0 to 70000"):
        encode(np.array([0, 70_000]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 3}, "invalid description"),
        ({"planes": 0}, "invalid description"),
        ({"kind": "complex"}, "invalid description"),
        ({"step": float("inf")}, "invalid description"),
        ({"shape": [-1, 2]}, "invalid description"),
        ({"shape": []}, "invalid description"),
        ({"low": None}, "invalid description"),
        ({"table": ["a"]}, "invalid description"),
        ({"table": [float("nan")]}, "invalid description"),
    ],
)
def test_invalid_descriptions_are_refused(change, message) -> None:
    track, _ = encode(np.zeros((2, 3), np.float32))
    assert parse_track(track._asdict()) == track
    with pytest.raises(ReplayError, match=message):
        parse_track(track._asdict() | change)


def test_missing_bytes_are_refused() -> None:
    track, data = encode(np.zeros((2, 3), np.float32))
    with pytest.raises(ReplayError, match="takes 6 bytes, and 5 are there"):
        decode(track, data[:-1])
