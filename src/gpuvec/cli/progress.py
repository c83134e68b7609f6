"""Shows the metrics of a training, as a dashboard on a terminal and as lines elsewhere, and what a command waits for."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gpuvec.cli.dashboard import Dashboard
from gpuvec.cli.terminal import print_lines, printable
from gpuvec.learners.metric_names import ENV_METRICS, EVAL_RETURN, is_of_policy, role_and_name

LINE_METRICS = ("return", "length", EVAL_RETURN, "entropy", "approx_kl", "clip_fraction")  # of the policy, in a line
NUM_ENV_METRICS = 4  # of these in a line, which has no room for more
SECONDS_BETWEEN_LINES = 2.0
SECONDS_UNTIL_SHOWN = 1.0  # shorter waits are not shown


class Waiting:
    """Shows on standard error what the command is waiting for, if that takes longer than a second.

    On a terminal it is a spinner, which `stop` removes. Elsewhere it is a line.

    Args:
        text: what the command is doing, such as "compiling gpuvec/CartPole-v1".
    """

    def __init__(self, text: str) -> None:
        self._text, self._status = text, None
        self._lock, self._stopped = threading.Lock(), False
        self._timer = threading.Timer(SECONDS_UNTIL_SHOWN, self._show)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Removes the spinner. A line that was printed stays."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._status is not None:
                self._status.stop()
                self._status = None

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

            status: Any = Status(Text(printable(self._text)), console=Console(stderr=True))
            status.start()
            self._status = status


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Shows on standard error what the command is waiting for in the block, if that takes longer than a second.

    Args:
        text: what the command is doing, such as "loading PyTorch".
    """
    wait = Waiting(text)
    try:
        yield
    finally:
        wait.stop()


class Progress:
    """Shows the metrics of a training: `with Progress(title, num_iterations) as progress: progress.update(metrics)`.

    Args:
        num_iterations: the number of iterations of the whole training.
        may_end_early: whether the training may end before, at a target return.
    """

    def __init__(self, title: str, num_iterations: int, may_end_early: bool = False) -> None:
        self._title, self._num_iterations, self._last_print_time = title, num_iterations, -math.inf
        self._dashboard = Dashboard(title, num_iterations, may_end_early)
        self._metrics: dict[str, float] = {}
        self._live: Any = None
        self._waiting: Waiting | None = None

    def __enter__(self) -> Progress:
        if not sys.stdout.isatty():
            print_lines(self._title)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop_waiting()
        if self._live is not None:
            self._live.stop()

    def wait_for(self, text: str) -> None:
        """Shows what the training waits for, until the next call or the next `update`.

        Args:
            text: what it is doing; "" if it does not wait any more.
        """
        self._stop_waiting()
        self._waiting = Waiting(text) if text else None

    def update(
        self,
        metrics: dict[str, float],
        stage_seconds: Mapping[str, float] | None = None,
        stages_in_one_graph: bool = False,
    ) -> None:
        """Shows the metrics of an iteration.

        Args:
            metrics: {name: value}. Where a value is nan, such as the return if no episode ended, the previous one stays.
            stage_seconds: {stage: seconds}, whose shares a terminal shows; None if they are not known.
            stages_in_one_graph: whether one CUDA graph has all stages, so that these times are from before the training.
        """
        self._stop_waiting()
        if sys.stdout.isatty():
            self._dashboard.update(metrics, stage_seconds or {}, stages_in_one_graph)
            if self._live is None:
                from rich.live import Live

                self._live = Live(refresh_per_second=4, get_renderable=lambda: self._dashboard)
                self._live.start()
            return
        self._metrics |= {name: value for name, value in metrics.items() if math.isfinite(value)}
        now = time.perf_counter()
        is_last = metrics["iteration"] >= self._num_iterations
        if is_last or now - self._last_print_time >= SECONDS_BETWEEN_LINES:
            self._last_print_time = now
            m = self._metrics
            iterations, steps = f"{m['iteration']:>5.0f}/{self._num_iterations}", f"{m['steps']:>12,.0f} steps"
            env_metrics = [name for name in m if role_and_name(name)[0] == ENV_METRICS]
            of_policy = [name for name in LINE_METRICS if name in m]
            of_roles = [name for name in m if "/" in name and (is_of_policy(name, "return") or is_of_policy(name, EVAL_RETURN))]
            names = [*of_policy, *of_roles, *env_metrics[:NUM_ENV_METRICS]]
            values = (f"{name.removeprefix(f'{ENV_METRICS}/')} {m[name]:.4g}" for name in names)
            print_lines("  ".join([iterations, steps, f"{m['steps_per_second']:>12,.0f}/s", *values]))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
