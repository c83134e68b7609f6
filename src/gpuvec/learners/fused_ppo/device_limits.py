"""Whether the kernels of an update fit on a GPU."""

from __future__ import annotations

import torch

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_update import make_update_config, update_kernels
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec.learners.fused_ppo.pooled_update import pooled_kernels


def reason_too_large(shape: NetworkShape, args: PPOArgs, num_shards: int = 1) -> str:
    """Returns why the kernels do not fit on the device, or "" if they do.

    Args:
        shape: of the network.
        args: the settings, resolved.
        num_shards: shards of the training.
    """
    device, properties = parse_device(args.device), torch.cuda.get_device_properties(args.device)
    available = nvrtc.max_shared_memory(device)
    if shape.shared_bytes > available:
        needed = f"a block of the gradient needs {shape.shared_bytes:,} bytes of shared memory"
        return f"{needed}; {properties.name} has {available:,}"
    minibatch_size = args.steps_per_iteration // num_shards // args.num_minibatches
    config = make_update_config(shape, minibatch_size, properties.multi_processor_count)
    # The blocks of the optimiser wait for each other.
    kernels = update_kernels(shape, config) if num_shards == 1 else pooled_kernels(shape, config, num_shards, 1, True)
    if config.optimizer_blocks > nvrtc.max_resident_blocks(kernels["optimizer"], device):
        return f"the optimiser's {config.optimizer_blocks} blocks do not run on {properties.name} at the same time"
    return ""
