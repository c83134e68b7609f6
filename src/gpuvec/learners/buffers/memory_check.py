"""Whether the device has the memory that a learner stores its tensors in, asked before any of them is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import OutOfMemoryError

FLOAT32_BYTES = 4  # bytes


def rollout_bytes(env: Any, steps: int) -> int:
    """Bytes of a rollout of `steps` steps of all environments of `env`, as `rollout.Rollout` stores it."""
    shape: Sequence[int] = env.single_observation_space.shape
    many = len(shape) == 2
    agents = shape[0] if many else 1
    observations = (2 * steps + 1) * math.prod(shape) * FLOAT32_BYTES
    numbers = steps * agents * (FLOAT32_BYTES + 2 * many)  # the reward, and two flags of an agent
    return int(env.num_envs) * (observations + numbers + 3 * steps + 1)


def require_memory(device: str, needed: int, what: str) -> None:
    """Raises unless `needed` bytes are free on `device`: "cpu" or "cuda:<index>".

    Args:
        device: where the tensors will be.
        needed: bytes.
        what: the subject of the message, such as "a rollout of 32 steps of 4,096 environments".

    Raises:
        OutOfMemoryError: they are not; the message names the bytes that are needed and those that are free.
    """
    place = parse_device(device)
    free = place.free_bytes()
    if free is None:
        return
    if place.kind == "cuda":  # what torch has taken from the device and does not use
        free += torch.cuda.memory_reserved(place.ordinal) - torch.cuda.memory_allocated(place.ordinal)
    if needed > free:
        raise OutOfMemoryError(
            f"{what} needs {needed:,} bytes on {place}, where {free:,} are free; use fewer environments or steps, or free some."
        )
