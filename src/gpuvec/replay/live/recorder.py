"""The process that records live replays: it gets policies of a training, plays them on the CPU, and writes the replays.

It has the lowest priority and no GPU. It ends when its standard input ends, so also when the training is killed.

A request on its standard input is the iteration and the size of the policy file, 8 bytes each, and the policy file. The answer
on its standard output is a line of JSON, {"iteration": 120, "error": ""}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import gymnasium as gym

from gpuvec.errors import GpuvecError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.live.files import POLICY, REPLAY, file_name, remove_surplus

MAX_STEPS = 500  # of an episode
LOWEST_PRIORITY = 19


class Request(NamedTuple):
    """A policy to record.

    Attributes:
        iteration: the number of iterations of the policy.
        policy: the content of the policy file.
    """

    iteration: int
    policy: bytes


def write_request(file: IO[bytes], request: Request) -> None:
    """Writes a request.

    Args:
        file: to which it is written; the process at its other end reads it.
        request: what is written.
    """
    for number in (request.iteration, len(request.policy)):
        file.write(number.to_bytes(8, "little"))
    file.write(request.policy)
    file.flush()


def read_request(file: IO[bytes]) -> Request | None:
    """Reads a request, or returns None at the end of the file.

    Args:
        file: from which it is read.
    """
    head = file.read(16)
    iteration, size = (int.from_bytes(head[k : k + 8], "little") for k in (0, 8))
    policy = file.read(size)
    return Request(iteration, policy) if len(head) == 16 and len(policy) == size else None


def record_request(folder: RunFolder, request: Request, rows: int, seed: int, videos: Sequence[str] = ()) -> None:
    """Plays the policy of a request, and writes the policy, the replay and videos to the run folder.

    Args:
        folder: the run folder.
        request: the policy.
        rows: the number of environments.
        seed: of the environments.
        videos: suffixes of videos, which show the first environment.

    Raises:
        GpuvecError, gymnasium.error.Error, ImportError, OSError, ValueError: the policy cannot be played, or a file cannot be
            written.
    """
    from gpuvec import replay
    from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy, needs_torch
    from gpuvec.learners.policy_files.policy_file import read_policy_file
    from gpuvec.replay.document import to_page
    from gpuvec.replay.recording import record_policy
    from gpuvec.replay.video import encode_video

    name = file_name(request.iteration, POLICY)
    folder.write(name, request.policy)
    path = folder.path / name
    contents = read_policy_file(path, "numpy", trust=True)  # the training, whose policy it is, imported the same modules
    policy: Any = None
    if needs_torch(contents):  # which takes seconds and 300 MB
        from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

        policy = TrainedPolicy(read_policy_file(path))
    else:
        policy = NumpyPolicy(path)
    scenes = record_policy(policy, f"iteration {request.iteration:,}", rows=rows, seed=seed, max_steps=MAX_STEPS)
    folder.write(file_name(request.iteration, REPLAY), to_page(replay.make(scenes)).encode())
    for suffix in videos:
        folder.write(file_name(request.iteration, suffix), encode_video([scenes[0].episode], suffix))
    remove_surplus(folder)


def main(run: str, rows: str, seed: str, *videos: str) -> None:
    """Records the policies on standard input until it ends.

    Args:
        run: the path of the run folder.
        rows: the number of environments.
        seed: of the environments.
        videos: suffixes of videos.
    """
    if hasattr(os, "nice"):  # Windows has no such call
        os.nice(LOWEST_PRIORITY)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an environment prints is not an answer
    with RunFolder(Path(run)) as folder:
        while (request := read_request(sys.stdin.buffer)) is not None:
            error = ""
            try:
                record_request(folder, request, int(rows), int(seed), videos)
            except (GpuvecError, gym.error.Error, ImportError, OSError, ValueError) as problem:
                error = " ".join(str(problem).split()) or type(problem).__name__
            print(json.dumps({"iteration": request.iteration, "error": error}), file=answers, flush=True)
