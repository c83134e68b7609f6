"""Arrays over time as few bytes: quantised, predicted from the frames before, and split into bytes of equal significance.

A value is `low + step * code`, where codes are integers of 16 bits. The largest code stands for a number that is not finite. A
track stores residuals of a prediction of the codes: the codes themselves (order 0), their differences from the last frame
(order 1), or the differences of these (order 2), which are small for agents that move steadily. Residuals are stored in the
order of elements, so that those of one element in successive frames are neighbours; signs are in the lowest bit. First all low
bytes are stored and then, unless all are 0, the high bytes. What follows compresses well by DEFLATE, which browsers have.

Letters: T frames, N elements of a frame.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import ReplayError

MAX_CODE = 0xFFFE
NOT_FINITE = 0xFFFF
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
    """

    shape: tuple[int, ...]
    kind: str
    low: float
    step: float
    order: int
    planes: int

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
    elements = codes.reshape(len(codes), math.prod(codes.shape[1:])).T  # (N, T)
    candidates = [_to_bytes(_residuals(elements, order)) for order in ORDERS[: max(1, min(len(ORDERS), len(codes)))]]
    order = min(range(len(candidates)), key=lambda k: len(zlib.compress(candidates[k][0], 1)))
    data, planes = candidates[order]
    return Track(values.shape, kind, low, step, order, planes), data


def decode(track: Track, data: bytes) -> NDArray[Any]:
    """Returns the array of a `track`: float32, int32 or bool.

    Args:
        track: the description.
        data: its bytes.

    Raises:
        ReplayError: another number of bytes.
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
        floats: NDArray[np.float32] = np.where(codes == NOT_FINITE, np.nan, track.low + track.step * codes).astype(np.float32)
        return floats
    integers: NDArray[Any] = codes.astype(np.int64) + int(track.low)
    return integers.astype(np.bool_ if track.kind == "bool" else np.int32)


def parse_track(description: Mapping[str, Any]) -> Track:
    """Returns the track of a `description` from a file.

    Raises:
        ReplayError: members are missing, or have values that no track has.
    """
    try:
        shape = tuple(int(n) for n in description["shape"])
        track = Track(
            shape, str(description["kind"]), float(description["low"]), float(description["step"]),
            int(description["order"]), int(description["planes"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ReplayError(f"a track of the replay has no valid description ({error!r}): the file is damaged.") from error
    is_valid = (
        track.kind in ("float", "int", "bool")
        and len(shape) >= 1
        and min(shape) >= 0
        and math.isfinite(track.low)
        and math.isfinite(track.step)
        and track.order in ORDERS
        and track.planes in (1, 2)
    )
    if not is_valid:
        raise ReplayError(f"a track of the replay has an invalid description, {track}: the file is damaged.")
    return track


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
