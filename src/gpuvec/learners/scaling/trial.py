"""A trial of a training: its environment steps per second, and the memory that it takes.

Letters: E environments, T steps.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import NamedTuple

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.backends.host_memory import peak_resident_bytes, resident_bytes
from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.config.training_config import DDPGArgs, TrainingArgs
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.learner import Learner
from gpuvec.learners.policy_configs import Bodies, PolicyConfig, PolicyConfigs, shared_settings
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.sharding import require_divisible
from gpuvec.learners.training import open_learner

WARM_UP_ITERATIONS = 2
ENDLESS = 2**62  # steps, so that values that change over a training stay near their first


class Trial(NamedTuple):
    """A number of environments and of steps, and what was measured with them."""

    num_envs: int
    num_steps: int
    steps_per_second: float | None = None
    """Environment steps per second of whole iterations; None if the trial was not run."""
    num_bytes: int | None = None
    """The largest memory of the process; None if the trial was not run, or if the system does not report it."""
    reason: str = ""
    """Why the trial was not run."""
    is_too_large: bool = False
    """Whether it was not run because of the memory."""


def run_trial(
    policies: PolicyConfigs, num_envs: int, num_steps: int, seconds: float, body: Bodies = None, shards: int = 1
) -> Trial:
    """Trains for some seconds in this process alone, and measures it.

    Args:
        policies: {role: policy}, whose device is known.
        num_envs: E.
        num_steps: T.
        seconds: the shortest time of the iterations that are measured.
        body: as in `train`.
        shards: the number of parts of the environments.
    """
    trial = Trial(num_envs, num_steps)
    try:
        configs = {role: _at_size(config, num_envs, num_steps) for role, config in policies.items()}
        require_divisible(configs, shards, Processes())
    except ValueError as error:  # settings that do not fit each other, such as minibatches that do not divide the samples
        return trial._replace(reason=str(error))
    args = shared_settings(configs)
    free_caches(args.device)
    try:
        with torch_settings(args.device, args.threads), open_learner(configs, body, shards) as learner:
            if args.device != "cpu":
                learner.capture()
            speed = args.steps_per_iteration / _seconds_per_iteration(learner, seconds)
            return trial._replace(steps_per_second=speed, num_bytes=_peak_bytes(args.device))
    except OutOfMemoryError as error:  # raised before anything is allocated
        return trial._replace(reason=str(error), is_too_large=True)


def _at_size(config: PolicyConfig, num_envs: int, num_steps: int) -> PolicyConfig:
    """Returns the settings of a policy for a size; policies that do not learn have none.

    DDPG is measured with its gradient steps, which otherwise begin later.
    """
    if not isinstance(config, TrainingArgs):
        return config
    config = replace(config, num_envs=num_envs, num_steps=num_steps, total_steps=ENDLESS, target_return=None)
    return replace(config, learning_starts=0) if isinstance(config, DDPGArgs) else config


def _seconds_per_iteration(learner: Learner, seconds: float) -> float:
    """Returns the time of an iteration: that of as many iterations, twice as many each time, as take `seconds`."""
    count = WARM_UP_ITERATIONS
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            learner.iterate()
        learner.read()  # waits for the device
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds and count > WARM_UP_ITERATIONS:
            return elapsed / count
        count *= 2


def _peak_bytes(device: str) -> int | None:
    """Returns the largest memory that this process has had: on a GPU since `free_caches`, on a CPU since its start."""
    parsed = parse_device(device)
    if parsed.kind == "cuda":
        return torch.cuda.max_memory_reserved(parsed.ordinal) + parsed.pooled_bytes()
    return peak_resident_bytes()


def process_bytes(device: str) -> int:
    """Returns the memory that this process has now, as `Trial.num_bytes` counts it; 0 if the system does not report it.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    parsed = parse_device(device)
    if parsed.kind == "cuda":
        return torch.cuda.memory_reserved(parsed.ordinal) + parsed.pooled_bytes()
    return resident_bytes() or 0


def free_caches(device: str) -> None:
    """Frees objects without references and memory that allocators keep, and forgets the largest memory of a GPU so far.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    gc.collect()
    parsed = parse_device(device)
    if parsed.kind == "cuda":
        torch.cuda.empty_cache()
        with parsed.current():
            parsed.arrays.get_default_memory_pool().free_all_blocks()
        torch.cuda.reset_peak_memory_stats(parsed.ordinal)
