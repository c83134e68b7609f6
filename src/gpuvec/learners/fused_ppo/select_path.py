"""Whether PPO learns by the fused kernels, and why not where it does not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.fused_ppo.network_shape import shape_of
from gpuvec.learners.networks.actor_critic import ActorCritic

if TYPE_CHECKING:
    from gpuvec.learners.fused_ppo.fused_update import Update

logger = logging.getLogger(__name__)
CAPABILITY = (8, 0)  # that the kernels' instructions need


def fused_update(
    args: PPOArgs, network: ActorCritic, optimizer: Adam, reward: Tensor, masked: bool, *scalars: Tensor
) -> Update | None:
    """The fused update of a policy if `args.fused` wants it and it fits; None for torch's operations. The log tells why.

    Args:
        args: the settings, resolved.
        network, optimizer: as `Update` takes them, which moves their tensors.
        reward: (T, R), for its shape.
        masked: whether some samples do not count.
        scalars: learning rate, entropy weight and iteration, as `Update` takes them.

    Raises:
        ValueError: `fused=True`, and it does not fit.
    """
    if args.fused is False:
        return None
    reason = _no_device_for_it(args)
    if not reason:
        shape = shape_of(network, args, masked)
        if isinstance(shape, str):
            reason = shape
        else:
            from gpuvec.learners.fused_ppo.fused_update import (  # the compiler for CUDA, which a CPU does without
                Update,
                too_large,
            )

            reason = too_large(shape, args)
            if not reason:
                return Update(shape, args, network, optimizer, reward.numel(), *scalars)
    if args.fused is True:
        raise ValueError(f"fused=True asks for what is not there: {reason}. Leave it at auto, or change that.")
    logger.info("PPO learns by torch's operations: %s.", reason)
    return None


def _no_device_for_it(args: PPOArgs) -> str:
    if not args.device.startswith("cuda"):
        return f"the device is {args.device}, and the kernels are for GPUs"
    if torch.cuda.get_device_capability(args.device) < CAPABILITY:
        return "the kernels need compute capability {}.{}".format(*CAPABILITY)
    return ""
