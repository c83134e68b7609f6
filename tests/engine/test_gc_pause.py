"""`gc_paused` saves collections during and after its block, and leaves no memory behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from gpuvec.engine.compiler import gc_pause
from gpuvec.engine.compiler.gc_pause import gc_paused


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of the collections since the test began."""
    generations: list[int] = []

    def record(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.collect()
    gc.callbacks.append(record)
    yield generations
    gc.callbacks.remove(record)


def make_objects(count: int = 100_000) -> list[list[int]]:
    return [[k] for k in range(count)]


def test_no_collection_visits_the_objects_of_the_block(collections: list[int]) -> None:
    with gc_paused():
        objects = make_objects()
    more_objects = make_objects(100)
    assert collections == []
    assert not any(young is objects[0] for young in gc.get_objects(generation=0))
    assert gc.isenabled()
    assert more_objects
    make_objects()
    assert collections, "the collector runs again after the block"


def test_garbage_of_blocks_is_collected_once_it_has_many_objects(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_pause, "MAX_OBJECTS", 100_000)
    counts = []
    for _ in range(7):
        with gc_paused():
            make_objects(40_000)
            cycle: list[object] = []
            cycle.append((cycle, make_objects(40_000)))
            del cycle
        counts.append(collections.count(2))
    assert counts == [0, 0, 1, 1, 1, 2, 2]


def test_blocks_that_leave_no_objects_cause_no_full_collection(collections: list[int]) -> None:
    for _ in range(100):
        with gc_paused():
            make_objects(gc_pause.MAX_OBJECTS // 10)
    assert collections.count(2) == 0


def test_a_disabled_collector_and_frozen_objects_stay_as_they_are() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with gc_paused():
            pass
        assert gc.get_freeze_count() >= count - 100  # objects that end meanwhile leave
    finally:
        gc.unfreeze()
