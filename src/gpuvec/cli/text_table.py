"""Prints tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from gpuvec.cli.terminal import print_lines, printable


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints a table in aligned columns.

    Args:
        rows: the cells of each row, as many in each; the first row contains the headings.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print_lines(*("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows))
