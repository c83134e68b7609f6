"""Live replays as a training sees them: from time to time, it copies its policies for the process that records them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuvec.python_command import python_command
from gpuvec.replay.live.recorder import Request, write_request

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.policy_files.trained_policy import PolicyReadout

COMMAND = "from gpuvec.replay.live.recorder import main; main(*sys.argv[1:])"
# The process plays a few rows beside the training, whose cores and GPU it leaves alone.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
SECONDS_TO_END = 60.0  # for which the end of a training waits for the last replay


class LiveSettings(NamedTuple):
    """How often a training saves a live replay, and of what.

    Attributes:
        seconds: between two replays.
        rows: the number of environments.
        videos: suffixes of the videos of the first environment that are saved with it.
    """

    seconds: float
    rows: int
    videos: tuple[str, ...] = ()


class LiveReplays:
    """Saves live replays of a training. After the first problem, it saves no more, and the training continues.

    Args:
        run: the path of the run folder.
        learner: of the training.
        settings: how often, and of what.
        report: called with a text about the problem, in any thread.
    """

    def __init__(self, run: Path, learner: Learner, settings: LiveSettings, report: Callable[[str], None]) -> None:
        from gpuvec.learners.policy_files.trained_policy import PolicyReadout

        self._readout: PolicyReadout = PolicyReadout(learner)
        self._learner, self._seconds, self._report = learner, settings.seconds, report
        self._due_time = time.monotonic()
        self._is_copying = self._has_failed = self._is_closing = False
        self._has_videos, self._new_videos = bool(settings.videos), deque[int]()
        self._sent_iteration = -1
        self._pool = ThreadPoolExecutor(1, "gpuvec-live")
        self._pending: Future[None] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(
            python_command(COMMAND, str(run), str(settings.rows), str(learner.args.seed), *settings.videos),
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C ends the training, which ends this process
        )

    def update(self) -> None:
        """Copies the policies if a replay is due and the one before is finished; called after each iteration.

        It does not wait: the copies that one call starts are sent by the next call, in another thread.
        """
        if self._is_copying:
            self._is_copying = False
            self._send(self._readout.iteration, self._readout.take)
        elif time.monotonic() >= self._due_time and not self._has_failed and (self._pending is None or self._pending.done()):
            self._due_time = time.monotonic() + self._seconds
            self._readout.start()
            self._is_copying = True

    def take_videos(self) -> Iterator[int]:
        """Yields the iterations of which videos have been saved since the last call."""
        while self._new_videos:
            yield self._new_videos.popleft()

    def save_last(self, networks: dict[str, dict[str, Any]], iteration: int) -> None:
        """Saves a replay of the final policies, unless the newest one has them.

        Args:
            networks: {role: {name: tensor}}.
            iteration: the number of iterations.
        """
        if not self._has_failed and self._sent_iteration < iteration:
            self._send(iteration, lambda: self._readout.to_bytes(networks))

    def close(self, wait: bool = False) -> None:
        """Ends the process.

        Args:
            wait: whether the replays that were sent are recorded before.
        """
        if wait and self._pending is not None:
            try:
                self._pending.result(SECONDS_TO_END)
            except FutureTimeoutError:
                self._fail(f"the last replay was not recorded in {SECONDS_TO_END:.0f} seconds")
        self._is_closing = True
        self._process.kill()  # a thread that waits for an answer then gets the end of the file
        self._process.wait()
        self._pool.shutdown()
        self._process.communicate()
        self._errors.close()

    def _send(self, iteration: int, make_policy: Callable[[], bytes]) -> None:
        """Sends a policy file to the process, and waits for its answer, in another thread."""
        self._sent_iteration = iteration
        self._pending = self._pool.submit(self._record, iteration, make_policy)

    def _record(self, iteration: int, make_policy: Callable[[], bytes]) -> None:
        process = self._process
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        if self._has_failed:
            return
        try:
            write_request(process.stdin, Request(iteration, make_policy()))
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        error = json.loads(answer)["error"] if answer else self._last_error()
        if error and not self._is_closing:
            self._fail(error)
        elif not error and self._has_videos:
            self._new_videos.append(iteration)

    def _last_error(self) -> str:
        """Returns the last line that the process printed before it ended."""
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").rstrip().splitlines()
        return lines[-1] if lines else f"its process ended with status {self._process.returncode}"

    def _fail(self, problem: str) -> None:
        self._has_failed = True
        self._report(f"no more live replays: {problem}")
