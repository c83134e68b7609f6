"""Starts the processes of a distributed program on this machine, as torchrun starts them, and ends all of them in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS_AFTER_FAILURE = 10.0  # within which the other processes may say why they end, too
PATHS = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("src", "envs")]


class ProcessFailure(RuntimeError):
    """A process failed, or did not end within its time; all of them have ended."""


def run_processes(program: Path, arguments: Sequence[str], count: int, seconds: float) -> None:
    """Runs a Python program in several processes that know each other by the environment variables of torchrun.

    No process outlives this call. If this process is killed, those end that have called `end_with_parent`.

    Args:
        program: the file.
        arguments: its command line, the same for all processes.
        count: the number of processes.
        seconds: within which all must have ended.

    Raises:
        ProcessFailure: a process had another status than 0, or the time was over.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": paths}
    common = {"OMP_NUM_THREADS": "1", **os.environ, **common}
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(rank) for rank in range(count)]
        try:
            for rank, output in enumerate(outputs):
                with output.open("wb") as file:
                    # In sessions of their own, processes can be killed with those that they start, such as compilers.
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, str(program), *arguments], stdin=subprocess.PIPE, stdout=file, stderr=file,
                            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, start_new_session=True,
                        )
                    )  # fmt: skip
            if failure := _wait(processes, seconds):
                texts = [output.read_text(errors="replace").strip()[-1500:] for output in outputs]
                raise ProcessFailure("\n".join([failure, *(f"process {k}: {text}" for k, text in enumerate(texts) if text)]))
        finally:
            for process in processes:
                _end(process)


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> str:
    """Waits until all have ended; returns what went wrong, or ""."""
    end, failure = time.monotonic() + seconds, ""
    while any(process.poll() is None for process in processes):
        if not failure and any(process.poll() for process in processes):
            end = min(end, time.monotonic() + SECONDS_AFTER_FAILURE)
            failure = _statuses(processes)
        if time.monotonic() > end:
            return failure or f"{len(processes)} processes did not end within {seconds:.0f} s"
        time.sleep(0.02)
    return _statuses(processes)


def _statuses(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """The exit statuses of the processes that failed, as text."""
    failed = [f"process {rank} ended with status {p.returncode}" for rank, p in enumerate(processes) if p.poll()]
    return ", ".join(failed)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and those that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it by `run_processes` has ended, which closes the pipe between them."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
