"""Starts the processes of a training, and lets only one of them write to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gpuvec.errors import DeviceError
from gpuvec.learners.shards.torchrun import Sharding, read_launch
from gpuvec.python_command import python_command

COMMAND = "from gpuvec.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class ShardOptions(Sharding):
    """How the environments of a training are divided, as options of the command line."""

    shards: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 8 with torchrun, 1 without)")] = None
    """The number of parts of the environments that are computed by themselves. The results are equal bit for bit for any number
    of processes that divides it."""


@dataclass(frozen=True)
class GpuProcesses:
    """The processes that a command starts on this machine."""

    gpus: int = 0
    """If above 0, train with so many GPUs of this machine, in a process each, by `torchrun --standalone`."""
    max_restarts: int = 0
    """How often all processes start again after one has failed; they continue from the last checkpoint."""


@contextmanager
def output_of_first_process() -> Iterator[None]:
    """Discards in the block what the processes of a training but the first one print."""
    launch = read_launch()
    with ExitStack() as stack:
        if launch is not None and launch.rank > 0:
            null = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(null))
            stack.enter_context(redirect_stderr(null))
        yield


def reports_errors(error: BaseException) -> bool:
    """Returns whether this process prints the error with which it ends: one of the processes of a training does.

    Args:
        error: the error.
    """
    launch = read_launch()
    return launch is None or launch.rank == 0 or getattr(error, "is_first_alive", False)


def torchrun_command(arguments: Sequence[str], processes: int, max_restarts: int) -> list[str]:
    """Returns the command that runs `gpuvec` in several processes of this machine.

    Args:
        arguments: the words after `gpuvec`.
        processes: their number.
        max_restarts: how often torchrun starts all processes again after one has failed.
    """
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"]
    python, *words = python_command(COMMAND, *arguments)
    # As torchrun starts Python itself, the output is not buffered.
    return [sys.executable, "-P", "-m", "torch.distributed.run", *options, "--no-python", python, "-u", *words]


def start_on_gpus(start: GpuProcesses, device: str) -> None:
    """Replaces this process by torchrun with its command line, unless torchrun started it.

    Args:
        start: the number of processes, with a GPU each, and of restarts.
        device: the device of the settings.

    Raises:
        ValueError: a number out of range, or another device than GPUs.
        DeviceError: there are fewer GPUs.
    """
    gpus, max_restarts = start.gpus, start.max_restarts
    if gpus < 0 or max_restarts < 0 or (max_restarts and not gpus):
        raise ValueError(f"gpus and max_restarts must be at least 0, and restarts are for gpus, got {gpus} and {max_restarts}.")
    if not gpus or read_launch() is not None:
        return
    if device not in ("auto", "cuda"):
        raise ValueError(
            f"--gpus {gpus} is for GPUs, and the device is {device}. Processes on a CPU are started by `torchrun --standalone "
            f"--nproc-per-node {gpus} -m gpuvec ...`."
        )
    from gpuvec.engine.backends.device import parse_device

    try:
        parse_device(f"cuda:{gpus - 1}")
    except DeviceError as error:
        raise DeviceError(f"--gpus {gpus}: {error}") from error
    command = torchrun_command(sys.argv[1:], gpus, max_restarts)
    sys.stdout.flush()
    # One thread is enough beside a GPU, and torchrun warns unless the number is set.
    os.execve(command[0], command, {"OMP_NUM_THREADS": "1", **os.environ})  # noqa: S606  # a list of words, without a shell
