"""Reinforcement-learning environments whose batch is stored, stepped and trained on one GPU.

    import gymnasium, gpuvec
    envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=65_536)

Importing this package registers the bundled environments. It imports Gymnasium and NumPy; Numba, CuPy and PyTorch are
imported when an environment is created.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from gpuvec.angles import sincos, wrap
from gpuvec.drawing.canvas import AgentFields, Canvas
from gpuvec.fractions import fraction
from gpuvec.observations import Features, NearestNeighbors, Observation, Time
from gpuvec.phases import all_of, any_of, argmin_of, assign, count_of, each, max_of, min_of, sum_of
from gpuvec.random import Key, normal, randint, uniform
from gpuvec.registration import register
from gpuvec.spec import Bools, Floats, Int8s, Ints, MultiAgentEnv, SingleAgentEnv, UInt8s

if TYPE_CHECKING:
    from gpuvec.episode import fetch_episode
    from gpuvec.learners.autoscale import autoscale
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
    from gpuvec.vector.env import VectorEnv
    from gpuvec.vector.parallel import ParallelEnv

__all__ = [
    "AgentFields",
    "Bools",
    "Canvas",
    "Features",
    "Floats",
    "Int8s",
    "Ints",
    "Key",
    "MultiAgentEnv",
    "NearestNeighbors",
    "Observation",
    "SingleAgentEnv",
    "Time",
    "UInt8s",
    "VectorEnv",
    "all_of",
    "any_of",
    "argmin_of",
    "assign",
    "autoscale",
    "count_of",
    "each",
    "fetch_episode",
    "fraction",
    "load_policy",
    "max_of",
    "min_of",
    "normal",
    "parallel_env",
    "randint",
    "register",
    "sincos",
    "sum_of",
    "uniform",
    "wrap",
]  # fmt: skip

__version__ = "0.2.0"
# They import Numba or PyTorch.
LAZY_MODULES = {
    "VectorEnv": "gpuvec.vector.env",
    "autoscale": "gpuvec.learners.autoscale",
    "fetch_episode": "gpuvec.episode",
}


def parallel_env(id: str, **kwargs: Any) -> ParallelEnv:
    """Creates a registered multi-agent environment with PettingZoo's interface `ParallelEnv`, on the CPU by default.

    Args:
        id: the id of the environment, such as "gpuvec/TagContinuous-v0".
        kwargs: `device`, `render_mode`, `max_episode_steps` and the environment's own parameters.

    Raises:
        MissingExtraError: PettingZoo is not installed.
        AuthoringError: the environment has one agent.
    """
    env: ParallelEnv = importlib.import_module("gpuvec.vector.parallel").ParallelEnv(id, **kwargs)
    return env


def load_policy(name_or_path: str | os.PathLike[str], *, device: str = "cpu", seed: int = 0, body: Any = None) -> TrainedPolicy:
    """Returns a trained policy, whose method `act` returns actions for observations.

    Args:
        name_or_path: the name of a policy that comes with gpuvec, such as "CartPole-v1", or the path of a run folder, of a
            checkpoint or of a policy file. A name comes first: give a path with the same name as "./CartPole-v1".
        device: of its networks: "auto", "cpu", "cuda" or "cuda:1".
        seed: of the actions that are drawn with `stochastic=True`.
        body: the function that made the networks; None for the default.

    Raises:
        FileNotFoundError: there is no such policy; the message lists those that come with gpuvec.
        CheckpointError: the file is damaged, of another version, or names a module that is not imported.
        StateError: the file is of another network, or of other spaces than the environment has.
        MissingExtraError: safetensors is not installed.
    """
    module = importlib.import_module("gpuvec.learners.policy_files.trained_policy")
    contents, _ = module.load_contents(name_or_path)
    policy: TrainedPolicy = module.TrainedPolicy(contents, device, seed, body)
    return policy


def __getattr__(name: str) -> Any:
    if name in LAZY_MODULES:
        return getattr(importlib.import_module(LAZY_MODULES[name]), name)
    raise AttributeError(f"module 'gpuvec' has no attribute {name!r}")


# The bundled environments use only the public interface. They are imported by name, so that no layer depends on them.
importlib.import_module("gpuvec_envs")
