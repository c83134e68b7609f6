"""What benchmarks share: clocks, the bandwidth of the memory, command line options, and how figures are written.

A figure is the median of several repetitions. The fastest and the slowest are recorded as well: a difference between two
figures that is smaller than this spread is noise. PyTorch is imported on use, so that benchmarks of a CPU run without it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tools.sources import source_hashes


class Timing(NamedTuple):
    """Microseconds per call."""

    median: float
    fastest: float
    slowest: float

    @property
    def spread(self) -> float:
        """The difference between the slowest and the fastest repetition as a share of the median."""
        return (self.slowest - self.fastest) / self.median


def summarize(microseconds: Sequence[float]) -> Timing:
    """Returns the median and the extremes of the repetitions of one measurement, `microseconds` per call."""
    return Timing(statistics.median(microseconds), min(microseconds), max(microseconds))


class StepRate(NamedTuple):
    """The result of a benchmark that steps environments."""

    per_second: float  # env steps, in which all agents of an env act
    details: dict[str, Any]


class Figures:
    """Prints each figure as a line of text and, if there is a file, appends it there as a line of JSON."""

    def __init__(self, benchmark: str, path: Path | None) -> None:
        self.benchmark, self.path = benchmark, path

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        sources: Sequence[str],
        hashes: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        """Adds one figure.

        Args:
            name: what was measured, unique within the benchmark.
            value: the figure.
            unit: its unit.
            sources: the sources that it depends on, see `sources.py`; when one of them changes, the figure is stale.
            hashes: {source: hash} of the checkout that was measured, if another process measured it.
            details: further numbers and texts that a reader needs to interpret the figure.
        """
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in details.items()}
        print(f"{name:<40} {value:>9.4g} {unit:<10} " + "  ".join(f"{k} {v}" for k, v in rounded.items()), flush=True)
        if self.path is not None:
            if hashes is None:
                hashes = {source: current_hashes().get(source, "") for source in sources}
            row = {"benchmark": self.benchmark, "name": name, "value": value, "unit": unit, "of": list(sources)}
            self._write({**row, "details": rounded, "sources": dict(hashes)})

    def add_peer(self, name: str, rate: float, unit: str, h200: float | None = None, **details: Any) -> None:
        """Adds a rate of another library.

        Args:
            name: what was measured.
            rate: the figure.
            unit: its unit.
            h200: the best rate of the library that is known on one NVIDIA H200, in the same unit. A rate below 0.9 of it says
                more about this run than about the library.
            details: as in `add`.
        """
        known = {} if h200 is None else {"h200": h200, "of_h200": rate / h200}
        self.add(name, rate, unit, (), **known, **details)

    def add_steps(self, name: str, rate: StepRate, env: str) -> None:
        """Adds the steps of an environment in G steps/s and, where it is known, their share of the memory's bandwidth.

        Args:
            name: what was measured.
            rate: the result.
            env: the name of the environment, which is the source that the figure depends on.
        """
        self.add(name, rate.per_second / 1e9, "G steps/s", (env,), **rate.details)
        if "percent_of_add" in rate.details:
            self.add(f"{name}.share", rate.details["percent_of_add"], "% of add", (env,))

    @contextmanager
    def continue_after_failure(self, name: str) -> Iterator[None]:
        """Adds an error of the block as a measurement that failed, so that the benchmark continues with the next `name`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a row that fails must not stop the others
            self.add_failure(name, error)

    def add_failure(self, name: str, error: BaseException | str) -> None:
        """Adds a measurement that failed with `error`; the benchmark continues with the next `name`."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        print(f"{name:<40}    FAILED {' '.join(text.split())[:400]}", flush=True)
        if self.path is not None:
            self._write({"benchmark": self.benchmark, "name": name, "failed": text})

    def _write(self, row: dict[str, Any]) -> None:
        assert self.path is not None
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@cache
def current_hashes() -> dict[str, str]:
    """Returns {source: hash} of the checkout, which is read once in a process."""
    return source_hashes()


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have.

    It switches the cache of kernels off for this process, so that the time of compilation is that of a compilation.

    Args:
        description: the docstring of the benchmark.
    """
    os.environ["GPUVEC_CACHE"] = "off"
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="append the figures to this file, one JSON object a line")
    return parser


