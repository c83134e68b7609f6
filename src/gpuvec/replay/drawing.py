"""The drawings of an episode, one `Canvas` a frame, as the layouts and tracks of a scene, and back.

Frames whose marks are of equal kinds have the same layout, so that their coordinates are arrays over time.

Letters: T frames, n frames with a layout, A agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.canvas import Canvas
from gpuvec.drawing.marks import Agents, Circle, Colour, Grid, Mark, Polygon, Polyline, Text
from gpuvec.errors import ReplayError
from gpuvec.replay.document import TrackWriter

PIXEL_STEP = 1.0 / 8.0  # pixels, of coordinates
AGENT_STEP = 1.0 / 3.0  # pixels, of the positions of agents
HEADING_STEP = 2.0 * np.pi / 128.0


def encode_drawing(canvases: Sequence[Canvas], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the members of a scene that describe its drawing.

    Args:
        canvases: of the T frames.
        tracks: to which the arrays are added.

    Raises:
        ReplayError: pictures of different sizes, or an environment that declares several groups of agents.
    """
    sizes = {(canvas.width, canvas.height) for canvas in canvases}
    if len(sizes) != 1:
        raise ReplayError(f"the pictures of a replay must have one size, got {sorted(sizes)}.")
    palette = _Palette()
    numbers, layouts = _group(canvases)
    return {
        "width": canvases[0].width,
        "height": canvases[0].height,
        "layout": tracks.add(numbers),
        "layouts": [_encode_layout([canvas.marks for canvas in frames], palette, tracks) for frames in layouts],
        "agents": _encode_agents(canvases, tracks),
        "palette": palette.names,
    }


class _Palette:
    """The colours of a scene."""

    def __init__(self) -> None:
        self._numbers: dict[Colour, int] = {}

    def number(self, colour: Colour) -> int:
        return self._numbers.setdefault(colour, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return [colour_name(colour) for colour in self._numbers]


def colour_name(colour: Colour) -> str:
    """Returns a colour as "#rrggbb"."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _describe(mark: Mark) -> dict[str, Any]:
    """Returns what the marks of a layout have in common."""
    if isinstance(mark, Polygon):
        return {"kind": "polygon", "points": len(mark.points)}
    if isinstance(mark, Polyline):
        return {"kind": "line", "points": len(mark.points), "width": mark.width}
    if isinstance(mark, Circle):
        return {"kind": "circle"}
    if isinstance(mark, Text):
        return {"kind": "text", "points": 1, "size": mark.size, "align": mark.align}
    if isinstance(mark, Grid):
        return {"kind": "cells", "box": list(mark.box)}
    return {"kind": "agents"}


def _group(canvases: Sequence[Canvas]) -> tuple[NDArray[np.int32], list[list[Canvas]]]:
    """Returns the number of the layout of each frame, (T,), and the frames of each layout."""
    layouts: dict[tuple[Any, ...], tuple[int, list[Canvas]]] = {}
    numbers = np.empty(len(canvases), np.int32)
    for t, canvas in enumerate(canvases):
        key = tuple(_layout_key(mark) for mark in canvas.marks)
        numbers[t], frames = layouts.setdefault(key, (len(layouts), []))
        frames.append(canvas)
    return numbers, [frames for _, frames in layouts.values()]


def _layout_key(mark: Mark) -> tuple[Any, ...]:
    """Returns what marks of a layout have in common, as a hashable value."""
    return str(_describe(mark)), *((mark.values.shape, mark.palette) if isinstance(mark, Grid) else ())


def _coordinates(mark: Mark) -> list[float]:
    if isinstance(mark, Grid | Agents):
        return []
    points: list[float] = mark.points.ravel().tolist()
    return [*points, mark.radius] if isinstance(mark, Circle) else points


def _encode_layout(frames: Sequence[Sequence[Mark]], palette: _Palette, tracks: TrackWriter) -> dict[str, Any]:
    """Returns the description of a layout.

    Args:
        frames: the marks of the n frames, whose kinds are equal.
        palette: to which colours are added.
        tracks: to which the arrays are added.
    """
    marks = [_describe(mark) for mark in frames[0]]
    for k, mark in enumerate(frames[0]):
        if isinstance(mark, Grid):
            values = np.stack([frame[k].values for frame in frames])  # type: ignore[union-attr]  # kinds are equal
            marks[k] |= {"values": tracks.add(values), "palette": [palette.number(colour) for colour in mark.palette]}
        elif isinstance(mark, Text):
            numbers: dict[str, int] = {}
            texts = [numbers.setdefault(frame[k].text, len(numbers)) for frame in frames]  # type: ignore[union-attr]  # as above
            marks[k] |= {"texts": list(numbers), "text": tracks.add(_constant_once(np.array(texts, np.int32)))}
    coordinates = np.array([[x for mark in frame for x in _coordinates(mark)] for frame in frames], np.float32)
    colours = np.array(
        [[palette.number(mark.colour) for mark in frame if not isinstance(mark, Grid | Agents)] for frame in frames]
    )
    return {
        "marks": marks,
        "coordinates": tracks.add(_constant_once(coordinates), PIXEL_STEP),
        "colours": tracks.add(_constant_once(colours.astype(np.int32).reshape(len(frames), -1))),
    }


def _constant_once(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the first of (T, ...) values as (1, ...) if all are equal."""
    is_constant = len(values) > 1 and all((before == after).all() for before, after in pairwise(values))
    return values[:1] if is_constant else values


def _encode_agents(canvases: Sequence[Canvas], tracks: TrackWriter) -> dict[str, Any] | None:
    """Returns the description of the agents of a scene; None if its pictures have none."""
    marks = [[mark for mark in canvas.marks if isinstance(mark, Agents)] for canvas in canvases]
    if not any(marks):
        return None
    if any(len(frame) != 1 for frame in marks) or len({len(frame[0].role) for frame in marks}) != 1:
        raise ReplayError(
            "each picture of a replay must have one group of agents, of equal size: call canvas.agents once in draw."
        )
    frames = [frame[0] for frame in marks]
    first, has_heading = frames[0], frames[0].heading is not None
    points = np.stack([mark.points for mark in frames])
    heading = np.unwrap(np.stack([_or_zeros(mark.heading, mark.role) for mark in frames]), axis=0) if has_heading else None
    active = None if first.active is None else np.stack([_or_zeros(mark.active, mark.role) > 0 for mark in frames])
    return {
        "names": list(first.names),
        "symbols": [symbol.round(3).tolist() for symbol in first.symbols],
        "colours": [colour_name(colour) for colour in first.colours],
        "radius": first.radius,
        "radii": tracks.add(_constant_once(np.array([mark.radius for mark in frames], np.float32)), PIXEL_STEP),
        "role": tracks.add(_constant_once(np.stack([mark.role for mark in frames]))),
        "x": tracks.add(points[..., 0].astype(np.float32), AGENT_STEP),
        "y": tracks.add(points[..., 1].astype(np.float32), AGENT_STEP),
        "heading": None if heading is None else tracks.add(heading.astype(np.float32), HEADING_STEP),
        "active": None if active is None else tracks.add(active),
    }


def _or_zeros(values: NDArray[Any] | None, role: NDArray[np.int32]) -> NDArray[Any]:
    return np.zeros(len(role)) if values is None else values
