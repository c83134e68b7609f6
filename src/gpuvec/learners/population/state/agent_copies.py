"""Copies of what agents learned, and of whether they were stopped, as one kernel.

By PyTorch's operations a copy of six tensors is twelve launches, which take the host longer than the copies take the GPU.

Letters: P agents, N parameters of an agent, C copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec

f32, i64 = np.float32, np.int64
ROWS = ("parameters", "exp_avg", "exp_avg_sq")  # (P, N) float32
COLUMNS = {"step": torch.float32, "stopped_at": torch.int64, "fault": torch.int64}  # (P,)


def make_agent_copy(ops: MemoryOps) -> DeviceFunction:
    """Returns the function that copies one parameter with its moments, and the numbers of the agent with its first parameter.

    Args:
        ops: the memory operations of the target.
    """
    load, store = ops.load, ops.store

    @inline_function
    def copy(b: Batch, index: int) -> None:
        size = i64(b.num_floats)
        number = i64(index) // size
        k = i64(index) - number * size
        target, origin = load(b.agents, number, i64), load(b.agents, i64(b.num_copies) + number, i64)
        write, read = target * size + k, origin * size + k
        store(b.parameters, write, load(b.parameters, read, f32), f32)
        store(b.exp_avg, write, load(b.exp_avg, read, f32), f32)
        store(b.exp_avg_sq, write, load(b.exp_avg_sq, read, f32), f32)
        if k == 0:
            store(b.step, target, load(b.step, origin, f32), f32)
            store(b.stopped_at, target, load(b.stopped_at, origin, i64), i64)
            store(b.fault, target, load(b.fault, origin, i64), i64)

    return copy


COPY = Elementwise("copies of agents", (*ROWS, *COLUMNS, "agents", "num_floats", "num_copies"), make_agent_copy)


def changed_agents(sources: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the agents that take what another one learned, in ascending order.

    Args:
        sources: (P,): the agent whose parameters each agent takes; the own number for one that keeps its own.
    """
    return np.flatnonzero(sources != np.arange(len(sources)))


class AgentCopier:
    """Copies agents in place.

    Args:
        device: "cpu" or "cuda:<index>".
        tensors: the tensors that are copied: those of `ROWS` and `COLUMNS`, by name.
        last_return: (P, E): returns of the last episodes, which become nan, because they are of what an agent has no longer.
    """

    def __init__(self, device: str, tensors: Mapping[str, Tensor], last_return: Tensor) -> None:
        self._launcher, self._tensors, self._last_return = ElementwiseLauncher(device), tensors, last_return
        shape = tuple(tensors["parameters"].shape)
        self._expected: dict[str, TensorSpec] = dict.fromkeys(ROWS, (shape, torch.float32))
        self._expected |= {name: (shape[:1], dtype) for name, dtype in COLUMNS.items()}

    def __call__(self, targets: NDArray[np.int64], origins: NDArray[np.int64]) -> None:
        """Copies agents, on a GPU asynchronously.

        Args:
            targets: (C,): the agents that are overwritten.
            origins: (C,): the agents that they take the place of, none of which is a target.
        """
        # From memory that is not pinned this copy is asynchronous, too: the driver has taken the numbers when it returns.
        agents = torch.from_numpy(np.stack([targets, origins])).to(self._launcher.tensor_device, non_blocking=True)
        num_floats, num_copies = self._expected["parameters"][0][1], len(targets)
        expected = {**self._expected, "agents": ((2, num_copies), torch.int64)}
        tensors = {**self._tensors, "agents": agents}
        self._launcher(COPY, num_copies * num_floats, tensors, expected, (num_floats, num_copies))
        self._last_return.index_fill_(0, agents[0], math.nan)
