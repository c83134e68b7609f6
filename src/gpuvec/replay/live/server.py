"""The server of a live view: a page with the newest replay of a run and its metrics, for browsers on this machine.

It has a fixed list of pages. A replay is read and checked, and the page of the player is made of it again, so that a file in
the run folder never runs code of its own.
"""

from __future__ import annotations

import json
import math
import os
import re
from http import HTTPStatus
from threading import Lock
from typing import Any, ClassVar

from gpuvec.errors import CheckpointError, ReplayError
from gpuvec.learners.metric_names import ENV_METRICS, PROGRESS_METRICS, is_of_policy, role_and_name
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import summarize_run
from gpuvec.learners.runs.records import (
    MAX_METRIC_NAMES,
    MAX_RECORD_BYTES,
    SETTINGS,
    finite_number,
    open_metrics,
    parse_json,
    read_record,
)
from gpuvec.replay.document import read_replay_in, to_page
from gpuvec.replay.live.files import REPLAY, file_name, live_iterations
from gpuvec.replay.local_server import CSS, HTML, JAVASCRIPT, JSON, Answer, LocalServer, refusal

MAX_POINTS = 256  # of a curve
MAX_BYTES = 1 << 24  # of metrics.jsonl that are read at once
MAX_METRICS = 64  # that are shown


class MetricReader:
    """Reads what was appended to metrics.jsonl, and keeps the newest metrics and curves of the returns."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, inode: int) -> None:
        self._inode, self._position, self._stride, self._num_rows = inode, 0, 1, 0
        self.metrics: dict[str, float] = {}
        """{name: the newest value that is a finite number}."""
        self.curves: dict[str, list[float]] = {}
        """{name of a return: its values}, in equal distances of iterations."""

    def update(self, folder: RunFolder) -> None:
        """Reads the lines that are complete; an incomplete one is read by a later call.

        Args:
            folder: the run folder.
        """
        try:
            file = open_metrics(folder)
        except (FileNotFoundError, CheckpointError):
            return
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._position:
                self._begin(status.st_ino)  # a training that continues writes the file again
            file.seek(self._position)
            end = self._position + MAX_BYTES
            # An incomplete line is read by a later call; one that is too long is never complete.
            while self._position < end and (line := file.readline(MAX_RECORD_BYTES)).endswith(b"\n"):
                self._position += len(line)
                self._add(parse_json(line))

    def _add(self, row: Any) -> None:
        if not isinstance(row, dict):
            return
        names = [name for name in row if name in self.metrics or len(self.metrics) + len(row) <= MAX_METRIC_NAMES]
        numbers = {name: number for name in names if math.isfinite(number := finite_number(row, name))}
        self.metrics |= numbers
        self._num_rows += 1
        if self._num_rows % self._stride:
            return
        for name, number in numbers.items():
            if is_of_policy(name, "return"):
                self.curves.setdefault(name, []).append(number)
        if any(len(curve) > MAX_POINTS for curve in self.curves.values()):
            self._stride *= 2
            self.curves = {name: curve[1::2] for name, curve in self.curves.items()}


def read_status(folder: RunFolder, reader: MetricReader) -> dict[str, Any]:
    """Returns the state of a run, as JSON has it.

    Args:
        folder: the run folder.
        reader: reads its metrics.
    """
    reader.update(folder)
    summary, metrics = summarize_run(folder), reader.metrics
    total_steps = finite_number(read_record(folder, SETTINGS), "total_steps")
    others = [name for name in metrics if name not in PROGRESS_METRICS and not is_of_policy(name, "return")]
    return {
        "name": folder.path.resolve().name[:200],
        "env": summary.env,
        "algorithm": summary.algorithm,
        "seed": summary.seed,
        "state": summary.state,
        "num_iterations": summary.num_iterations,
        "total_steps": None if math.isnan(total_steps) else total_steps,
        "progress": {name: metrics[name] for name in PROGRESS_METRICS if name in metrics},
        "returns": [
            {"role": role_and_name(name)[0], "value": metrics[name], "curve": curve} for name, curve in reader.curves.items()
        ],
        "metrics": [
            {"name": name.removeprefix(f"{ENV_METRICS}/").replace("_", " "), "value": metrics[name]}
            for name in others[:MAX_METRICS]
        ],
        "replays": live_iterations(folder),
    }


REPLAY_PATH = re.compile(r"/replay/(\d{1,18})\.html")
# The page of a replay has a policy of its own, which allows its script and its style by their hashes.
REPLAY_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"


class LiveServer(LocalServer):
    """The server of a run. `serve_forever` answers requests until `shutdown`.

    Args:
        folder: the run folder, which stays open.
        port: of the loopback address; 0 for one that is free.

    Attributes:
        run: the run folder.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    page_files: ClassVar = {
        "/": ("live/page/index.html", HTML),
        "/live.js": ("live/page/live.js", JAVASCRIPT),
        "/live.css": ("live/page/live.css", CSS),
    }

    def __init__(self, folder: RunFolder, port: int) -> None:
        super().__init__(port)
        self.run, self._reader, self._lock = folder, MetricReader(), Lock()

    def answer(self, path: str) -> Answer:
        """Returns the answer to a request.

        Args:
            path: of the address, with a leading slash.
        """
        try:
            if path == "/status.json":
                with self._lock:
                    return Answer(json.dumps(read_status(self.run, self._reader), allow_nan=False).encode(), JSON)
            if match := REPLAY_PATH.fullmatch(path):
                try:
                    replay = read_replay_in(self.run, file_name(int(match[1]), REPLAY))
                except FileNotFoundError:
                    return refusal(HTTPStatus.NOT_FOUND, "There is no such replay.")
                return Answer(to_page(replay).encode(), HTML, REPLAY_POLICY)
        except (ReplayError, CheckpointError) as error:
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except OSError as error:
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"The run folder cannot be read: {error.strerror or error}.")
        return super().answer(path)
