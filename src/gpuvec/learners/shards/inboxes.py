"""Inboxes: memory of each GPU into which the kernels of all processes write, through PyTorch's symmetric memory.

NVLink or PCIe carry the writes. Multicast is not used.
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.shards.process_group import Processes


class Inboxes(NamedTuple):
    """The inboxes of all processes of a training."""

    own: Tensor
    """(N,) int64: the inbox of this process."""
    addresses: Tensor
    """(P,) int64: the addresses of the inboxes of the P processes in the memory of this GPU."""
    is_aborted: Tensor
    """(1,) int32 on the host: 1 ends the waits of kernels for words of other processes."""
    memory: Any = None
    """What keeps the memory of the other processes mapped."""


def make_inboxes(processes: Processes, num_words: int, device: str) -> Inboxes | str:
    """Returns inboxes of zeros, or the reason why the processes cannot write into each other's memory.

    All processes must call it, and all return the same kind of result.

    Args:
        processes: the processes of the training.
        num_words: N.
        device: "cuda:<index>", the GPU of this process.

    Raises:
        LostProcessError: another process ended.
    """
    if processes.size == 1:
        own = torch.zeros(num_words, dtype=torch.int64, device=device)
        return make_local_inboxes([own])[0]
    if reasons := _reasons_not_reachable(processes, device):
        return reasons[0]
    problem, inboxes = "", None
    try:
        inboxes = _map_inboxes(processes, num_words, device)
    except (RuntimeError, ImportError, AttributeError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
    # No process writes before the inboxes of all are zero.
    problems = [text for text in processes.gather_states(problem) if text]
    if problems or inboxes is None:
        return f"PyTorch has no symmetric memory of these GPUs ({problems[0]})"
    processes.groups.is_aborted.append(inboxes.is_aborted)
    return inboxes


def make_local_inboxes(own: list[Tensor]) -> list[Inboxes]:
    """Returns inboxes that are all in the memory of one GPU: for one process, or to test the kernels of several.

    Args:
        own: (N,) int64 zeros for each process.
    """
    addresses = torch.tensor([x.data_ptr() for x in own], dtype=torch.int64, device=own[0].device)
    return [Inboxes(x, addresses, _flag(own[0].is_cuda)) for x in own]


def _flag(is_pinned: bool) -> Tensor:
    """A number of the host, at an address that kernels of a GPU can read if it is pinned."""
    flag = torch.zeros(1, dtype=torch.int32)
    return flag.pin_memory() if is_pinned else flag


def _reasons_not_reachable(processes: Processes, device: str) -> list[str]:
    """Returns why the GPU of a process cannot write into the memory of that of another one, for each process that cannot."""
    index, host = torch.device(device).index, socket.gethostname()
    places = processes.gather_states({"host": host, "index": index})
    reason = ""
    if any(place["host"] != host for place in places):
        reason = "the GPUs are in several machines"
    else:
        others = [place["index"] for place in places if place["index"] != index]
        unreachable = [other for other in others if not torch.cuda.can_device_access_peer(index, other)]
        reason = f"GPU {index} cannot reach the memory of GPU {unreachable[0]}" if unreachable else ""
    return [text for text in processes.gather_states(reason) if text]


def _map_inboxes(processes: Processes, num_words: int, device: str) -> Inboxes:
    # A switch of NVLink may be shared with other programs, and multicast reserves resources of it that are not needed here.
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    from torch.distributed import _symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(num_words, dtype=torch.int64, device=torch.device(device))
    memory = symmetric_memory.rendezvous(own, processes.groups.device)
    own.zero_()
    torch.cuda.synchronize(device)
    # A tensor may begin behind the begin of the memory that was mapped, at the same offset in all processes.
    offset = own.data_ptr() - memory.buffer_ptrs[processes.rank]
    addresses = [address + offset for address in memory.buffer_ptrs]
    return Inboxes(own, torch.tensor(addresses, dtype=torch.int64, device=device), _flag(True), memory)
