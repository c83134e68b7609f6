"""Pictures of environments that declare which fields of their state are positions, headings and roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.canvas import Canvas

RADIUS_SHARE = 1.0 / 60.0  # of the longer side of the picture


@dataclass(frozen=True, kw_only=True)
class AgentFields:
    """A function `draw` for an environment whose picture is its agents: it names the fields of the state that they have.

    ``draw=AgentFields(x="x", y="y", heading="heading", box=(0, 0, "side", "side"))`` in the declaration of an environment draws
    agents of one role on a square, with the parameter `side` as its width and height.
    """

    x: str
    """The name of the field with positions, (A,), or a scalar of one agent."""
    y: str
    """The name of the field with the other coordinates."""
    box: tuple[float | str, float | str, float | str, float | str]
    """Left, lower, right and upper end of the picture in units of the positions: numbers, or names of parameters."""
    heading: str | None = None
    """The name of the field with headings [rad], counter-clockwise from the direction of x; None without headings."""
    role: str | None = None
    """The name of the field with the numbers of roles; None if all agents have one role."""
    active: str | None = None
    """The name of the field that is True for active agents; None if all are active."""
    names: Sequence[str] = ("agent",)
    """The names of the roles in the order of their numbers."""
    radius: float | None = None
    """The radius of symbols in units of the positions; None for 1/60 of the longer side."""
    size: int = 480
    """The longer side of the picture [pixels]."""

    def __call__(self, s: Any, p: Any) -> Canvas:
        """Returns the picture of a state.

        Args:
            s: the state.
            p: the parameters.

        Raises:
            ValueError: a name that is no field or parameter, or a box without an area.
        """
        left, bottom, right, top = (float(_read(p, end, "parameter")) if isinstance(end, str) else end for end in self.box)
        width, height = right - left, top - bottom
        if not (width > 0.0 and height > 0.0):
            raise ValueError(f"the box of AgentFields must have an area, got {(left, bottom, right, top)}.")
        scale = self.size / max(width, height)
        canvas = Canvas(round(scale * width), round(scale * height), scale, (-left * scale, -bottom * scale))
        canvas.agents(
            self._field(s, self.x),
            self._field(s, self.y),
            RADIUS_SHARE * max(width, height) if self.radius is None else self.radius,
            role=None if self.role is None else self._field(s, self.role),
            names=self.names,
            heading=None if self.heading is None else self._field(s, self.heading),
            active=None if self.active is None else self._field(s, self.active),
        )
        return canvas

    def _field(self, s: Any, name: str) -> NDArray[Any]:
        return np.atleast_1d(np.asarray(_read(s, name, "field of the state")))


def _read(values: Any, name: str, kind: str) -> Any:
    """Returns a member of a NamedTuple.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in values._fields:
        raise ValueError(f"AgentFields names {name!r}, which is no {kind}; there are {', '.join(values._fields)}.")
    return getattr(values, name)
