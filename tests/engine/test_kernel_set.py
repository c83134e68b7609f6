"""What all kernel sets share: the log of compilations."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gpuvec.engine.backends import kernel_set


class KernelState(NamedTuple):
    """The state of an environment, whose functions may be one or several."""

    x: float


def load(kind: str, wait: Any) -> None:
    """Loads kernels of no environment, whose compilation ends when `wait` returns."""
    env = SimpleNamespace(state=KernelState)
    spec: Any = SimpleNamespace(env=env, batch=SimpleNamespace(_fields=()), with_options=lambda options: spec)
    kernels = kernel_set.KernelSet(spec, 1, 1)
    kernels.load = lambda *_: wait()  # type: ignore[method-assign]  # what subclasses define
    kernels._load(kind, None)  # type: ignore[arg-type]  # the options of no environment


@pytest.mark.parametrize(
    ("kind", "left"), [("reset", "the kernels of a step are left"), ("step", "nothing is left"), ("rollout", "nothing is left")]
)
def test_a_long_compilation_is_logged(kind, left, monkeypatch, caplog) -> None:
    has_logged, messages = threading.Event(), list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            has_logged.set()

    handler = Handler()
    monkeypatch.setattr(kernel_set, "SECONDS_BEFORE_LOG", 0.0)
    kernel_set.logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger=kernel_set.logger.name):
            load(kind, lambda: has_logged.wait(60))
    finally:
        kernel_set.logger.removeHandler(handler)
    assert messages == [f"Compiling the kernels of a {kind} of {KernelState.__module__}; {left}."]


def test_a_short_compilation_is_not_logged(caplog, monkeypatch) -> None:
    monkeypatch.setattr(kernel_set, "SECONDS_BEFORE_LOG", 600.0)
    threads = threading.active_count()
    with caplog.at_level(logging.INFO):
        load("step", lambda: None)
    assert not caplog.records
    assert threading.active_count() == threads


def test_nothing_is_logged_after_a_compilation_that_fails(monkeypatch) -> None:
    monkeypatch.setattr(kernel_set, "SECONDS_BEFORE_LOG", 600.0)
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        load("step", lambda: 1 / 0)
    assert threading.active_count() == threads
