"""`gpuvec doctor`."""

from __future__ import annotations


def doctor() -> int:
    """What works on this machine and what does not, why, and what to do about it."""
    from gpuvec.doctor import main

    return main()
