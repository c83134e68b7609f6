"""Joins the processes of a training that torchrun started, and passes on why one of them ended."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import gpuvec
from gpuvec.errors import GpuvecError, LostProcessError, ProcessesError
from gpuvec.learners.shards.process_group import Groups, Processes
from gpuvec.learners.shards.torchrun import Launch, process_device, read_launch

START_SECONDS = 60.0  # within which all processes must have started
# A process that stopped without closing its connections is noticed after this.
EXCHANGE_SECONDS = 50.0
# The processes wait for each other's compilers, and for an evaluation of the first process, in the group of the host.
HOST_SECONDS = 1800.0
FAILURE_SECONDS = 3.0  # within which a process that failed has said why

_joined: Processes | None = None  # within `join_processes`
_stores: list[Any] = []  # the store of each time that this process joined the others, all in the first one


@contextmanager
def join_processes(device: str, start_seconds: float = START_SECONDS) -> Iterator[Processes]:
    """Joins the processes that torchrun started; a process that it did not start is alone.

    Within the block a second call yields the same processes.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1", the same for all processes.
        start_seconds: within which all processes must have started.

    Yields:
        The processes.

    Raises:
        ProcessesError: a process is missing, has another version, or lacks its GPU. All processes raise it.
        LostProcessError: another process ended. In the first process the message says why, if the other one said so.
    """
    global _joined
    launch = read_launch()
    if launch is None or _joined is not None:
        yield _joined or Processes()
        return
    store = _meet(launch, start_seconds)
    try:
        _joined = _make_groups(launch, store, device)
        yield _joined
    except LostProcessError as error:
        if _joined is not None:
            _joined.groups.abort()
        reported = LostProcessError(_reason(store, launch) or str(error))
        reported.is_first_alive = _is_first_alive(store, launch)
        raise reported from error
    except BaseException as error:
        _publish(store, f"failed/{launch.rank}", " ".join(str(error).split()) or type(error).__name__)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if _joined is not None:
            _joined.groups.close()
            _joined = None


def _meet(launch: Launch, seconds: float) -> Any:
    """Returns the store through which the processes meet, when all of them have reached it."""
    # torchrun has a store of its own, and the first process has it without torchrun. A restart of torchrun has the same store.
    is_host = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    timeout = timedelta(seconds=seconds)
    try:
        if not _stores:
            place = launch.address, launch.port, launch.size
            _stores.append(dist.TCPStore(*place, is_host, timeout, wait_for_workers=False))  # type: ignore[attr-defined]  # no stub
    except (RuntimeError, ValueError) as error:
        raise ProcessesError(
            f"process {launch.rank} does not reach the first process at {launch.address}:{launch.port} within {seconds:.0f} s."
        ) from error
    store = c10d.PrefixStore(f"gpuvec/{launch.restarts}/{len(_stores)}", _stores[0])
    _stores.append(store)
    store.set_timeout(timeout)
    store.set(f"started/{launch.rank}", "")
    with suppress(RuntimeError):
        store.wait([f"started/{rank}" for rank in range(launch.size)], timeout)
        return store
    missing = [str(rank) for rank in range(launch.size) if not store.check([f"started/{rank}"])]
    raise ProcessesError(f"of {launch.size} processes {', '.join(missing)} did not start within {seconds:.0f} s.")


def _make_groups(launch: Launch, store: Any, device: str) -> Processes:
    """Makes the process groups, after a check that the processes fit together."""
    seconds = timedelta(seconds=HOST_SECONDS)
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=seconds)
    processes = Processes(launch.rank, launch.size, groups=Groups(dist.group.WORLD))
    problem, own_device = "", "cpu"
    try:
        own_device = process_device(device)
        if own_device != "cpu" and not dist.is_nccl_available():
            problem = "several processes on GPUs need NCCL, which this PyTorch does not have; CUDA graphs cannot contain gloo."
    except (GpuvecError, ValueError) as error:
        problem = str(error)
    if problems := [text for text in processes.gather_states(problem) if text]:
        raise ProcessesError(problems[0])
    versions = {"gpuvec": gpuvec.__version__, "python": platform.python_version(), "numpy": np.__version__}
    processes.require_equal({**versions, "torch": str(torch.__version__), "kind of device": own_device.partition(":")[0]})
    timeout = timedelta(seconds=EXCHANGE_SECONDS)
    if own_device == "cpu":
        processes.groups.device = dist.new_group(backend="gloo", timeout=timeout)
    else:
        torch.cuda.set_device(own_device)
        processes.groups.device = dist.new_group(backend="nccl", timeout=timeout, device_id=torch.device(own_device))
    return processes


def _publish(store: Any, name: str, text: str) -> None:
    with suppress(RuntimeError):  # The process that has the store may be the one that ended.
        store.set(name, text)


def _reason(store: Any, launch: Launch) -> str:
    """Returns why another process failed, if it said so; "" otherwise."""
    end = time.monotonic() + FAILURE_SECONDS
    with suppress(RuntimeError):
        while time.monotonic() < end:
            for rank in range(launch.size):
                if store.check([f"failed/{rank}"]):
                    return f"process {rank} failed: {store.get(f'failed/{rank}').decode()}"
            time.sleep(0.05)
    return ""


def _is_first_alive(store: Any, launch: Launch) -> bool:
    """Returns whether no process with a lower number noticed the loss, too, so that this one has to report it."""
    _publish(store, f"lost/{launch.rank}", "")
    end = time.monotonic() + FAILURE_SECONDS
    with suppress(RuntimeError):
        while time.monotonic() < end:
            if any(store.check([f"lost/{rank}"]) for rank in range(launch.rank)):
                return False
            time.sleep(0.05)
    return True
