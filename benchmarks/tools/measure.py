"""How the benchmarks measure, and how they say what they found.

A figure is the median of a few repetitions; the fastest and the slowest stand beside it, and a difference smaller than
their distance is noise. Torch is imported on use, so that benchmarks of a CPU run without it.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Microseconds per call."""

    median: float
    fastest: float
    slowest: float

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (self.slowest - self.fastest) / self.median


def timing(microseconds: Sequence[float]) -> Timing:
    """What several repetitions of one measurement say."""
    return Timing(statistics.median(microseconds), min(microseconds), max(microseconds))


class Rate(NamedTuple):
    """What a benchmark of steps found."""

    per_second: float  # env steps, all agents of an env acting
    details: dict[str, Any]


class Figures:
    """Prints each figure as a line of text and, if there is a path, appends it there as a line of JSON."""

    def __init__(self, benchmark: str, path: Path | None) -> None:
        self.benchmark, self.path = benchmark, path

    def add(self, name: str, value: float, unit: str, of: Sequence[str], **details: Any) -> None:
        """One figure.

        Args:
            name: what was measured, unique within the benchmark.
            value: the figure.
            unit: its unit.
            of: the sources that it hangs on, as `record.SOURCES` names them; when one changes, the figure is stale.
            details: what a reader needs to judge it.
        """
        shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in details.items()}
        print(f"{name:<40} {value:>9.4g} {unit:<10} " + "  ".join(f"{k} {v}" for k, v in shown.items()), flush=True)
        if self.path is not None:
            row = {"benchmark": self.benchmark, "name": name, "value": value, "unit": unit, "of": list(of), "details": shown}
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def peer(self, name: str, rate: float, unit: str, h200: float | None = None, **details: Any) -> None:
        """A rate of another library; `h200` is the best that is known of it on one H200, in the same unit.

        A rate far below that says more of the way it was asked for than of the library: it counts from about 0.9 on.
        """
        known = {} if h200 is None else {"h200": h200, "of_h200": rate / h200}
        self.add(name, rate, unit, (), **known, **details)

    def steps(self, name: str, found: Rate, of: str) -> None:
        """A rate in G steps/s of environment `of`, and its share of the bandwidth where it has one."""
        self.add(name, found.per_second / 1e9, "G steps/s", (of,), **found.details)
        if "percent_of_add" in found.details:
            self.add(f"{name}.share", found.details["percent_of_add"], "% of add", (of,))

    def failed(self, name: str, error: BaseException | str) -> None:
        """A measurement that did not come about; the others go on."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        print(f"{name:<40}    FAILED {' '.join(text.split())[:400]}", flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"benchmark": self.benchmark, "name": name, "failed": text}) + "\n")


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has. Kernels are compiled in it, whatever lies on disk, as that is timed too."""
    os.environ["GPUVEC_CACHE"] = "off"
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, metavar="PATH", help="append the figures there, one JSON object a line")
    return p


def missing(*modules: str) -> str | None:
    """What to say of those that are not installed; None if all are."""
    names = [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(names)}" if names else None


def wall_time(call: Callable[[], Any], wait: Callable[[Any], object], calls: int = 10, repeats: int = 5) -> Timing:
    """Time per call by the wall clock; `wait` gets what the last call returned, and comes back when it is done.

    One round goes before those that count: it compiles, and spreads what is spread by use.
    """
    found = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        for _ in range(calls):
            last = call()
        wait(last)
        found.append((time.perf_counter() - start) / calls * 1e6)
    return timing(found[1:])


def require_gpu() -> None:
    """Ends the program if there is no GPU that PyTorch can use."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU: `gpuvec doctor` tells why. Where a benchmark has --device, it may be cpu.")


def synchronize(_: object = None) -> None:
    """Waits for the GPU, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_time(enqueue: Callable[[], object], calls: int, device: str, replays: int = 10, repeats: int = 5) -> Timing:
    """Time per call: of a GPU in a replayed graph, see `graph_time`; of a CPU by the wall clock."""
    if device == "cuda":
        return graph_time(enqueue, calls, replays, repeats)
    return timing([us / calls for us in wall_time(enqueue, lambda _: None, replays, repeats)])


def graph_time(enqueue: Callable[[], object], calls: int, replays: int = 10, repeats: int = 5) -> Timing:
    """Device time per call, in a replayed CUDA graph that holds what `enqueue` launches in its `calls` calls."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        enqueue()  # compiles and allocates whatever is left to
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        enqueue()
    for _ in range(replays):
        graph.replay()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / (replays * calls))
    return timing(found)


def host_times(named: Mapping[str, Callable[[], object]], calls: int = 400, repeats: int = 9) -> dict[str, list[float]]:
    """Microseconds that the host spends in a call of each, by repetition, in which all take their turn: what slows the host
    for a while slows all of them. Without garbage collection; the device is idle at the start of a turn.
    """
    import torch

    for call in named.values():
        for _ in range(200):
            call()
    found: dict[str, list[float]] = {name: [] for name in named}
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, call in named.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                found[name].append((time.perf_counter() - start) / calls * 1e6)
    finally:
        gc.enable()
        torch.cuda.synchronize()
    return found


def bandwidth(device: str = "cuda") -> float:
    """Bytes per second, read plus written, of `out = x + 1` from 1 GB to 1 GB: the ceiling for kernels that wait for memory.

    A copy in a captured graph would be done by the copy engine, which is slower. On a CPU a sixteenth as much.
    """
    import torch

    if device == "cuda":
        require_gpu()
    x = torch.rand(250_000_000 if device == "cuda" else 15_625_000, device=device)
    out = torch.empty_like(x)
    microseconds = device_time(lambda: torch.add(x, 1.0, out=out), calls=1, device=device, replays=20).median
    return 2 * x.nbytes / microseconds * 1e6
