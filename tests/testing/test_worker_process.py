"""The worker process of a check ends when the process of the check is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_forever(env, folder) -> str:
    """Is what a worker runs."""
    (folder.parent / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(3600)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl and pidfd_open are Linux's")
def test_a_killed_check_leaves_no_worker(tmp_path) -> None:
    program = textwrap.dedent("""
        from tests.support.counter_env import COUNTER
        from tests.testing.test_worker_process import run_forever
        from gpuvec.testing.worker_process import WorkerProcess

        with WorkerProcess(run_forever, COUNTER) as worker:
            worker.answer()
    """)
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT)
    file = tmp_path / "pid"
    while not (file.exists() and file.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    worker = int(file.read_text())
    descriptor = os.pidfd_open(worker)
    try:
        assert not select.select([descriptor], [], [], 0)[0]  # it runs
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
        ended = select.select([descriptor], [], [], 600)[0]  # waits for its end, which the kernel causes at once
        assert ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
