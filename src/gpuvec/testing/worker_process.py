"""The processes in which compiled code of a check runs: code that crashes or never returns ends its process alone.

A task and its answer are files in a folder of both processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, get_type_hints

import cloudpickle  # type: ignore[import-untyped]  # it has no types

from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment

COMMAND = "import sys; from gpuvec.testing.worker_process import main; main(sys.argv[1])"
TASK, ANSWER = "task.pickle", "answer.json"


class WorkerError(Exception):
    """A process that a signal ended before it had an answer."""

    def __init__(self, how: str, out_of_time: bool) -> None:
        super().__init__(how)
        self.out_of_time = out_of_time


class Worker:
    """A process that runs `function(env, folder, **options)`, where `function` is one of a module of this package.

    It ends when the `with` block does.

    Args:
        function: what to run; it returns text.
        env: the environment.
        options: values that can be pickled.
    """

    def __init__(self, function: Any, env: Environment, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpuvec-check-")
        self.folder = Path(self._folder.name)
        env = dataclasses.replace(env, draw=None)  # pictures may need what no pickle holds
        hints = get_type_hints(env.state, include_extras=True)
        task = (function, env, env.state, hints, options)
        (self.folder / TASK).write_bytes(_pickled(task, env))
        path = os.pathsep.join(place for place in sys.path if place)  # it finds what this one finds
        with (self.folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(self.folder)],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def answer(self) -> str:
        """What the function returned; waits for it.

        Raises:
            AuthoringError: raised by the function.
            WorkerError: a signal ended the process.
            RuntimeError: the function raised another error, which is in the message.
        """
        status, answer = self._process.wait(), self.folder / ANSWER
        if status == 0 and answer.exists():
            found = json.loads(answer.read_text())
            if found["fault"]:
                raise AuthoringError(found["text"])
            return str(found["text"])
        errors = (self.folder / "errors").read_text(errors="replace").strip()
        if status >= 0:
            raise RuntimeError(f"a process of the check ended with status {status}\n{errors}")
        raise WorkerError(f"signal {signal.Signals(-status).name}\n{errors}".strip(), status == -signal.SIGXCPU)


def _pickled(task: Any, env: Environment) -> bytes:
    """`task` for another process. What it cannot import, such as the module of a notebook, is written out."""
    functions = [value for field in dataclasses.fields(env) if callable(value := getattr(env, field.name))]
    names = {getattr(part, "__module__", None) for part in (*functions, type(env.params))}
    written = [sys.modules[name] for name in names if name in sys.modules and not _can_be_imported(name)]
    for module in written:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    finally:
        for module in written:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """Whether a new process finds the module of that name in the same file."""
    parent, _, _ = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    file = getattr(sys.modules[name], "__file__", None)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None and file is None:  # of Python itself; code run by `exec` says that it is of `builtins`
            return spec.origin in ("built-in", "frozen")
        if spec is not None:
            return spec.origin is not None and Path(spec.origin) == Path(file or "")
    return False


def main(folder: str) -> None:
    """Does the task in that folder."""
    function, env, state, hints, options = cloudpickle.loads((Path(folder) / TASK).read_bytes())
    state.__annotations__ = hints  # those of a class that was written out may name what only its module knows
    try:
        fault, text = False, function(env, Path(folder), **options)
    except AuthoringError as error:
        fault, text = True, str(error)
    (Path(folder) / ANSWER).write_text(json.dumps({"fault": fault, "text": text}))
