"""Checks, before tensors are allocated, whether the device has memory for them."""

from __future__ import annotations

import math

import gymnasium as gym
import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.buffers.env_rollout import action_mask_shape
from gpuvec.learners.environments import TrainingEnv, critic_space_of_agent, is_multi_agent
from gpuvec.learners.networks.actor_critic import obs_dtype

FLOAT32_BYTES = 4


def rollout_bytes(env: TrainingEnv, num_steps: int) -> int:
    """Returns the bytes of a rollout of all environments, as `EnvRollout` stores it if policies do not read it in place.

    Args:
        env: the environment.
        num_steps: T.

    Raises:
        ValueError: masks for an action space that has none.
    """
    space, has_agents, mask_shape = env.single_observation_space, is_multi_agent(env), action_mask_shape(env)
    agents = env.unwrapped.num_agents if has_agents else 1
    spaces = space.values() if isinstance(space, gym.spaces.Dict) else [space]
    observations = (2 * num_steps + 1) * sum(math.prod(part.shape or ()) * obs_dtype(part).itemsize for part in spaces)
    # The reward; with many agents also three flags, and the one that says whether an episode continues.
    per_agent = agents * (num_steps * (FLOAT32_BYTES + 3 * has_agents) + has_agents)
    mask_shapes = mask_shape.values() if isinstance(mask_shape, dict) else [] if mask_shape is None else [mask_shape]
    action_masks = (num_steps + 1) * sum(map(math.prod, mask_shapes))
    critic_space = critic_space_of_agent(env)
    if critic_space is not None:
        observations += (2 * num_steps + 1) * agents * critic_space.shape[0] * FLOAT32_BYTES
    metrics = num_steps * FLOAT32_BYTES * len(env.unwrapped.metric_names)
    return env.num_envs * (observations + action_masks + per_agent + metrics + 3 * num_steps + 1)


def require_memory(device: str, needed: int, subject: str) -> None:
    """Checks that `needed` bytes are free on `device`.

    Args:
        device: "cpu" or "cuda:<index>".
        needed: bytes.
        subject: what needs them, for the message, such as "a rollout of 32 steps of 4,096 environments".

    Raises:
        OutOfMemoryError: they are not free; the message says how many bytes are needed and how many are free.
    """
    free = free_bytes(device)
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"{subject} needs {needed:,} bytes on {parse_device(device)}, where {free:,} are free; use fewer environments or "
            "steps, or free some."
        )


def free_bytes(device: str) -> int | None:
    """Returns the bytes that are free on `device`, "cpu" or "cuda:<index>"; None if that is not known."""
    parsed = parse_device(device)
    free = parsed.free_bytes()
    # Memory that torch's allocator has reserved and no tensor uses is free, too.
    if free is not None and parsed.kind == "cuda":
        free += torch.cuda.memory_reserved(parsed.ordinal) - torch.cuda.memory_allocated(parsed.ordinal)
    return free
