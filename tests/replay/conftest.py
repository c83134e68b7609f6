"""What the tests of pages share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.replay.browser import Page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser that the tests of a module share."""
    from tests.replay.browser import open_browser

    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Makes programs heed SIGINT, which those that a script starts in the background ignore."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)
