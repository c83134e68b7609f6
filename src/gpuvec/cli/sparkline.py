"""Curves of one line of text, of bounded memory."""

from __future__ import annotations

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
MAX_POINTS = 64


class Curve:
    """The course of a number: at most `MAX_POINTS` means of equally many consecutive values each."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._values_per_mean = 1
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Appends a value.

        Args:
            value: a finite number.
        """
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._values_per_mean:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) == MAX_POINTS:
            self._means = [(a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)]
            self._values_per_mean *= 2

    def text(self, width: int, ascii_only: bool = False) -> str:
        """Draws the curve between its lowest and its highest point.

        Args:
            width: the largest number of characters; neighbouring points are averaged.
            ascii_only: whether only characters of ASCII are used.

        Returns:
            The text, "" without a value.
        """
        per_character = max(1, -(-len(self._means) // width))
        groups = [self._means[k : k + per_character] for k in range(0, len(self._means), per_character)]
        points = [sum(group) / len(group) for group in groups]
        if not points:
            return ""
        bars, minimum, span = ASCII_BARS if ascii_only else BARS, min(points), max(points) - min(points)
        levels = (int((point - minimum) / span * len(bars)) if span else 0 for point in points)
        return "".join(bars[min(level, len(bars) - 1)] for level in levels)
