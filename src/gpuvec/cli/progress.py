"""How training is going: a live table on a terminal, plain lines elsewhere; and what a command waits for."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

COLUMNS = ("return", "length", "entropy", "approx_kl", "clip_fraction", "explained_variance", "value_loss", "grad_norm")
SECONDS_BETWEEN_LINES = 2.0
SECONDS_UNTIL_NAMED = 1.0  # what takes less is not worth a word


class Waiting:
    """Names on standard error what the command is waiting for, once that takes longer than a second.

    A terminal shows a spinner that goes when `stop` is called; elsewhere a line is printed.

    Args:
        text: what is being done, in a few words.
    """

    def __init__(self, text: str) -> None:
        self._text, self._status = text, None
        self._guard, self._stopped = threading.Lock(), False
        self._timer = threading.Timer(SECONDS_UNTIL_NAMED, self._show)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Removes the spinner; a line that was printed stays."""
        self._timer.cancel()
        with self._guard:
            self._stopped = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _show(self) -> None:
        with self._guard:
            if self._stopped:
                return
            if not sys.stderr.isatty():
                print(f"{self._text} ...", file=sys.stderr, flush=True)
                return
            from rich.console import Console
            from rich.status import Status

            status: Any = Status(self._text, console=Console(stderr=True))
            status.start()
            self._status = status


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Names `text` as what the command is waiting for within the block, if that takes longer than a second."""
    shown = Waiting(text)
    try:
        yield
    finally:
        shown.stop()


class Progress:
    """`with Progress(title, iterations) as progress: progress.show(metrics)`.

    Args:
        title: printed above.
        iterations: how many there will be.
    """

    def __init__(self, title: str, iterations: int) -> None:
        self._title, self._iterations, self._shown_at = title, iterations, -math.inf
        self._seen: dict[str, float] = {}
        self._live: Any = None
        self._waiting: Waiting | None = None

    def __enter__(self) -> Progress:
        if not sys.stdout.isatty():
            print(self._title, flush=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop_waiting()
        if self._live is not None:
            self._live.stop()

    def wait_for(self, text: str) -> None:
        """Names what is waited for from now on, until the next call or the first iteration."""
        self._stop_waiting()
        self._waiting = Waiting(text)

    def show(self, metrics: dict[str, float]) -> None:
        """Shows an iteration; a number that an iteration lacks, such as the return of no episodes, stays as it was."""
        self._stop_waiting()
        self._seen |= {name: value for name, value in metrics.items() if math.isfinite(value)}
        if sys.stdout.isatty():
            if self._live is None:
                from rich.live import Live

                self._live = Live(refresh_per_second=4, get_renderable=self._table)
                self._live.start()
            return
        now = time.perf_counter()
        last = metrics["iteration"] >= self._iterations
        if last or now - self._shown_at >= SECONDS_BETWEEN_LINES:
            self._shown_at = now
            print(self._line(), flush=True)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def _line(self) -> str:
        m = self._seen
        head = f"{m['iteration']:>5.0f}/{self._iterations}  {m['steps']:>12,.0f} steps  {m['steps_per_second']:>12,.0f}/s"
        return "  ".join([head, *(f"{name} {m[name]:.4g}" for name in COLUMNS[:5] if name in m)])

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("", "", title=self._title, show_header=False, min_width=len(self._title) + 4)
        table.columns[1].justify = "right"
        m = self._seen
        if m:
            table.add_row("iteration", f"{m['iteration']:.0f} of {self._iterations}")
            table.add_row("env steps", f"{m['steps']:,.0f}")
            table.add_row("env steps/s", f"{m['steps_per_second']:,.0f}")
            table.add_row("time", f"{m['seconds']:.1f} s")
        for name in COLUMNS:
            if name in m:
                table.add_row(name.replace("_", " "), f"{m[name]:.4g}")
        return table
