"""Tests of which variants of a test run, and which of them are marked slow, so that `run.py test` leaves them out."""

import itertools
from types import SimpleNamespace

import pytest
from tests.conftest import pytest_collection_modifyitems


class Item:
    """A test item with the attributes that the selection reads."""

    def __init__(self, nodeid, markers=(), **params):
        self.nodeid, self.markers, self.names = nodeid, [mark.mark for mark in markers], []
        if params:
            self.callspec = SimpleNamespace(params=params)

    def iter_markers(self, name):
        return [mark for mark in self.markers if mark.name == name]

    def get_closest_marker(self, name):
        return next(iter(self.iter_markers(name)), None)

    def add_marker(self, name):
        self.names.append(name)


class Config:
    """Counts the tests that are reported as deselected."""

    def __init__(self):
        self.deselected = 0
        self.hook = SimpleNamespace(pytest_deselected=self.deselect)

    def deselect(self, items):
        self.deselected += len(items)


def slow_flags(*items):
    pytest_collection_modifyitems(Config(), list(items))
    return ["slow" in item.names for item in items]


def test_slow_on_marks_a_test_on_the_named_backends():
    mark = pytest.mark.slow_on("simulator")
    items = [Item(f"f::test[{backend}]", [mark], backend=backend) for backend in ("cpu", "simulator", "cuda")]
    assert slow_flags(*items, Item("f::other")) == [False, True, False, False]


def test_first_variants_counts_for_each_test_and_backend():
    mark = pytest.mark.first_variants(2)
    items = [Item(f"f::{test}[{b}-{n}]", [mark], device=b, n=n) for test in "ab" for b in ("cpu", "cuda") for n in range(3)]
    assert slow_flags(*items) == [False, False, True] * 4


def test_a_test_without_markers_is_quick():
    assert slow_flags(*(Item(f"f::test[{n}]", n=n) for n in range(3))) == [False] * 3


def product(*markers):
    """The variants of a test with a backend and parameters of three, two and four values."""
    values = list(itertools.product(range(3), range(2), range(4)))
    return [
        Item(f"f::test[{backend}-{a}-{b}-{c}]", markers, backend=backend, a=a, b=b, c=c)
        for backend in ("cpu", "cuda")
        for a, b, c in values
    ]


@pytest.mark.parametrize("strength", [1, 2])
def test_covering_variants_have_each_combination_on_each_backend(strength):
    config, items = Config(), product(pytest.mark.covering(strength))
    remaining = list(items)
    pytest_collection_modifyitems(config, remaining)
    assert config.deselected == len(items) - len(remaining) > 0

    def combinations(of):
        return {pair for item in of for pair in itertools.combinations(item.callspec.params.items(), strength)}

    assert combinations(remaining) == combinations(items)


def test_first_variants_counts_covering_variants():
    remaining = product(pytest.mark.covering(1), pytest.mark.first_variants(1))
    pytest_collection_modifyitems(Config(), remaining)
    for backend in ("cpu", "cuda"):
        of_backend = [item for item in remaining if item.callspec.params["backend"] == backend]
        assert len(of_backend) == 4
        assert ["slow" in item.names for item in of_backend] == [False, True, True, True]