def missing_modules(*modules: str) -> str | None:
    """Returns a message that names those of `modules` that are not installed, or None if all are."""
    names = [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(names)}" if names else None


def wall_time(call: Callable[[], Any], wait: Callable[[Any], object], calls: int = 10, repeats: int = 5) -> Timing:
    """Returns the time per call by the wall clock.

    One round that does not count precedes the others: it compiles, and lets the ends of episodes spread.

    Args:
        call: what is measured.
        wait: called with the result of the last call; returns when the device has finished it.
        calls: how many calls a repetition has.
        repeats: how many repetitions count.
    """
    microseconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        for _ in range(calls):
            last = call()
        wait(last)
        microseconds.append((time.perf_counter() - start) / calls * 1e6)
    return summarize(microseconds[1:])


def require_gpu() -> None:
    """Ends the program if PyTorch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU: `gpuvec doctor` tells why. Where a benchmark has --device, it may be cpu.")


def synchronize(result: object = None) -> None:
    """Waits for the GPU, if there is one; `wall_time` calls it with a `result`, which it ignores."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_time(enqueue: Callable[[], object], calls: int, device: str, replays: int = 10, repeats: int = 5) -> Timing:
    """Returns the time per call: on a GPU in a CUDA graph, see `graph_time`, on a CPU by the wall clock.

    Args:
        enqueue: makes the calls.
        calls: how many calls `enqueue` makes.
        device: "cuda" or "cpu".
        replays: how often a repetition calls `enqueue`.
        repeats: how many repetitions count.
    """
    if device == "cuda":
        return graph_time(enqueue, calls, replays, repeats)
    return summarize([us / calls for us in wall_time(enqueue, lambda _: None, replays, repeats)])


def graph_time(enqueue: Callable[[], object], calls: int, replays: int = 10, repeats: int = 5) -> Timing:
    """Returns the device time per call in a CUDA graph that is replayed.

    Args:
        enqueue: launches the kernels that the graph captures.
        calls: how many calls `enqueue` makes.
        replays: how many replays a repetition has.
        repeats: how many repetitions count.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        enqueue()  # compiles kernels and allocates memory, which a capture must not do
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        enqueue()
    for _ in range(replays):
        graph.replay()
    microseconds = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        microseconds.append(begin.elapsed_time(end) * 1e3 / (replays * calls))
    return summarize(microseconds)


def host_times(calls_by_name: Mapping[str, Callable[[], object]], calls: int = 400, repeats: int = 9) -> dict[str, list[float]]:
    """Returns {name: microseconds of the host per call, one number for each repetition}.

    In a repetition all of them are measured in turn, so that whatever slows the host for a while slows all. The garbage
    collector is off, and the device is idle when a measurement starts.

    Args:
        calls_by_name: {name: what is measured}.
        calls: how many calls a measurement has.
        repeats: how many repetitions there are.
    """
    import torch

    for call in calls_by_name.values():
        for _ in range(200):
            call()
    microseconds: dict[str, list[float]] = {name: [] for name in calls_by_name}
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, call in calls_by_name.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                microseconds[name].append((time.perf_counter() - start) / calls * 1e6)
    finally:
        gc.enable()
        torch.cuda.synchronize()
    return microseconds


def measure_bandwidth(device: str = "cuda") -> float:
    """Returns the bytes per second, read plus written, of `out = x + 1` from 1 GB to 1 GB (on a CPU a sixteenth of that).

    It is the upper limit for kernels that are bound by memory. A copy would not do: in a captured graph the copy engine does
    it, which is slower.

    Args:
        device: "cuda" or "cpu".
    """
    import torch

    if device == "cuda":
        require_gpu()
    x = torch.rand(250_000_000 if device == "cuda" else 15_625_000, device=device)
    out = torch.empty_like(x)
    microseconds = device_time(lambda: torch.add(x, 1.0, out=out), calls=1, device=device, replays=20).median
    return 2 * x.nbytes / microseconds * 1e6
