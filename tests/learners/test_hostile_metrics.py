"""Run folders of somebody else: metrics of any size are read or refused, and no value of a record is an untyped error."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs import records
from gpuvec.learners.runs.comparison import group_runs
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import last_metrics, read_history, summarize_run, summarize_runs
from gpuvec.learners.runs.records import MAX_RECORD_BYTES
from gpuvec.learners.runs.sinks import JsonLines, read_metric_lines
from gpuvec.replay.live.server import MetricReader, read_status

LINE = b'{"iteration": 1, "steps": 16, "seconds": 1.0, "steps_per_second": 16.0, "return": 2.0}\n'


def read_all(folder: RunFolder) -> dict[str, float]:
    reader = MetricReader()
    for _ in range(3):  # as often as the page asks
        reader.update(folder)
    return reader.metrics


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "history": lambda folder: read_history(folder, "return"),
    "lines": lambda folder: read_metric_lines(folder, 1),
    "sink": lambda folder: JsonLines(folder, 1).close(),
    "last": last_metrics,
    "summary": summarize_run,
    "live": read_all,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "args.json").write_text('{"env": "CartPole-v1", "seed": 1}')
    return tmp_path


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("begin", [b"", LINE], ids=["hole", "line and hole"])
@pytest.mark.parametrize("size", [64 << 20, 20 << 30], ids=["64 MiB", "20 GiB"])
def test_a_hole_takes_no_memory(reader: Callable[[RunFolder], Any], begin: bytes, size: int, path: Path) -> None:
    with (path / "metrics.jsonl").open("wb") as file:
        file.write(begin)
        file.truncate(size)
    tracemalloc.start()
    with suppress(CheckpointError), RunFolder(path) as folder:
        reader(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MAX_RECORD_BYTES


def test_a_training_does_not_continue_after_a_hole(path: Path) -> None:
    with (path / "metrics.jsonl").open("wb") as file:
        file.write(LINE)
        file.truncate(4 << 20)
    with (
        RunFolder(path) as folder,
        pytest.raises(CheckpointError, match=r"line 2 of .* is not a JSON object with an iteration"),
    ):
        read_metric_lines(folder, 5)


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("last", "summary")])
def test_files_beyond_the_limit_are_refused(reader: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_METRICS_BYTES", 2 * len(LINE))
    (path / "metrics.jsonl").write_bytes(2 * LINE)
    with RunFolder(path) as folder:
        READERS[reader](folder)
        (path / "metrics.jsonl").write_bytes(3 * LINE)
        if reader == "live":
            assert read_all(folder) == {}
            return
        with pytest.raises(CheckpointError, match="more than the"):
            READERS[reader](folder)


def test_names_without_end_are_bounded(path: Path) -> None:
    """With a new column in each line, a small file would have 10^7 numbers."""
    lines = [
        {"iteration": k, "steps": 16 * k, f"role{k}/return": 1.0, f"name{k}": 1.0, "return": 2.0 * k} for k in range(1, 5_001)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tracemalloc.start()
    with RunFolder(path) as folder:
        with pytest.raises(CheckpointError, match=r"metrics.jsonl is damaged: it has more than 1,024 names of metrics"):
            read_history(folder, "return")
        reader = MetricReader()
        reader.update(folder)
        assert len(reader.metrics) <= 1024
        assert len(reader.curves) <= 1024
        assert json.dumps(read_status(folder, MetricReader()), allow_nan=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_carriage_returns_within_lines_lose_no_line(path: Path) -> None:
    (path / "metrics.jsonl").write_bytes(b"damaged\r" + LINE + b"\r\n" + LINE.replace(b"2.0", b"3.0"))
    with RunFolder(path) as folder:
        reader = MetricReader()
        reader.update(folder)
        assert reader.metrics["return"] == 3.0
        with (path / "metrics.jsonl").open("ab") as file:
            file.write(LINE.replace(b"2.0", b"4.0"))
        reader.update(folder)
        assert reader.metrics["return"] == 4.0


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


STRANGE: list[Any] = [
    None, True, -1, 0.5, 1e308, -1e308, 10**40, math.nan, math.inf, "", "\x00\ud800\u202e\x1b[31m", [], {}, [1] * 100, {"": {}},
    "x" * 10_000, nested(50), nested(400), {"\ud800": "\ud800"}, 2**63, "1", [None],
]  # fmt: skip


def mutate(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value in which one part is replaced, removed or added."""
    if isinstance(value, dict) and rng.random() < 0.85:
        copy = dict(value)
        name = rng.choice([*copy, "env", "seed", "params", "\ud800"])
        copy[name] = mutate(copy.get(name), rng)
        if rng.random() < 0.1:
            del copy[name]
        return copy
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [*value[:place], mutate(value[place], rng), *value[place + 1 :]]
    return rng.choice(STRANGE)


def test_mutated_records_are_read_or_refused(path: Path) -> None:
    rng = random.Random(0)
    args = {"env": "CartPole-v1", "seed": 1, "total_steps": 64, "num_envs": 4, "num_steps": 4, "params": {"gravity": 9.8}}
    files = {
        "args.json": args,
        "result.json": {"mean_return": 2.0, "ended_by": "total_steps"},
        "population.json": {"base": args, "num_agents": 2, "iteration": 1, "mean_return": 1.0},
        "sweep.json": {
            "base": args,
            "parts": [],
            "confirmations": [{"interquartile_mean": 1.0}],
            "finished_parts": 1,
            "num_trials": 2,
        },
    }
    num_read = 0
    for _ in range(500):
        runs = [path / "runs" / name for name in ("a__ppo__1__now", "population", "search")]
        for run, names in zip(runs, (("args.json", "result.json"), ("population.json",), ("sweep.json",)), strict=True):
            run.mkdir(parents=True, exist_ok=True)
            for name in names:
                (run / name).write_text(json.dumps(mutate(files[name], rng)))
        rows = [
            json.dumps(mutate(json.loads(LINE), rng) if rng.random() < 0.3 else json.loads(LINE) | {"steps": k})
            for k in (1, 2, 3)
        ]
        (runs[0] / "metrics.jsonl").write_text("\n".join(rows) + "\n")
        for summary in summarize_runs(path / "runs"):
            text = f"{summary.iteration}/{summary.num_iterations} {summary.mean_return:.1f} {summary.env}{summary.seed}"
            assert len(text) < 400
        with RunFolder(runs[0]) as folder:
            json.dumps(read_status(folder, MetricReader()), allow_nan=False).encode()
            try:
                group_runs([read_history(folder, "return")])
                num_read += 1
            except ValueError:
                continue
    assert num_read > 200
