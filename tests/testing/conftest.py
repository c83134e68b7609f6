"""Fixtures for tests that write modules with environments."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def module_folder(tmp_path_factory):
    """A folder from which modules that tests write can be imported."""
    place = tmp_path_factory.mktemp("modules")
    sys.path.insert(0, str(place))
    yield place
    sys.path.remove(str(place))


@pytest.fixture
def write_module(module_folder):
    """A function that writes source with `old` replaced by `new` to a module and returns the name of the module."""

    def write(source, old="", new=""):
        assert not old or source.count(old) == 1
        name = f"backend_{next(NUMBERS)}"
        (module_folder / f"{name}.py").write_text(source.replace(old, new) if old else source)
        importlib.invalidate_caches()
        return name

    return write
