"""How a game of many agents is laid over a GPU: one function of its size, from one sweep on an H200 (design/0011)."""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.signature import Crowd

SMALL = 16  # agents up to which one kernel does all, with the state in shared memory
BLOCKS = 330  # blocks that keep all multiprocessors of a large GPU busy
TILE_BYTES = 28 << 10  # of shared memory for rows that are written out together


class Mapping(NamedTuple):
    """The shape of the launches."""

    envs: int  # per block
    threads: int  # per block
    split: bool  # whether a second kernel searches and a third writes the observations
    tile: int = 0  # rows that a block of the third stages in shared memory; 0: features go straight to their places
    writers: int = 256  # threads per block of the second and third


def mapping(crowd: Crowd, num_envs: int) -> Mapping:
    """The one for `num_envs` games."""
    (agents,) = crowd.agents
    if agents <= SMALL:
        return Mapping(envs=max(1, min(128 // agents, -(-num_envs // BLOCKS))), threads=128, split=False)
    threads = 128 if agents <= 128 else min(512, -(-agents // 128) * 128)
    rows = min(TILE_BYTES // (4 * crowd.features), 256)
    return Mapping(envs=max(1, threads // agents), threads=threads, split=True, tile=rows)
