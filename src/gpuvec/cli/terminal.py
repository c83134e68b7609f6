"""What the commands print, without characters that control a terminal: anybody may have written the files that they read."""

from __future__ import annotations

import sys


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
