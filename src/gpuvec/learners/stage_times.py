"""Where the time of an iteration goes: the seconds of its stages, measured in some iterations without a synchronisation."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch

# A timed iteration costs one mark for each stage and one more, each about a microsecond of the host.
SECONDS_BETWEEN_TIMED_ITERATIONS = 0.5
TIMED_ITERATIONS = 8  # the number of timed iterations whose times are added up


class StageClock(Protocol):
    """A clock whose marks are points of the work of a device, which the device may reach later."""

    def mark(self) -> Any:
        """Returns a mark at the end of the work that was launched so far."""

    def is_reached(self, mark: Any) -> bool:
        """Whether the device has reached `mark`; does not wait."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The seconds between the marks `begin` and `end`, which were reached."""


class HostClock:
    """The clock of work that is finished when it was launched, as on a CPU."""

    def mark(self) -> float:
        """Returns the present time in seconds."""
        return time.perf_counter()

    def is_reached(self, mark: float) -> bool:
        """Returns True, because the work before `mark` is finished."""
        return True

    def seconds(self, begin: float, end: float) -> float:
        """The seconds between the marks `begin` and `end`."""
        return end - begin


class CudaClock:
    """A clock of CUDA events, which are recorded on the device's current stream.

    Args:
        device: "cuda:0", ...
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def mark(self) -> torch.cuda.Event:
        """Records an event, asynchronously."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_reached(self, mark: torch.cuda.Event) -> bool:
        """Whether the event `mark` is complete; does not wait."""
        return bool(mark.query())

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """The seconds between the events `begin` and `end`, which are complete."""
        return float(begin.elapsed_time(end)) / 1e3


class StageTimer:
    """Measures how long the stages of an iteration take, in one iteration of each half second.

    The first iteration is not timed, because a CPU's kernels are compiled in it. The next timed iteration begins after the
    device has finished the previous one.

    Args:
        clock: the clock of the device.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._begin: Any = None
        self._ends: list[tuple[str, Any]] = []
        self._is_timed = False
        self._next_time = math.inf
        self._timed: deque[dict[str, float]] = deque(maxlen=TIMED_ITERATIONS)
        self._totals: dict[str, float] = {}

    def begin(self) -> None:
        """Begins an iteration, and decides whether it is timed."""
        now = time.perf_counter()
        self._is_timed = now >= self._next_time and self._finish()
        if self._is_timed:
            self._begin, self._next_time = self._clock.mark(), now + SECONDS_BETWEEN_TIMED_ITERATIONS
        elif self._next_time == math.inf:
            self._next_time = now

    def run(self, name: str, stage: Callable[[], object]) -> None:
        """Runs a stage of the iteration.

        Args:
            name: the name under which its time is counted.
            stage: the stage.
        """
        stage()
        if self._is_timed:
            self._ends.append((name, self._clock.mark()))

    def measure(self, stages: Iterable[tuple[str, Callable[[], object]]], synchronize: Callable[[], None]) -> None:
        """Measures stages outside of an iteration, and waits for the device. They run twice, and the second time counts.

        Args:
            stages: (name, stage) of each stage, in their order.
            synchronize: waits for the device.
        """
        stages = list(stages)
        for _, stage in stages:
            stage()
        self._begin, self._is_timed = self._clock.mark(), True
        for name, stage in stages:
            self.run(name, stage)
        self._is_timed = False
        synchronize()
        self._finish()

    def seconds(self) -> dict[str, float]:
        """The seconds of each stage, added up over the last timed iterations; empty before the first one is finished.

        Stages of the same name count as one, such as those of several policies. This method does not wait for the device.
        """
        self._finish()
        return self._totals

    def _finish(self) -> bool:
        """Adds the timed iteration if the device has finished it; returns whether none is unfinished afterwards."""
        if not self._ends:
            return True
        if not self._clock.is_reached(self._ends[-1][1]):
            return False
        seconds: dict[str, float] = {}
        begin = self._begin
        for name, end in self._ends:
            seconds[name] = seconds.get(name, 0.0) + self._clock.seconds(begin, end)
            begin = end
        self._timed.append(seconds)
        self._ends = []
        names = dict.fromkeys(name for timed in self._timed for name in timed)
        self._totals = {name: sum(timed.get(name, 0.0) for timed in self._timed) for name in names}
        return True


def stage_name(stage: Callable[[], object]) -> str:
    """Returns the name of a stage, which its variants share.

    Args:
        stage: a function, a method, or a partial call of one.
    """
    function = stage.func if isinstance(stage, partial) else stage
    return getattr(function, "__name__", type(function).__name__)
