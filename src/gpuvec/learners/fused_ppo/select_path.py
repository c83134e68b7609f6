"""The choice between fused kernels and PyTorch operations for PPO."""

from __future__ import annotations

import logging

import torch

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.network_shape import NetworkShape, make_network_shape
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.policy import PolicyContext
from gpuvec.learners.ppo import PPO

logger = logging.getLogger(__name__)
MIN_COMPUTE_CAPABILITY = (8, 0)  # of the instructions that the kernels use


def make_ppo(args: PPOArgs, context: PolicyContext, network: ActorCritic) -> OnPolicy:
    """Returns a policy that learns by PPO, by fused kernels if they support it; otherwise the reason is logged.

    On a GPU the loss behind other networks is one kernel too, if the actions are discrete.

    Args:
        args: the settings, resolved; `args.fused` is True, False or "auto".
        context: spaces, rollout and role of the policy.
        network: the policy and the value function.

    Raises:
        ValueError: `fused=True`, and the kernels cannot be used.
        OutOfMemoryError: the buffer of a rollout does not fit into the memory that is free.
    """
    if args.fused is False:
        return PPO(args, context, network)
    shape = _supported_shape(args, context, network)
    if not isinstance(shape, str):
        # Imported here because it imports the CUDA compiler, which a CPU does not need.
        from gpuvec.learners.fused_ppo.fused_policy import FusedPPO

        return FusedPPO(args, context, network, shape)
    if args.fused is True:
        raise ValueError(f'fused=True, but the fused kernels cannot be used: {shape}. Use fused="auto", or change that.')
    logger.info("PPO uses PyTorch operations: %s.", shape)
    if _reason_of_functions(context) or _reason_without_kernels(args, context):
        return PPO(args, context, network)
    from gpuvec.learners.fused_ppo.fused_loss import FusedLoss, reason_not_supported

    count = context.shard.count
    reason = f"there are {count} shards, whose advantages its kernel does not pool" if count > 1 else ""
    if reason := reason or reason_not_supported(network, args):
        logger.info("The loss is not fused: %s.", reason)
        return PPO(args, context, network)
    return PPO(args, context, network, FusedLoss(network, args, context.rollout.num_agents is not None))


def _reason_without_kernels(args: PPOArgs, context: PolicyContext) -> str:
    """Returns why none of the kernels can be used, or "" if they can."""
    if not args.device.startswith("cuda"):
        return f"the device is {args.device}, and the kernels need a GPU"
    if torch.cuda.get_device_capability(args.device) < MIN_COMPUTE_CAPABILITY:
        return "the kernels need compute capability {}.{}".format(*MIN_COMPUTE_CAPABILITY)
    return ""


def _reason_of_functions(context: PolicyContext) -> str:
    """Returns why the kernels cannot be used with functions of the user, or "" without any."""
    names = [name for name, value in (("loss", context.loss), ("metrics", context.metrics)) if value]
    return f"{' and '.join(names)} of your own need PyTorch operations, which the kernels do not run" if names else ""


def _supported_shape(args: PPOArgs, context: PolicyContext, network: ActorCritic) -> NetworkShape | str:
    """Returns the shape of `network`, or the reason why the kernels cannot be used."""
    if reason := _reason_of_functions(context) or _reason_without_kernels(args, context):
        return reason
    if hasattr(getattr(network, "body", None), "allowed"):
        return "the network has an action mask of its own"
    if context.critic_space is not None:
        return "the environment has observations of a critic, which the kernels do not read"
    shape = make_network_shape(network, args, context.rollout.num_agents is not None, context.has_action_mask)
    if isinstance(shape, str):
        return shape
    # Imported here because it imports the CUDA compiler, too.
    from gpuvec.learners.fused_ppo.pooled_update import reason_too_large

    return reason_too_large(shape, args, context.shard.count) or shape
