"""A shard of a training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of the equal parts into which the environments of a training are divided.

    A shard computes its rows alone, whatever process has it, so that the results do not depend on the number of processes.
    """

    index: int = 0
    """Its environments begin at `index` times their number in the numbering of all environments."""
    count: int = 1
    """The number of shards of the training."""
    leads: bool = True
    """Whether it is the first shard of its process: it alone writes what the shards of a process share, such as the network."""
