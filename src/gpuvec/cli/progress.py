"""Shows the metrics of a training, as a picture on a terminal and as lines elsewhere, and what a command waits for."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuvec.cli.terminal import print_lines, printable
from gpuvec.learners.metric_names import ENV_METRICS, EVAL_RETURN, PROGRESS_METRICS, is_of_policy, role_and_name

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

LINE_METRICS = ("return", "length", EVAL_RETURN, "entropy", "approx_kl", "clip_fraction")  # of the policy, in a line
NUM_ENV_METRICS = 4  # of these in a line, which has no room for more
SECONDS_BETWEEN_LINES = 2.0
SECONDS_UNTIL_SHOWN = 1.0  # shorter waits are not shown
ITERATIONS_OF_RATE = 50  # the number of last iterations from whose rate the remaining time is computed
SPARKLINE_WIDTH = 32
BAR_WIDTH = 40
BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
MAX_MEANS = 64  # of a sparkline


class Waiting:
    """Shows on standard error what the command is waiting for, if that takes longer than a second.

    On a terminal it is a spinner, which `close` removes. Elsewhere it is a line.

    Args:
        text: what the command is doing, such as "compiling gpuvec/CartPole-v1".
    """

    def __init__(self, text: str) -> None:
        self._text, self._lock, self._stopped = text, threading.Lock(), False
        self._status: Any = None
        self._timer = threading.Timer(SECONDS_UNTIL_SHOWN, self._show)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """Removes the spinner. A line that was printed stays."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._status is not None:
                self._status.stop()

    def _show(self) -> None:
        with self._lock:
            if self._stopped:
                return
            if not sys.stderr.isatty():
                print_lines(f"{self._text} ...", is_error=True)
                return
            from rich.console import Console
            from rich.status import Status
            from rich.text import Text

            self._status = Status(Text(printable(self._text)), console=Console(stderr=True))
            self._status.start()


def waiting(text: str) -> closing[Waiting]:
    """Shows on standard error what the command is waiting for in the block, if that takes longer than a second.

    Args:
        text: what the command is doing, such as "loading PyTorch".
    """
    return closing(Waiting(text))


class Progress:
    """Shows the metrics of a training: `with Progress(title, num_iterations) as progress: progress.update(metrics)`.

    It is also the picture that rich draws on a terminal.

    Args:
        title: the title of the picture, or the first line.
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
        self._last_print_time = -math.inf
        self._live: Any = None
        self._waiting: Waiting | None = None

    def __enter__(self) -> Progress:
        if not sys.stdout.isatty():
            print_lines(self._title)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.wait_for("")
        if self._live is not None:
            self._live.stop()

    def wait_for(self, text: str) -> None:
        """Shows what the training waits for, until the next call or the next `update`.

        Args:
            text: what it is doing; "" if it does not wait any more.
        """
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = Waiting(text) if text else None

    def update(
        self,
        metrics: Mapping[str, float],
        stage_seconds: Mapping[str, float] | None = None,
        stages_in_one_graph: bool = False,
    ) -> None:
        """Shows the metrics of an iteration.

        Args:
            metrics: {name: value}. Where a value is not finite, such as the return if no episode ended, the previous one stays.
            stage_seconds: {stage: seconds}, whose shares a terminal shows; None if they are not known.
            stages_in_one_graph: whether one CUDA graph has all stages, so that these times are from before the training.
        """
        self.wait_for("")
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        with self._lock:
            self._stage_seconds, self._stages_in_one_graph = stage_seconds or {}, stages_in_one_graph
            self._metrics |= finite
            self._times.append((metrics["iteration"], metrics["seconds"]))
            for name, value in finite.items():
                if is_of_policy(name, "return"):
                    self._returns.setdefault(role_and_name(name)[0], Sparkline()).add(value)
        if not sys.stdout.isatty():
            self._print_line()
        elif self._live is None:
            from rich.live import Live

            self._live = Live(refresh_per_second=4, get_renderable=lambda: self)
            self._live.start()

    def _print_line(self) -> None:
        """Prints the metrics, unless a line was printed a moment ago."""
        now, m = time.perf_counter(), self._metrics
        if m["iteration"] < self._num_iterations and now - self._last_print_time < SECONDS_BETWEEN_LINES:
            return
        self._last_print_time = now
        iterations, steps = f"{m['iteration']:>5.0f}/{self._num_iterations}", f"{m['steps']:>12,.0f} steps"
        env_metrics = [name for name in m if role_and_name(name)[0] == ENV_METRICS]
        of_policy = [name for name in LINE_METRICS if name in m]
        of_roles = [name for name in m if "/" in name and (is_of_policy(name, "return") or is_of_policy(name, EVAL_RETURN))]
        names = [*of_policy, *of_roles, *env_metrics[:NUM_ENV_METRICS]]
        values = (f"{name.removeprefix(f'{ENV_METRICS}/')} {m[name]:.4g}" for name in names)
        print_lines("  ".join([iterations, steps, f"{m['steps_per_second']:>12,.0f}/s", *values]))

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


class Sparkline:
    """The course of a number in one line of text: at most `MAX_MEANS` means of equally many consecutive values each."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._values_per_mean = 1
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Appends a finite value."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._values_per_mean:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) == MAX_MEANS:
            self._means = [(a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)]
            self._values_per_mean *= 2

    def text(self, width: int, ascii_only: bool = False) -> str:
        """Draws the curve between its lowest and its highest point.

        Args:
            width: the largest number of characters; neighbouring points are averaged.
            ascii_only: whether only characters of ASCII are used.

        Returns:
            The text, "" without a value.
        """
        per_character = max(1, -(-len(self._means) // width))
        groups = [self._means[k : k + per_character] for k in range(0, len(self._means), per_character)]
        points = [sum(group) / len(group) for group in groups]
        if not points:
            return ""
        bars, minimum, span = ASCII_BARS if ascii_only else BARS, min(points), max(points) - min(points)
        levels = (int((point - minimum) / span * len(bars)) if span else 0 for point in points)
        return "".join(bars[min(level, len(bars) - 1)] for level in levels)


def clock(seconds: float) -> str:
    """Returns a duration as text such as "1:02:03" or "2:03".

    Args:
        seconds: the duration.
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
