"""Joins the processes of a training that torchrun started, and passes on why one of them ended."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import gpuvec
from gpuvec.errors import GpuvecError, LostProcessError, NonFiniteError, ProcessesError
from gpuvec.learners.shards.heartbeats import HeartbeatMonitor, connect_heartbeats, listen, resolve
from gpuvec.learners.shards.process_group import Groups, Processes
from gpuvec.learners.shards.torchrun import Launch, process_device, read_launch

START_SECONDS = 50.0  # within which all processes must have started
# Processes wait for each other's compilers, and for an evaluation of the first one. Those that hang are noticed by heartbeats.
EXCHANGE_SECONDS = 1800.0
FAILURE_SECONDS = 3.0  # within which a process that failed has said why
UNREACHED = "no other machine reaches it: give an address of the network as MASTER_ADDR, or correct /etc/hosts"
LAST_WORDS_SECONDS = 0.2  # within which this reaches the others after its end

_joined: Processes | None = None  # within `join_processes`
_default_joins = count()  # numbers the times that this process called `join_default_group`
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
    parent = os.getppid() if launch.run_id else None  # torchrun may have been killed
    monitor = HeartbeatMonitor(launch.rank, connect_heartbeats(launch, store, start_seconds), _end_exchanges, parent)
    try:
        _joined = _make_groups(launch, store, device)
        yield _joined
        monitor.say_goodbye()
    except BaseException as error:
        # The numbers of a training are wrong after exchanges were aborted.
        is_consequence = isinstance(error, RuntimeError | NonFiniteError) and not isinstance(error, ProcessesError)
        if isinstance(error, LostProcessError) or (monitor.loss and is_consequence):
            raise _reported_loss(error, store, launch, monitor) from error
        with suppress(RuntimeError):  # The process that has the store may be the one that ended.
            store.set(f"failed/{launch.rank}", " ".join(str(error).split()) or type(error).__name__)
        if isinstance(error, ProcessesError | NonFiniteError):  # which all processes raise
            monitor.say_goodbye()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if _joined is not None:
            _joined.groups.close()
            _joined = None
        monitor.close()


def _end_exchanges() -> None:
    """Ends exchanges that would wait for a process that is lost; the training may be about to close the groups."""
    joined = _joined
    with suppress(ValueError, RuntimeError):
        if joined is not None:
            joined.groups.abort()


def _reported_loss(error: BaseException, store: Any, launch: Launch, monitor: HeartbeatMonitor) -> LostProcessError:
    """Ends the exchanges of this process, and returns the error that says why the other process ended."""
    if _joined is not None:
        _joined.groups.abort()
    failed_rank, reason = _reason(store, launch, monitor)
    loss = LostProcessError(reason or monitor.loss or str(error))
    # The first process prints its own error.
    loss.is_first_alive = monitor.is_first_alive and failed_rank != 0
    return loss


def job_store(seconds: float = START_SECONDS) -> Any:
    """Returns the store of torchrun, which is the same when torchrun starts processes again; None if there is none.

    Args:
        seconds: within which it must be reached.

    Raises:
        ProcessesError: it is not reached.
    """
    launch = read_launch()
    return _common_store(launch, seconds) if launch is not None and _has_job_store() else None


def _has_job_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _common_store(launch: Launch, seconds: float) -> Any:
    """Returns the store of all processes: that of torchrun, or without torchrun one that the first process has."""
    is_host = launch.rank == 0 and not _has_job_store()
    timeout, begin = timedelta(seconds=seconds), time.monotonic()
    try:
        if not _stores:
            if not is_host:
                _wait_for_port(launch, seconds)
            address, own = launch.address, dict[str, Any]()
            if is_host:  # It listens at an address of MASTER_ADDR alone, and not in all networks.
                server = next(listen(_addresses_for_others(launch), launch.port))
                address, own = server.getsockname()[0], {"master_listen_fd": server.detach()}
            place = address, launch.port, launch.size
            store = dist.TCPStore(*place, is_host, timeout, wait_for_workers=False, **own)  # type: ignore[attr-defined]  # no stub
            _stores.append(store)
            if is_host:
                store.set("gpuvec/address", address)
    except (OSError, RuntimeError, ValueError) as error:
        place_text, seconds_text = f"{launch.address}:{launch.port}", f"{time.monotonic() - begin:.0f} s"
        if is_host:
            raise ProcessesError(f"the first process cannot listen at {place_text}: {error}.") from error
        raise ProcessesError(
            f"process {launch.rank} does not reach the first process at {place_text} within {seconds_text}."
        ) from error
    return _stores[0]


def _addresses_for_others(launch: Launch) -> list[str]:
    """Returns the addresses of MASTER_ADDR at which the first process may listen.

    Raises:
        OSError: other machines take part, and do not reach any of them.
    """
    addresses = resolve(launch.address)
    reached = [address for address in addresses if not _is_loopback(address)]
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    has_others = local_size.isdecimal() and int(local_size) < launch.size
    if not has_others or launch.address in ("localhost", *addresses):  # which the user chose
        return addresses
    if not reached:
        raise OSError(f"this machine knows its name {launch.address} as {', '.join(addresses)}, where {UNREACHED}")
    return reached


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _meet(launch: Launch, seconds: float) -> Any:
    """Returns the store through which the processes meet, when all of them have reached it."""
    common_store, timeout = _common_store(launch, seconds), timedelta(seconds=seconds)
    store = c10d.PrefixStore(f"gpuvec/{launch.restarts}/{len(_stores)}", common_store)
    _stores.append(store)
    store.set_timeout(timeout)
    store.set(f"started/{launch.rank}", "")
    with suppress(RuntimeError):
        store.wait([f"started/{rank}" for rank in range(launch.size)], timeout)
        return store
    try:
        missing = [str(rank) for rank in range(launch.size) if not store.check([f"started/{rank}"])]
    except RuntimeError as error:
        raise LostProcessError("another process of the training is lost: the first process ended at the start.") from error
    own = ""
    if launch.rank == 0 and not _has_job_store():
        address = common_store.get("gpuvec/address").decode()
        is_unreached = _is_loopback(address) and launch.address not in ("localhost", address)
        own = f" The first process listens at {address}{f', where {UNREACHED}' if is_unreached else ''}."
    raise ProcessesError(f"of {launch.size} processes {', '.join(missing)} did not start within {seconds:.0f} s.{own}")


def _wait_for_port(launch: Launch, seconds: float) -> None:
    """Waits until the first process listens. The store of torch.distributed would wait for twice the time that it is given.

    Raises:
        OSError: it does not listen within so many seconds.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((launch.address, launch.port), max(0.01, end - time.monotonic())).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _make_groups(launch: Launch, store: Any, device: str) -> Processes:
    """Makes the process groups, after a check that the processes fit together."""
    timeout = timedelta(seconds=EXCHANGE_SECONDS)
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=timeout)
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
    _make_device_group(processes, own_device)
    return processes


