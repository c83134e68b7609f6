"""Deep calls have their frames in one piece."""

from __future__ import annotations

import time
from statistics import median
from types import FunctionType

import pytest

from gpuvec.engine.frames import roomy


def nothing() -> None:
    pass


def calls(count: int = 300) -> float:
    """Seconds of so many short calls."""
    start = time.perf_counter()
    for _ in range(count):
        nothing()
    return time.perf_counter() - start


def wherever_frames_end() -> list[float]:
    """The same below frames of many sizes, of which some reach to where a piece of 16 KB ends; the best of five, as other
    processes interrupt.
    """
    sizes = range(8, 2200, 4)
    found = (FunctionType(calls.__code__.replace(co_stacksize=size), globals(), None, (300,)) for size in sizes)
    return [min(sized() for _ in range(5)) for sized in found]


def test_no_call_is_slow() -> None:
    """Without it, two of these take 250 times as long as the others, on CPython 3.11 to 3.13."""
    found = roomy(wherever_frames_end)()
    assert max(found) < 8 * median(found)


def test_results_errors_and_names_come_through() -> None:
    @roomy
    def divide(a: float, *, by: float) -> float:
        """Divides."""
        return a / by

    assert divide(1.0, by=4.0) == 0.25
    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")
    with pytest.raises(ZeroDivisionError):
        divide(1.0, by=0.0)
