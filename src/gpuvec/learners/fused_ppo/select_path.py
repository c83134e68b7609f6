"""The choice between fused kernels and PyTorch operations for PPO, with the reason where kernels cannot be used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.fused_ppo.network_shape import make_network_shape
from gpuvec.learners.networks.actor_critic import ActorCritic

if TYPE_CHECKING:
    from gpuvec.learners.fused_ppo.fused_update import FusedUpdate

logger = logging.getLogger(__name__)
MIN_COMPUTE_CAPABILITY = (8, 0)  # of the instructions that the kernels use


def select_update(
    args: PPOArgs, network: ActorCritic, optimizer: Adam, reward: Tensor, masked: bool, *scalars: Tensor
) -> FusedUpdate | None:
    """Returns the fused update of a policy, or None if PyTorch operations are to be used; the reason is logged.

    Args:
        args: the settings, resolved; `args.fused` is True, False or "auto".
        network: the policy, whose parameters `FusedUpdate` moves.
        optimizer: its optimiser, whose moments `FusedUpdate` moves.
        reward: (T, R) float32, of which only the shape is read.
        masked: whether samples have a mask.
        scalars: learning rate, entropy coefficient and iteration, () each, as `FusedUpdate` takes them.

    Raises:
        ValueError: `fused=True`, and the kernels cannot be used.
    """
    if args.fused is False:
        return None
    reason = _unsupported_device(args)
    if not reason:
        shape = make_network_shape(network, args, masked)
        if isinstance(shape, str):
            reason = shape
        else:
            # Imported here because it imports the CUDA compiler, which a CPU does not need.
            from gpuvec.learners.fused_ppo.fused_update import FusedUpdate, reason_too_large

            reason = reason_too_large(shape, args)
            if not reason:
                return FusedUpdate(shape, args, network, optimizer, reward.numel(), *scalars)
    if args.fused is True:
        raise ValueError(f'fused=True, but the fused kernels cannot be used: {reason}. Use fused="auto", or change that.')
    logger.info("PPO uses PyTorch operations: %s.", reason)
    return None


def _unsupported_device(args: PPOArgs) -> str:
    if not args.device.startswith("cuda"):
        return f"the device is {args.device}, and the kernels need a GPU"
    if torch.cuda.get_device_capability(args.device) < MIN_COMPUTE_CAPABILITY:
        return "the kernels need compute capability {}.{}".format(*MIN_COMPUTE_CAPABILITY)
    return ""