@contextmanager
def join_default_group(device: str, start_seconds: float = START_SECONDS) -> Iterator[Processes]:
    """Joins the processes of the default group of torch.distributed, which another library has made and keeps.

    Args:
        device: of this process, "cpu" or "cuda:<index>".
        start_seconds: within which all processes must have called this.

    Yields:
        The processes.

    Raises:
        ProcessesError: a process has another version, or another kind of device. All processes raise it.
        LostProcessError: another process ended.
    """
    host = dist.new_group(backend="gloo", timeout=timedelta(seconds=EXCHANGE_SECONDS))
    processes = Processes(dist.get_rank(), dist.get_world_size(), groups=Groups(host))
    launch = Launch(processes.rank, processes.size, 0, os.environ["MASTER_ADDR"], 0)
    store = c10d.PrefixStore(f"gpuvec/{next(_default_joins)}", c10d._get_default_store())
    monitor = HeartbeatMonitor(launch.rank, connect_heartbeats(launch, store, start_seconds), processes.groups.abort)
    try:
        _make_device_group(processes, device)
        yield processes
        monitor.say_goodbye()
    finally:
        if dist.is_initialized():
            for group in filter(None, (processes.groups.device, host)):
                dist.destroy_process_group(group)
        processes.groups.close()
        monitor.close()


def _make_device_group(processes: Processes, device: str) -> None:
    """Makes the group for tensors on the devices, after a check that all processes have the same versions and kind of device.

    Args:
        processes: the processes, which have the group of the host.
        device: of this process, "cpu" or "cuda:<index>".
    """
    versions = {"gpuvec": gpuvec.__version__, "python": platform.python_version(), "numpy": np.__version__}
    processes.require_equal({**versions, "torch": str(torch.__version__), "kind of device": device.partition(":")[0]})
    timeout = timedelta(seconds=EXCHANGE_SECONDS)
    if device == "cpu":
        processes.groups.device = dist.new_group(backend="gloo", timeout=timeout)
    else:
        torch.cuda.set_device(device)
        processes.groups.device = dist.new_group(backend="nccl", timeout=timeout, device_id=torch.device(device))


def _reason(store: Any, launch: Launch, monitor: HeartbeatMonitor) -> tuple[int | None, str]:
    """Returns the number of a process that said why it failed, and what it said; None and "" if there is none."""
    end = time.monotonic() + FAILURE_SECONDS
    with suppress(RuntimeError):
        while (seconds := end - time.monotonic()) > 0.0:
            for rank in range(launch.size):
                if store.check([f"failed/{rank}"]):
                    return rank, f"process {rank} failed: {store.get(f'failed/{rank}').decode()}"
            # A process says it before it ends.
            if monitor.loss and seconds > LAST_WORDS_SECONDS:
                end = time.monotonic() + LAST_WORDS_SECONDS
            time.sleep(0.02)
    return None, ""
