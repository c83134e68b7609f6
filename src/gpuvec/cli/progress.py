"""How training is going: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

COLUMNS = ("return", "length", "entropy", "approx_kl", "clip_fraction", "explained_variance", "value_loss", "grad_norm")
SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """`with Progress(title, iterations) as progress: progress.show(metrics)`."""

    def __init__(self, title: str, iterations: int) -> None:
        self._title, self._iterations, self._shown_at = title, iterations, -math.inf
        self._seen: dict[str, float] = {}
        self._live: Any = None

    def __enter__(self) -> Progress:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=4, get_renderable=self._table)
            self._live.start()
        else:
            print(self._title, flush=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, metrics: dict[str, float]) -> None:
        """Takes note of an iteration; a number that an iteration lacks, such as the return of no episodes, stays as it was."""
        self._seen |= {name: value for name, value in metrics.items() if math.isfinite(value)}
        now = time.perf_counter()
        last = metrics["iteration"] >= self._iterations
        if self._live is None and (last or now - self._shown_at >= SECONDS_BETWEEN_LINES):
            self._shown_at = now
            print(self._line(), flush=True)

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
