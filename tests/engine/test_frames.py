"""Deep calls have their frames in one piece."""

from __future__ import annotations

import resource
import sys
from types import FunctionType

import pytest

from gpuvec.engine.compiler.frames import with_large_frame

CALLS = 300


def nothing() -> None:
    pass


def calls(count: int = CALLS) -> int:
    """How often so many short calls met a page of memory that the operating system had to give first."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def wherever_frames_end() -> list[int]:
    """The same below frames of many sizes, of which some reach to where a piece of 16 KB ends."""
    sizes = range(8, 2200, 4)
    return [FunctionType(calls.__code__.replace(co_stacksize=size), globals(), None, (CALLS,))() for size in sizes]


def test_no_call_is_slow() -> None:
    """Without it, the calls below two of these frames get a new piece each, on CPython 3.11 to 3.13."""
    assert max(with_large_frame(wherever_frames_end)()) < CALLS / 2


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="was measured with CPython 3.11 to 3.13")
def test_calls_are_slow_without_it() -> None:
    assert max(wherever_frames_end()) >= CALLS


def test_results_errors_and_names_come_through() -> None:
    @with_large_frame
    def divide(a: float, *, by: float) -> float:
        """Divides."""
        return a / by

    assert divide(1.0, by=4.0) == 0.25
    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")
    with pytest.raises(ZeroDivisionError):
        divide(1.0, by=0.0)
