"""Arrays over time as few bytes: quantised, predicted from the frames before, and split into bytes of equal significance.

A value is `low + step * code`, where codes are integers of 16 bits, or `table[code]` for floats of few different values, which
are exact. The largest code stands for a number that is not finite. A track stores residuals of a prediction of the codes: the
codes themselves (order 0), their differences from the last frame (order 1), or the differences of these (order 2), which are
small for agents that move steadily. Residuals are stored in the order of elements, so that those of one element in successive
frames are neighbours; signs are in the lowest bit. First all low bytes are stored and then, unless all are 0, the high bytes.
DEFLATE, which browsers have, compresses this well.

Letters: T frames, N elements of a frame.
"""

from __future__ import annotations

import math
import reprlib
import sys
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import ReplayError

MAX_CODE = 0xFFFE
MAX_TABLE = 256  # values
NOT_FINITE = 0xFFFF
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 1 << 40  # of an array, whose bytes a replay must have as well
MAX_NUMBER = sys.float_info.max
ORDERS = (0, 1, 2)


class Track(NamedTuple):
    """How an array is stored.

    Attributes:
        shape: of the array, (T, ...).
        kind: "float", "int" or "bool", of its elements.
        low: the value of code 0.
        step: the difference of the values of successive codes.
        order: of the prediction, 0, 1 or 2.
        planes: bytes of a residual, 1 or 2.
        table: the values of the codes, which then need no `low` and no `step`; () without a table.
    """

    shape: tuple[int, ...]
    kind: str
    low: float
    step: float
    order: int
    planes: int
    table: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of bytes that the track takes."""
        return self.planes * math.prod(self.shape)


def encode(values: NDArray[Any], step: float = 0.0) -> tuple[Track, bytes]:
    """Returns the description of a track, and its bytes.

    Args:
        values: (T, ...) of floats, ints or bools.
        step: the largest quantisation step of floats; 0 for that of 65,535 codes between the lowest and the highest value. A
            larger range than `step` allows has a larger step.

    Raises:
        ReplayError: ints of a range of more than 65,535 values.
    """
    kind = {"f": "float", "b": "bool"}.get(values.dtype.kind, "int")
    numbers = values.astype(np.float64)
    is_finite = np.isfinite(numbers)
    finite = numbers[is_finite]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if kind != "float":
        if high - low > MAX_CODE:
            raise ReplayError(f"integers of a replay must be within a range of {MAX_CODE + 1:,}, got {low:.0f} to {high:.0f}.")
        step = 1.0
    else:
        step = max(step, (high - low) / MAX_CODE) or 1.0
    codes = np.full(values.shape, NOT_FINITE, np.uint16)
    codes[is_finite] = np.rint((finite - low) / step).astype(np.uint16)
    return _pack(codes, Track(values.shape, kind, low, step, 0, 1))


def encode_exactly(values: NDArray[Any]) -> tuple[Track, bytes] | None:
    """Returns a track of floats with a table of their values, and its bytes; None if there are more than 256 of them.

    Args:
        values: (T, ...) of float32. Those that are not finite become nan.
    """
    is_finite = np.isfinite(values)
    table, indices = np.unique(np.where(is_finite, values, 0.0), return_inverse=True)
    if len(table) > MAX_TABLE:
        return None
    codes = np.where(is_finite, indices.reshape(values.shape), NOT_FINITE).astype(np.uint16)
    # The shortest decimal numbers that are read as the same float32.
    exact = tuple(float(str(value)) for value in table.astype(np.float32))
    return _pack(codes, Track(values.shape, "float", 0.0, 1.0, 0, 1, exact))


def _pack(codes: NDArray[np.uint16], track: Track) -> tuple[Track, bytes]:
    """Returns the track with the order and the planes that take the fewest bytes, and these bytes."""
    elements = codes.reshape(len(codes), math.prod(codes.shape[1:])).T  # (N, T)
    candidates = [_to_bytes(_residuals(elements, order)) for order in ORDERS[: max(1, min(len(ORDERS), len(codes)))]]
    order = min(range(len(candidates)), key=lambda k: len(zlib.compress(candidates[k][0], 1)))
    data, planes = candidates[order]
    return track._replace(order=order, planes=planes), data


def decode(track: Track, data: bytes) -> NDArray[Any]:
    """Returns the array of a `track`: float32, int32 or bool.

    Args:
        track: the description.
        data: its bytes.

    Raises:
        ReplayError: another number of bytes, or codes that are not in the table.
    """
    if len(data) != track.size:
        raise ReplayError(f"a track of shape {track.shape} takes {track.size} bytes, and {len(data)} are there.")
    count = math.prod(track.shape)
    planes = np.frombuffer(data, np.uint8).reshape(track.planes, count).astype(np.uint16)
    zigzag = planes[0] if track.planes == 1 else planes[0] | planes[1] << np.uint16(8)
    residuals = zigzag >> np.uint16(1) ^ (np.uint16(0) - (zigzag & np.uint16(1)))
    elements = residuals.reshape(math.prod(track.shape[1:]), track.shape[0])
    for _ in range(track.order):
        elements = np.cumsum(elements, 1, dtype=np.uint16)
    codes = elements.T.reshape(track.shape)
    if track.kind == "float":
        is_finite = codes != NOT_FINITE
        if track.table and (codes[is_finite] >= len(track.table)).any():
            raise ReplayError(f"a track has codes beyond the {len(track.table)} values of its table: the file is damaged.")
        with np.errstate(over="ignore"):  # numbers beyond float32 are infinite
            values = np.array(track.table)[np.where(is_finite, codes, 0)] if track.table else track.low + track.step * codes
            floats: NDArray[np.float32] = np.where(is_finite, values, np.nan).astype(np.float32)
        return floats
    integers: NDArray[Any] = codes.astype(np.int64) + int(track.low)
    return integers.astype(np.bool_ if track.kind == "bool" else np.int32)


def parse_track(description: Mapping[str, Any]) -> Track:
    """Returns the track of a `description` from a file.

    Raises:
        ReplayError: members are missing, or have values that no track has.
    """
    values: list[Any] = [description.get(name) for name in Track._fields[:-1]] if isinstance(description, Mapping) else []
    table: Any = description.get("table", []) if values else None
    shape, kind, low, step, order, planes = values or [None] * 6
    is_valid = (
        isinstance(shape, list | tuple)
        and 1 <= len(shape) <= MAX_DIMENSIONS
        and all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in shape)
        and math.prod(max(n, 1) for n in shape) <= MAX_ELEMENTS
        and kind in ("float", "int", "bool")
        and isinstance(table, list | tuple)
        and all(type(x) in (int, float) and abs(x) <= MAX_NUMBER for x in (low, step, *table))  # False for nan
        and (kind == "float" or (low == int(low) and -(2**31) <= low < 2**31 - NOT_FINITE))
        and type(order) is type(planes) is int
        and order in ORDERS
        and planes in (1, 2)
    )
    if not is_valid:
        raise ReplayError(
            f"a track of the replay has an invalid description, {reprlib.repr(description)}: the file is damaged."
        )
    return Track(tuple(shape), kind, float(low), float(step), order, planes, tuple(map(float, table)))


def _residuals(elements: NDArray[np.uint16], order: int) -> NDArray[np.uint16]:
    """Returns the residuals of the prediction, (N, T), modulo 65,536."""
    for _ in range(order):
        elements = np.diff(elements, axis=1, prepend=np.zeros((len(elements), 1), np.uint16)).astype(np.uint16)
    return elements


def _to_bytes(residuals: NDArray[np.uint16]) -> tuple[bytes, int]:
    """Returns the low bytes and, unless all are 0, the high bytes of the residuals, and how many bytes each has."""
    signed = residuals.astype(np.int16)
    zigzag = (signed << np.int16(1) ^ signed >> np.int16(15)).view(np.uint16).ravel()
    low, high = (zigzag & np.uint16(0xFF)).astype(np.uint8), (zigzag >> np.uint16(8)).astype(np.uint8)
    return (low.tobytes() + high.tobytes(), 2) if high.any() else (low.tobytes(), 1)
