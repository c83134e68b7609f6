"""Wrappers of vector environments that compute on the device; no step waits for the host, with any framework.

Arrays are those that the wrapped environment returns (PyTorch, NumPy, CuPy or JAX). All autoreset modes are supported, and
`step(actions, out={...})` reaches the environment. On PyTorch and CuPy a wrapped step can be captured into a CUDA graph after
one step without a graph, because all state is stored in buffers that are updated in place.
"""

from gpuvec.vector.wrappers.base import StatefulWrapper, Wrapper, WrapperError
from gpuvec.vector.wrappers.flatten_agents import FlattenAgents
from gpuvec.vector.wrappers.normalize import NormalizeObservation, NormalizeReward
from gpuvec.vector.wrappers.record_episode_statistics import EpisodeSummary, RecordEpisodeStatistics
from gpuvec.vector.wrappers.transform import ClipAction, ClipReward, RescaleAction, ToNumpy

__all__ = [
    "ClipAction",
    "ClipReward",
    "EpisodeSummary",
    "FlattenAgents",
    "NormalizeObservation",
    "NormalizeReward",
    "RecordEpisodeStatistics",
    "RescaleAction",
    "StatefulWrapper",
    "ToNumpy",
    "Wrapper",
    "WrapperError",
]
