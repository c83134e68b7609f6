"""The command `gpuvec doctor`."""

from __future__ import annotations


def doctor() -> int:
    """Report what works on this machine, what does not and why, and what to do about it."""
    from gpuvec.doctor import main

    return main()
