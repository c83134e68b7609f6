"""Worker processes, which run compiled code of a check, so that code that crashes or does not return ends only the worker.

The task and the answer are files in a folder that both processes read.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import get_type_hints

import cloudpickle  # type: ignore[import-untyped]  # it has no types

from gpuvec.errors import AuthoringError
from gpuvec.python_command import python_command
from gpuvec.spec import Environment

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

COMMAND = "from gpuvec.testing.worker_process import main; main(sys.argv[1], int(sys.argv[2]))"
PR_SET_PDEATHSIG = 1  # of Linux's prctl
TASK, ANSWER = "task.pickle", "answer.json"
ENDED = "a process of the check ended with "


class WorkerError(Exception):
    """A signal ended the worker process before it had an answer.

    Args:
        description: the signal, and what the process printed.
        out_of_time: whether it reached its limit of CPU time.
    """

    def __init__(self, description: str, out_of_time: bool) -> None:
        super().__init__(description)
        self.out_of_time = out_of_time


class WorkerProcess:
    """A process that runs `function(env, folder, **options)`. It is killed at the end of the block, or with this process.

    Args:
        function: a function of this package that returns text.
        env: the environment; None for a function that needs none.
        variables: environment variables of the process, besides those of this one.
        options: keyword arguments that can be pickled.
    """

    def __init__(
        self, function: Callable[..., str], env: Environment | None, variables: Mapping[str, str] = {}, **options: object
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpuvec-check-")
        self.folder = Path(self._folder.name)
        hints = None
        if env is not None:
            env = dataclasses.replace(env, draw=None)  # it may refer to objects that cannot be pickled
            hints = get_type_hints(env.state, include_extras=True)
        (self.folder / TASK).write_bytes(_pickled((function, env, hints, options), env))
        with (self.folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                python_command(COMMAND, str(self.folder), str(os.getpid())),
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def answer(self) -> str:
        """Waits for the result of the function and returns it.

        Raises:
            AuthoringError: the function raised it.
            WorkerError: a signal ended the process.
            RuntimeError: the function raised another error, which the message contains.
        """
        status, answer = self._process.wait(), self.folder / ANSWER
        if status == 0 and answer.exists():
            result = json.loads(answer.read_text())
            if result["fault"]:
                raise AuthoringError(result["text"])
            return str(result["text"])
        errors = (self.folder / "errors").read_text(errors="replace").strip()
        if status >= 0:
            raise RuntimeError(f"{ENDED}status {status}\n{errors}")
        raise WorkerError(f"signal {signal.Signals(-status).name}\n{errors}".strip(), status == -signal.SIGXCPU)


def _pickled(task: tuple[object, ...], env: Environment | None) -> bytes:
    """Pickles a task for another process. Modules that it cannot import, such as a notebook, are pickled by value."""
    names = set[str | None]()
    if env is not None:
        functions = [value for field in dataclasses.fields(env) if callable(value := getattr(env, field.name))]
        names = {getattr(part, "__module__", None) for part in (*functions, type(env.params))}
    by_value = [sys.modules[name] for name in names if name in sys.modules and not _can_be_imported(name)]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """Whether a new process would import the module of this name from the same file."""
    parent, _, _ = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    file = getattr(sys.modules[name], "__file__", None)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None and file is None:  # a built-in module, or code run by `exec`, whose module is `builtins`
            return spec.origin in ("built-in", "frozen")
        if spec is not None:
            return spec.origin is not None and Path(spec.origin) == Path(file or "")
    return False


def main(folder: str, parent: int) -> None:
    """Runs the task that a `WorkerProcess` wrote, and writes the answer.

    Args:
        folder: the path of the folder of both files.
        parent: the number of the process that waits for the answer.
    """
    if sys.platform == "linux":  # Compiled code may run for hours, in which no Python notices the end of the parent.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It has ended already.
        sys.exit(1)
    function, env, hints, options = cloudpickle.loads((Path(folder) / TASK).read_bytes())
    if env is not None:  # The annotations of a class that was pickled by value may be strings, which only its module resolves.
        env.state.__annotations__ = hints
    try:
        fault, text = False, function(env, Path(folder), **options)
    except AuthoringError as error:
        fault, text = True, str(error)
    (Path(folder) / ANSWER).write_text(json.dumps({"fault": fault, "text": text}))


def allow_cpu_time(seconds: float) -> None:
    """Sets the CPU time after which SIGXCPU ends this process, counted from now. Where there are no such limits, it warns.

    Args:
        seconds: the CPU time of all threads together, rounded up; infinity for no limit.
    """
    if resource is None:
        if not math.isinf(seconds):
            warnings.warn("this system has no limit of CPU time: end a call that does not return yourself.", stacklevel=2)
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if math.isinf(seconds):
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        return
    soft = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
