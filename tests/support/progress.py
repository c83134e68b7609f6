"""One line that says how far a test run is, for `run.py test`, whose two halves share a file."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

SECONDS_BETWEEN_LINES = 60  # without a terminal
ASSUMED_CPU_SECONDS, ASSUMED_SECONDS = (
    100,
    50,
)  # count as if they had run before, so that the first tests say little of the rate


class Progress:
    """A pytest plugin that prints one changing line in place of a letter for each test.

    Args:
        file: the state that `run.py` has written: the time of the start, and for each half its number of tests and their CPU
            seconds, as expected. This half replaces what it collects, and adds what has run.
        suite: the name of this half.
        costs: {test: CPU seconds} of tests that take more than a moment.
    """

    def __init__(self, file: Path, suite: str, costs: dict[str, float]) -> None:
        self.file, self.costs = file, costs
        self.state: dict[str, Any] = json.loads(file.read_text())
        self.suite = self.state["suites"][suite]
        self.start = time.time()
        self.last_line = self.last_write = 0.0
        self.moment = 0.0  # CPU seconds of a test that is not in `costs`
        self.reporter: Any = None

    def count(self, tests: list[str]) -> None:
        """Replaces the expected number of tests by those that were collected."""
        listed = [self.costs[test] for test in tests if test in self.costs]
        self.suite["tests"] = len(tests)
        self.moment = max(0.0, self.suite["seconds"] - sum(listed)) / max(1, len(tests) - len(listed))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Finds the object that writes to the terminal."""
        self.reporter = session.config.pluginmanager.getplugin("terminalreporter")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the tests of a run in one process."""
        if session.items:
            self.count([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Counts the tests of a run of several processes, which collect the same."""
        self.count(list(ids))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """Replaces the letter of a test by nothing. How a test is counted at the end is unchanged."""
        if report.when not in ("setup", "call", "teardown"):
            return None
        if report.when != "call" and report.passed:
            return "", "", ""
        outcome = "error" if report.when != "call" and report.failed else report.outcome
        return outcome, "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test when it has ended, and prints a failure at once."""
        outcomes = self.suite["outcomes"]
        if report.failed:
            self.suite["failed"].append(report.nodeid)
            outcomes["failed"] = outcomes.get("failed", 0) + 1
            self.reporter.rewrite(f"FAILED    {report.nodeid}", erase=True)
            self.reporter.write("\n", flush=True)
        elif report.when == "call" or report.skipped:
            outcomes[report.outcome] = outcomes.get(report.outcome, 0) + 1
        if report.when == "teardown":
            self.suite["done"] += 1
            self.suite["done_seconds"] += self.costs.get(report.nodeid, self.moment)
            self.show(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Writes the state for the half that follows."""
        self.file.write_text(json.dumps(self.state))

    def line(self, test: str) -> str:
        """What has run of both halves, how much time is left, and the test that ended last."""
        suites = self.state["suites"].values()
        done, tests = (sum(suite[name] for suite in suites) for name in ("done", "tests"))
        done_seconds, seconds = (sum(suite[name] for suite in suites) for name in ("done_seconds", "seconds"))
        elapsed = time.time() - self.state["start"]
        failed = sum(len(suite["failed"]) for suite in suites)
        rate = (done_seconds + ASSUMED_CPU_SECONDS) / (elapsed + ASSUMED_SECONDS)
        left = f"{max(0.0, seconds - done_seconds) / rate / 60:.0f} min"
        return (
            f"{done:,} of {tests:,} tests, {failed} failed, {elapsed / 60:.0f} min, about {left} left  {test.partition('[')[0]}"
        )

    def show(self, test: str) -> None:
        """Prints the line and writes the state, at most twice in a second, and without a terminal once in a minute."""
        now = time.time()
        if now - self.last_write < 0.5:
            return
        self.last_write = now
        self.file.write_text(json.dumps(self.state))
        if self.reporter.isatty:
            self.reporter.rewrite(self.line(test)[: shutil.get_terminal_size().columns - 1], erase=True)
        elif now - max(self.start, self.last_line) >= SECONDS_BETWEEN_LINES:
            self.last_line = now
            self.reporter.write_line(self.line(test))
