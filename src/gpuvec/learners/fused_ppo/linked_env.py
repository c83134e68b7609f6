"""The functions of an environment for a kernel that steps it, and the members of its batch.

Letters: T steps, R rows, D observation features.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions, link_env_functions
from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.layout.buffers import batch_members


def link_env(
    env: Any, final_obs: Tensor, final_mask: Tensor, has_shared_envs: bool = False
) -> tuple[LinkedFunctions, dict[str, int]]:
    """Returns the linked functions of an environment, and {name: value} of the members of its batch for a kernel's arguments.

    Args:
        env: the `VectorEnv`, with one agent and autoreset mode SAME_STEP.
        final_obs: (R, D) or (T, R, D) float32, receives final observations, at the row that the kernel passes with a step.
        final_mask: (R,) or (T, R) bool, receives whether the episode ended, at the same row.
        has_shared_envs: as in `link_env_functions`.
    """
    simulation, device = env.simulation, parse_device(env.device)
    capability = torch.cuda.get_device_capability(env.device)
    with device.current():
        options = simulation.options._replace(validate=False)
        functions = link_env_functions(simulation.spec.with_options(options), capability, has_shared_envs)
    arrays = {"final_obs": final_obs, "final_mask": final_mask}
    addresses = (arrays[k].data_ptr() if k in arrays else 0 for k in simulation.layout.outputs)
    outputs = b"".join(address.to_bytes(8, "little") for address in addresses)
    batch = batch_members(simulation.buffer_addresses, outputs, env.num_envs)
    return functions, {f"env_{name}": value for name, value in zip(functions.members, batch, strict=True)}


def bounds_and_starts(space: gym.Space[Any], components: int, device: str) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    """Returns the bounds of a continuous action, {"low", "high"}, and the smallest value of each component of a discrete one.

    Args:
        space: of the actions of one row.
        components: of an action.
        device: of the bounds.
    """
    if isinstance(space, gym.spaces.Box):
        low, high = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (space.low, space.high))
        return {"low": low, "high": high}, (0,) * components
    if isinstance(space, gym.spaces.Discrete):
        return {}, (int(space.start),)
    assert isinstance(space, gym.spaces.MultiDiscrete), "of numbers or of choices"
    return {}, tuple(map(int, space.start))
