"""The display of a training on a terminal: progress, speed, returns, metrics, and where the time goes."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpuvec.cli.figures import Sparkline
from gpuvec.cli.terminal import printable
from gpuvec.learners.metric_names import ENV_METRICS, PROGRESS_METRICS, is_of_policy, role_and_name

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

ITERATIONS_OF_RATE = 50  # the number of last iterations from whose rate the remaining time is computed
SPARKLINE_WIDTH = 32
BAR_WIDTH = 40


class Dashboard:
    """The state of a training and its picture, which rich draws.

    Args:
        title: the title of the frame.
        num_iterations: the number of iterations of the whole training.
        may_end_early: whether the training may end before, at a target return.
    """

    def __init__(self, title: str, num_iterations: int, may_end_early: bool = False) -> None:
        self._title, self._num_iterations, self._may_end_early = title, num_iterations, may_end_early
        self._metrics: dict[str, float] = {}
        self._returns: dict[str, Sparkline] = {}
        self._times: deque[tuple[float, float]] = deque(maxlen=ITERATIONS_OF_RATE)
        self._stage_seconds: Mapping[str, float] = {}
        self._stages_in_one_graph = False
        self._lock = threading.Lock()  # rich draws in a thread of its own

    def update(
        self, metrics: Mapping[str, float], stage_seconds: Mapping[str, float], stages_in_one_graph: bool = False
    ) -> None:
        """Takes the metrics of an iteration.

        Args:
            metrics: {name: value}. Where a value is not finite, the previous one stays.
            stage_seconds: {stage: seconds}, of which the shares are shown; empty if they are not known.
            stages_in_one_graph: whether the stages run in one CUDA graph, so that their times are those before the training.
        """
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        with self._lock:
            self._stage_seconds, self._stages_in_one_graph = stage_seconds, stages_in_one_graph
            self._metrics |= finite
            self._times.append((metrics["iteration"], metrics["seconds"]))
            for name, value in finite.items():
                if is_of_policy(name, "return"):
                    self._returns.setdefault(role_and_name(name)[0], Sparkline()).add(value)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draws the frame: progress, facts about the training as a whole, and metrics; rich calls it."""
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            m = self._metrics
            iteration = m.get("iteration", 0.0)
            bar, facts = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 2))
            progress = ProgressBar(total=self._num_iterations, completed=iteration, width=BAR_WIDTH)
            bar.add_row(progress, Text(f"{iteration / self._num_iterations:.0%}"))
            rows = [("iteration", f"{iteration:.0f} of {self._num_iterations}")]
            if m:
                rows.append(("env steps", f"{m['steps']:,.0f}"))
                rows.append(("env steps/s", f"{m['steps_per_second']:,.0f}"))
                rows.append(("time", f"{clock(m['seconds'])} elapsed, {self._remaining()}"))
            if m.get("gpu_memory"):
                rows.append(("GPU memory", f"{m['gpu_memory'] / 2**30:.2f} GiB"))
            if self._stage_seconds:
                total = sum(self._stage_seconds.values()) or 1.0
                shares = "  ".join(f"{name} {seconds / total:.0%}" for name, seconds in self._stage_seconds.items())
                rows.append(("stages", shares + ("  (one graph: measured once)" if self._stages_in_one_graph else "")))
            for role, curve in self._returns.items():
                value = m[f"{role}/return" if role else "return"]
                text = f"{value:<9.4g} {curve.text(SPARKLINE_WIDTH, options.ascii_only)}"
                rows.append((f"{role} return" if role else "return", text))
            for name, text in rows:
                facts.add_row(Text(printable(name), style="bold"), Text(printable(text)))
            # The metrics of the policies, a column for each role, and a table of those of the environment.
            parts, columns = [bar, facts], dict[str, dict[str, float]]()
            for name, value in m.items():
                role, metric_name = role_and_name(name)
                if name not in PROGRESS_METRICS and not is_of_policy(name, "return"):
                    columns.setdefault(role, {})[metric_name] = value
            of_env = {ENV_METRICS: columns.pop(ENV_METRICS)} if ENV_METRICS in columns else {}
            for heading, group in (("policy", columns), ("environment", of_env)):
                table = Table(box=None, pad_edge=False)
                table.add_column(heading)
                for role in group:
                    table.add_column(Text(printable(role)) if heading == "policy" else "", justify="right")
                for metric_name in dict.fromkeys(name for column in group.values() for name in column):
                    cells = (f"{column[metric_name]:.4g}" if metric_name in column else "" for column in group.values())
                    table.add_row(Text(printable(metric_name.replace("_", " "))), *cells)
                if group:
                    parts.append(table)
        yield Panel(Group(*parts), title=Text(printable(self._title)), title_align="left", box=box.ROUNDED, expand=False)

    def _remaining(self) -> str:
        """The text about the remaining time, at the rate of the last iterations."""
        (first, begin), (last, end) = self._times[0], self._times[-1]
        left = self._num_iterations - last
        if left <= 0:
            return "complete"
        if last == first or end <= begin:
            seconds = left * self._metrics["steps"] / last / self._metrics["steps_per_second"]
        else:
            seconds = left * (end - begin) / (last - first)
        return f"{'at most ' if self._may_end_early else ''}{clock(seconds)} left"


def clock(seconds: float) -> str:
    """Returns a duration as text such as "1:02:03" or "2:03".

    Args:
        seconds: the duration.
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
