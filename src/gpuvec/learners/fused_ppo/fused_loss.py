"""The loss of PPO for networks that PyTorch computes: one kernel behind them instead of about a hundred small operations.

Letters: B samples of a minibatch, N outputs of the policy, K components of an action.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.fused_ppo.network_shape import HIDDEN_SIZES, MAX_OUTPUTS, NUM_SUMS, SOURCE_FOLDER, NetworkShape
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.distributions import Gaussian

BLOCKS_PER_MULTIPROCESSOR = 4
MAX_LOSS_OUTPUTS, MAX_LOSS_HEADS = 1024, 64
OBJECTIVE_MEMBERS = {
    "logits": "const float*", "value": "const float*", "action": "const long long*", "log_prob": "const float*",
    "advantage": "const float*", "target": "const float*", "mask": "const bool*", "num_active": "const long long*",
    "advantage_variance": "const float*", "advantage_mean": "const float*", "ent_coef": "const float*",
    "logits_gradient": "float*", "value_gradient": "float*", "block_sums": "float*", "num_finished_blocks": "unsigned*",
    "metrics": "float*", "loss": "float*", "num_samples": "i64", "logits_stride": "i64", "value_stride": "i64",
    "clip": "double", "vf_coef": "double",
}  # fmt: skip


def objective_kernel(head_sizes: tuple[int, ...], has_mask: bool, clip_value: bool) -> CudaSource:
    """Returns the kernel.

    Args:
        head_sizes: number of choices of each component of an action.
        has_mask: whether samples have a mask.
        clip_value: whether changes of the value are clipped.
    """
    shape = NetworkShape(0, HIDDEN_SIZES[0], 1, sum(head_sizes), len(head_sizes), head_sizes, False, has_mask, clip_value)
    offsets = [sum(head_sizes[:k]) for k in range(len(head_sizes))]
    constants = shape.constants | {"ROW_PER_WARP": int(shape.outputs > MAX_OUTPUTS)}
    constants |= {"HEAD_OFFSETS": "{" + ", ".join(map(str, offsets)) + "}"}
    names = tuple(OBJECTIVE_MEMBERS.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / "objective.cu", "objective", *names, 32 * shape.warps)


def reason_not_supported(network: ActorCritic, args: PPOArgs) -> str:
    """Returns why the kernel does not support the policy of `network` with the settings `args`, or "" if it does."""
    if args.compile:
        return "compile=True compiles the loss of PyTorch operations"
    if not (network.discrete or network.sizes):
        return "the policy is Gaussian"
    sizes = _head_sizes(network)
    if sum(sizes) > MAX_LOSS_OUTPUTS or len(sizes) > MAX_LOSS_HEADS:
        supported = f"{MAX_LOSS_OUTPUTS:,} and {MAX_LOSS_HEADS} are supported"
        return f"there are {sum(sizes):,} outputs of the policy in {len(sizes)} components of an action; {supported}"
    return ""


class FusedLoss:
    """Computes what `ppo.ppo_loss` computes, for discrete actions on a GPU.

    Args:
        network: the policy and the value function.
        args: the settings, resolved.
        has_mask: whether samples have a mask.
    """

    def __init__(self, network: ActorCritic, args: PPOArgs, has_mask: bool) -> None:
        kernel = objective_kernel(_head_sizes(network), has_mask, args.clip_value)
        self.launch = make_tensor_launcher(kernel, parse_device(args.device))
        self.rows_per_block = kernel.threads // (32 if network.num_outputs > MAX_OUTPUTS else 4)  # lanes of a row
        multiprocessors = torch.cuda.get_device_properties(args.device).multi_processor_count
        self.max_blocks = BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        self.block_sums = torch.zeros(self.max_blocks, NUM_SUMS, device=args.device)
        self.num_finished_blocks = torch.zeros((), dtype=torch.int32, device=args.device)

    def __call__(
        self,
        network: ActorCritic,
        samples: Samples,
        args: PPOArgs,
        ent_coef: Tensor,
        advantage_moments: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the loss of a minibatch, and its (5,) metrics.

        Args:
            network: the policy and the value function.
            samples: the minibatch, (B,).
            args: the settings.
            ent_coef: coefficient of the entropy bonus, () float32 on the device.
            advantage_moments: variance and mean, () each, by which advantages are normalised; None for those of the minibatch.
        """
        policy, value = network.both(samples.obs, samples.action_mask, samples.critic_obs)
        assert not isinstance(policy, Gaussian), "reason_not_supported refuses Gaussian policies"
        moments = advantage_moments or masked_var_mean(samples.advantage, samples.mask)
        loss, metrics = _Objective.apply(policy.logits, value, self, samples, args, ent_coef, moments)  # type: ignore[no-untyped-call]  # of torch's
        return loss, metrics

    def run(
        self,
        logits: Tensor,
        value: Tensor,
        samples: Samples,
        args: PPOArgs,
        ent_coef: Tensor,
        advantage_moments: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the loss, (), its (5,) metrics, and its gradients, (B N + B,): those by `logits`, then those by `value`.

        Args:
            logits: (B, N) float32.
            value: (B,) float32.
            samples: the minibatch, (B,); its observations are not used.
            args: the settings.
            ent_coef: coefficient of the entropy bonus, () float32 on the device.
            advantage_moments: variance and mean, () each, by which advantages are normalised.
        """
        rows, mask, (variance, mean) = len(value), samples.mask, advantage_moments
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        gradients = torch.empty(logits.numel() + rows, device=logits.device)
        logits_gradient, value_gradient = gradients.split([logits.numel(), rows])
        metrics, loss = gradients.new_empty(NUM_SUMS), gradients.new_empty(())
        self.launch(
            min(self.max_blocks, -(-rows // self.rows_per_block)), logits=logits, value=value, action=samples.action,
            log_prob=samples.log_prob, advantage=samples.advantage, target=samples.target, mask=0 if mask is None else mask,
            num_active=0 if mask is None else mask.sum(), advantage_variance=variance, advantage_mean=mean, ent_coef=ent_coef,
            logits_gradient=logits_gradient, value_gradient=value_gradient, block_sums=self.block_sums,
            num_finished_blocks=self.num_finished_blocks, metrics=metrics, loss=loss, num_samples=rows,
            logits_stride=logits.stride(0), value_stride=value.stride(0), clip=args.clip, vf_coef=args.vf_coef,
        )  # fmt: skip
        return loss, metrics, gradients


class _Objective(torch.autograd.Function):
    """The loss and its metrics, with the gradients that the same kernel computes."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        value: Tensor,
        fused: FusedLoss,
        samples: Samples,
        args: PPOArgs,
        ent_coef: Tensor,
        advantage_moments: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        loss, metrics, gradients = fused.run(logits, value, samples, args, ent_coef, advantage_moments)
        ctx.save_for_backward(gradients)
        ctx.logits_shape = logits.shape
        ctx.mark_non_differentiable(metrics)
        ctx.set_materialize_grads(False)  # autograd would fill a gradient of the metrics with zeros
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        rows, outputs = ctx.logits_shape
        # One product, since a launch takes longer than the numbers.
        logits_gradient, value_gradient = (gradients * loss_gradient).split([rows * outputs, rows])
        return logits_gradient.view(rows, outputs), value_gradient, *[None] * 5


def _head_sizes(network: ActorCritic) -> tuple[int, ...]:
    return network.sizes or (network.num_outputs,)
