"""A model of the environment steps per second of a training on many GPUs, from its time on one GPU and from public figures.

An iteration on G GPUs takes as long as on one GPU with as many environments, and each exchange between the GPUs is added to it:
nothing overlaps with an exchange, and no GPU waits for a slower one. Within a node an exchange takes the time that NCCL was
measured to take on 8 H100. Between nodes it grows with the logarithm of their number, as NCCL's own model of a tree
(`ncclTopoTuneModel` in src/graph/tuning.cc of NVIDIA/nccl) says, by what was measured from one node to two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

GPUS_PER_NODE = 8
NVLINK = {
    128: 19.19, 1 << 10: 19.50, 1 << 14: 20.71, 1 << 15: 22.65, 1 << 16: 23.05, 1 << 17: 23.71, 1 << 18: 24.76, 1 << 19: 25.24,
    1 << 20: 32.42, 1 << 22: 59.43, 1 << 23: 90.51, 1 << 24: 135.68,
}  # fmt: skip
"""{bytes: microseconds} of an all-reduce by NCCL on 8 H100 of one node, github.com/ByteDance-Seed/Triton-distributed, issue 57;
without the 290.73 us of 2 MB, which is more than for 16 MB."""
TWO_NODES = {
    128: 29.67, 1 << 10: 31.29, 1 << 12: 43.17, 1 << 14: 34.55, 1 << 15: 35.64, 1 << 16: 37.55, 1 << 17: 53.08, 1 << 18: 63.33,
    1 << 19: 83.91, 1 << 20: 77.82, 1 << 22: 114.66, 1 << 23: 156.03, 1 << 24: 200.98, 1 << 25: 276.45, 1 << 26: 480.00,
}  # fmt: skip
"""{bytes: microseconds} of an all-reduce in place by NCCL on 2 nodes of 8 H100 with InfiniBand, nccl-tests in the documentation
of dstack for clusters of Nebius, github.com/dstackai/dstack."""
PEER_MEMORY = {512: 5.9, 1 << 12: 5.7, 1 << 15: 7.8, 1 << 18: 16.7, 1 << 19: 22.1, 1 << 20: 33.8}
"""{bytes: microseconds} of an all-reduce by one kernel that reads the memory of its 8 peers, H100 of one node,
github.com/sgl-project/sglang, pull request 2904. Inboxes, which are written into these memories, are taken to be as fast."""


class Exchange(NamedTuple):
    """An exchange between all GPUs."""

    num_bytes: int
    """The bytes of one GPU."""
    has_inboxes: bool = False
    """Whether the GPUs of one node write into each other's memory, as fused PPO does with gradients, in place of NCCL."""


class Workload(NamedTuple):
    """What one GPU does in an iteration of a training."""

    steps: int
    """Environment steps of an iteration, E * T."""
    iteration_us: float
    """The time of an iteration on one GPU, measured."""
    exchanges: tuple[Exchange, ...]
    """The exchanges of an iteration."""


class Prediction(NamedTuple):
    """What the model says of a number of GPUs."""

    steps_per_second: float
    efficiency: float  # the speed of a GPU relative to one GPU alone


def interpolate(table: Mapping[int, float], num_bytes: float) -> float:
    """Returns the time in a table of ascending sizes: linear between two sizes, constant below the first one.

    Above the last size the time grows as between the last two.

    Args:
        table: {bytes: microseconds}.
        num_bytes: the size.
    """
    points = list(table.items())
    if num_bytes <= points[0][0]:
        return points[0][1]
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if num_bytes <= pair[1][0]), tuple(points[-2:]))
    return y0 + (y1 - y0) * (num_bytes - x0) / (x1 - x0)


def exchange_us(exchange: Exchange, gpus: int, in_order: bool = False) -> float:
    """Returns the microseconds of an exchange.

    Args:
        exchange: what is exchanged.
        gpus: G, 1 or more; up to 8 are in one node.
        in_order: whether the GPUs gather the numbers of all of them, to add them in a fixed order. An all-gather of B bytes in
            total is taken to last as long as an all-reduce of B bytes, which moves twice as much. Inboxes have this order
            anyway.
    """
    if gpus == 1:
        return 0.0
    nodes = math.ceil(gpus / GPUS_PER_NODE)
    if nodes == 1 and exchange.has_inboxes:
        return interpolate(PEER_MEMORY, exchange.num_bytes)
    total = exchange.num_bytes * gpus if in_order else exchange.num_bytes
    one, two = interpolate(NVLINK, total), interpolate(TWO_NODES, total)
    return one + (two - one) * math.log2(nodes)


def predict(workload: Workload, gpus: int, in_order: bool = False, scale: float = 1.0) -> Prediction:
    """Predicts a training in which each GPU has as many environments as one GPU alone.

    Args:
        workload: what one GPU does.
        gpus: G.
        in_order: as in `exchange_us`.
        scale: measured times of exchanges over those of the tables.
    """
    exchanges = sum(exchange_us(exchange, gpus, in_order) for exchange in workload.exchanges)
    efficiency = workload.iteration_us / (workload.iteration_us + scale * exchanges)
    return Prediction(gpus * workload.steps / workload.iteration_us * 1e6 * efficiency, efficiency)
