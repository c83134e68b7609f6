"""`with_large_frame` keeps the frames of deep Python calls in one chunk of memory."""

from __future__ import annotations

import resource
import sys
from types import FunctionType

import pytest

from gpuvec.engine.compiler.frames import with_large_frame

NUM_CALLS = 300


def do_nothing() -> None:
    pass


def count_page_faults(num_calls: int = NUM_CALLS) -> int:
    """The minor page faults during short calls."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(num_calls):
        do_nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def page_faults_by_frame_size() -> list[int]:
    """The page faults of calls below frames of many sizes, some of which end where a chunk of 16 KB ends."""
    sizes = range(8, 2200, 4)
    return [
        FunctionType(count_page_faults.__code__.replace(co_stacksize=size), globals(), None, (NUM_CALLS,))() for size in sizes
    ]


def test_no_call_allocates_a_chunk() -> None:
    """Without the large frame, calls below two of these frames allocate a chunk each, on CPython 3.11 to 3.13."""
    assert max(with_large_frame(page_faults_by_frame_size)()) < NUM_CALLS / 2


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="was measured with CPython 3.11 to 3.13")
def test_calls_allocate_chunks_without_a_large_frame() -> None:
    assert max(page_faults_by_frame_size()) >= NUM_CALLS


def test_results_errors_and_names_are_preserved() -> None:
    @with_large_frame
    def divide(a: float, *, by: float) -> float:
        """Divides."""
        return a / by

    assert divide(1.0, by=4.0) == 0.25
    assert (divide.__name__, divide.__doc__) == ("divide", "Divides.")
    with pytest.raises(ZeroDivisionError):
        divide(1.0, by=0.0)
