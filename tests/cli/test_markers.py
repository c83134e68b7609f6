"""Which tests `run.py test` leaves out: those marked slow, on their own or by a variant."""

from types import SimpleNamespace

import pytest
from tests.conftest import pytest_collection_modifyitems


class Item:
    """What the choice looks at of a test."""

    def __init__(self, nodeid, markers=(), **params):
        self.nodeid, self.markers, self.names = nodeid, [mark.mark for mark in markers], []
        if params:
            self.callspec = SimpleNamespace(params=params)

    def iter_markers(self, name):
        return [mark for mark in self.markers if mark.name == name]

    def add_marker(self, name):
        self.names.append(name)


def slow(*items):
    pytest_collection_modifyitems(list(items))
    return ["slow" in item.names for item in items]


def test_a_test_is_slow_on_the_backends_that_are_named():
    mark = pytest.mark.slow_on("simulator")
    items = [Item(f"f::test[{backend}]", [mark], backend=backend) for backend in ("cpu", "simulator", "cuda")]
    assert slow(*items, Item("f::other")) == [False, True, False, False]


def test_variants_are_counted_for_each_test_and_backend():
    mark = pytest.mark.first_variants(2)
    items = [Item(f"f::{test}[{b}-{n}]", [mark], device=b, n=n) for test in "ab" for b in ("cpu", "cuda") for n in range(3)]
    assert slow(*items) == [False, False, True] * 4


def test_a_test_without_either_is_quick():
    assert slow(*(Item(f"f::test[{n}]", n=n) for n in range(3))) == [False] * 3
