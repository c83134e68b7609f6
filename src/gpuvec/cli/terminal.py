"""What the commands print, lines and tables, without characters that control a terminal.

Anybody may have written the files that the commands read.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

GAP = 2  # spaces between two columns
UNLIMITED = 100_000  # columns, where the output is not a terminal


def printable(text: str) -> str:
    """Replaces control characters, marks that change the direction of text, and line breaks by question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def print_lines(*lines: object, is_error: bool = False) -> None:
    """Prints lines, each of them `printable`, at once. All commands print through this function.

    Args:
        lines: what is printed. A line break in one of them does not begin another line.
        is_error: whether they are printed to standard error.
    """
    file = sys.stderr if is_error else sys.stdout
    for line in lines:
        print(printable(str(line)), file=file)
    file.flush()


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints a table in aligned columns.

    Args:
        rows: the cells of each row, as many in each; the first row contains the headings.
    """
    print_lines(*fitted_table(rows, UNLIMITED))


def terminal_width() -> int:
    """Returns the number of columns of the terminal, or of the variable COLUMNS; without both a number beyond any line."""
    return shutil.get_terminal_size((UNLIMITED, 0)).columns


def fitted_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns the lines of a table that fits into a terminal, with no word cut.

    Cells are wrapped between words. Where even the longest words of all columns do not fit side by side, each row is a
    paragraph: its first cell, and below it each other cell with its heading. A word that is longer than a line stays whole.

    Args:
        rows: the cells of each row, as many in each; the first row contains the headings.
        width: of the terminal, in columns.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = list(zip(*rows, strict=True))
    widths = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    free = width - sum(widths) - GAP * (len(widths) - 1)
    if free < 0:
        return _paragraphs(rows, width)
    for k, column in enumerate(columns):
        added = min(free, max(map(len, column)) - widths[k])
        widths[k], free = widths[k] + added, free - added
    lines = []
    for row in rows:
        cells = [_wrap(cell, columns) for cell, columns in zip(row, widths, strict=True)]
        parts = zip_longest(*cells, fillvalue="")
        lines += [(" " * GAP).join(map(str.ljust, line, widths)).rstrip() for line in parts]
    return lines


def _paragraphs(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of a table in a terminal that is too narrow for columns."""
    headings, lines = rows[0], []
    for first, *cells in rows[1:]:
        lines.append(first)
        for heading, cell in zip(headings[1:], cells, strict=True):
            lines += _wrap(f"{heading} {cell}", width, " " * GAP)
    return lines


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=2 * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
