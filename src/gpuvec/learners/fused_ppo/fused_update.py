"""PPO's update of small networks in two kernels per minibatch: the gradient, and the step of Adam.

A first kernel packs the samples of a rollout into records. Each epoch reads them in a pseudo-random order that is computed and
not sorted. The network's parameters and the optimiser's moments are views of the flat tensors that the kernels read and write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.fused_ppo.fused_launch import make_tensor_launcher
from gpuvec.learners.fused_ppo.network_shape import COLUMNS, FOLDER, LINES, SUMS, NetworkShape, parameter_views
from gpuvec.learners.networks.actor_critic import ActorCritic

SPLITS = 32  # parts in which the advantages of a minibatch are summed
SHARED, RESERVED = 227 * 1024, 1024  # bytes of shared memory of a Hopper multiprocessor, and those reserved per block
SMALL_NETWORK = 20_000  # parameters up to which the optimiser uses more threads per parameter

GRADIENT = {
    "records": "const float*", "advantage": "const float*", "mask": "const bool*", "statistics": "float*",
    "parameters": "const float*", "partials": "float*", "measured": "float*", "iteration": "const long long*",
    "ent_coef": "const float*", "learned": "double*", "nonfinite_row": "long long*", "seed": "u64", "minibatch": "i64",
    "minibatches": "i64", "size": "i64", "samples": "i64", "bits": "i64", "clip": "double", "vf_coef": "double",
}  # fmt: skip
OPTIMIZER = {
    "partials": "const float*", "statistics": "const float*", "measured": "const float*", "parameters": "float*",
    "first": "float*", "second": "float*", "gradient": "float*", "steps": "float*", "squares": "unsigned long long*",
    "turn": "long long*", "far": "float*", "learned": "double*", "nonfinite_row": "long long*",
    "learning_rate": "const float*", "minibatch": "i64", "rounds": "i64", "max_norm": "double", "target_kl": "double",
}  # fmt: skip
PACK = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "advantage": "const float*",
    "target": "const float*", "mask": "const bool*", "records": "float*", "samples": "i64",
}  # fmt: skip


class UpdatePlan(NamedTuple):
    """The launch configuration of an update."""

    parts: int  # blocks per network that compute the gradient of a minibatch
    blocks: int  # of the gradient kernel, per multiprocessor
    columns: int  # threads of an optimiser block side by side, four parameters each
    chunks: int  # blocks of the optimiser kernel


def plan_update(shape: NetworkShape, size: int, multiprocessors: int) -> UpdatePlan:
    """Returns the launch configuration.

    Args:
        shape: of the network.
        size: samples of a minibatch.
        multiprocessors: of the device.
    """
    blocks = 2 if shape.warps == 4 and 2 * (shape.shared_bytes + RESERVED) <= SHARED else 1
    tiles = -(-size // shape.rows)
    parts = min(tiles, max(1, multiprocessors * blocks // 2))  # half of the blocks compute the actor, half the critic
    parts = -(-tiles // -(-tiles // parts))  # no more than the rounds need, so that fewer parts are summed
    columns = COLUMNS if shape.parameters() <= SMALL_NETWORK else 2 * COLUMNS
    return UpdatePlan(parts, blocks, columns, -(-shape.parameters() // (4 * columns)))


def update_kernels(shape: NetworkShape, plan: UpdatePlan) -> dict[str, CudaSource]:
    """Returns {name: kernel} of an update for a network `shape` and a launch configuration `plan`."""
    source = shape.constants | {"BLOCKS": plan.blocks}
    summed = shape.constants | {"MEASURED": SUMS}
    lines = COLUMNS * LINES // plan.columns
    sizes: dict[str, int | str] = {"PARAMETERS": shape.parameters(), "PARTS": plan.parts, "MEASURED": SUMS}
    sizes |= {"COLUMNS": plan.columns, "LINES": lines}

    def source_of(
        name: str, members: dict[str, str], constants: Mapping[str, int | str], threads: int, shared_bytes: int = 0
    ) -> CudaSource:
        return CudaSource(FOLDER / f"{name}.cu", name, tuple(members.items()), tuple(constants.items()), threads, shared_bytes)

    return {
        "pack": source_of("pack", PACK, source, 256),
        "statistics": source_of("statistics", GRADIENT, summed, 256),
        "gradient": source_of("gradient", GRADIENT, source, 32 * shape.warps, shape.shared_bytes),
        "optimizer": source_of("optimizer", OPTIMIZER, sizes, COLUMNS * LINES + 32),
    }


def reason_too_large(shape: NetworkShape, args: PPOArgs) -> str:
    """Returns why the kernels do not fit on the device, or "" if they do.

    Args:
        shape: of the network.
        args: the settings, resolved.
    """
    device, properties = parse_device(args.device), torch.cuda.get_device_properties(args.device)
    available = nvrtc.max_shared_memory(device)
    if shape.shared_bytes > available:
        return (
            f"a block of the gradient needs {shape.shared_bytes:,} bytes of shared memory; {properties.name} has {available:,}"
        )
    plan = plan_update(shape, args.steps_per_iteration // args.num_minibatches, properties.multi_processor_count)
    if plan.chunks > nvrtc.max_resident_blocks(
        update_kernels(shape, plan)["optimizer"], device
    ):  # the blocks wait for each other
        return f"the optimiser's {plan.chunks} blocks do not run on {properties.name} together"
    return ""


class FusedUpdate:
    """Updates `network` from rollouts of `samples` transitions.

    Args:
        shape: of the network.
        args: the settings, resolved.
        network: its parameters are moved and become views of `parameters`.
        optimizer: Adam, whose moments are moved in the same way.
        samples: T * R.
        learning_rate: () float32 on the device, read in each minibatch.
        ent_coef: () float32 on the device, read in each minibatch.
        iteration: () int64 on the device, on which the order of the samples depends.
    """

    def __init__(
        self,
        shape: NetworkShape,
        args: PPOArgs,
        network: ActorCritic,
        optimizer: Adam,
        samples: int,
        learning_rate: Tensor,
        ent_coef: Tensor,
        iteration: Tensor,
    ) -> None:
        self.shape, self.args, self.samples, self.size = shape, args, samples, samples // args.num_minibatches
        self._learning_rate, self._ent_coef, self._iteration = learning_rate, ent_coef, iteration
        multiprocessors = torch.cuda.get_device_properties(args.device).multi_processor_count
        self.plan = plan_update(shape, self.size, multiprocessors)
        minibatches, count = args.update_epochs * args.num_minibatches, shape.parameters()

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=args.device)

        self.parameters, self.first, self.second = zeros(3, count)
        self.gradient: Tensor | int = 0  # if it is a tensor, each minibatch's gradient is written to it
        self.records, self.partials = zeros(samples, shape.record), zeros(self.plan.parts, count)
        self.statistics, self.measured = zeros(minibatches, 3, SPLITS), zeros(self.plan.parts, SUMS)
        self.far, self.steps = zeros(minibatches + 1), zeros()
        self.squares, self.turn = zeros(self.plan.chunks, dtype=torch.int64), zeros(dtype=torch.int64)
        self._move_parameters(network, optimizer)
        device = parse_device(args.device)
        self._launch = {name: make_tensor_launcher(kernel, device) for name, kernel in update_kernels(shape, self.plan).items()}

    @torch.no_grad()
    def _move_parameters(self, network: ActorCritic, optimizer: Adam) -> None:
        parameters = dict(network.named_parameters())
        homes = [parameter_views(self.shape, network, flat) for flat in (self.parameters, self.first, self.second)]
        for name, p in parameters.items():
            state = optimizer.state[p]
            for home, own in zip(homes, (p, state["exp_avg"], state["exp_avg_sq"]), strict=True):
                home[name].copy_(own)
            p.data, state["exp_avg"], state["exp_avg_sq"] = (home[name] for home in homes)
            p.grad = None
            state["step"] = self.steps

    def pack(self, storage: Any) -> None:
        """Makes the records of a rollout; `Estimate` does so on its way."""
        s = storage
        self._launch["pack"](
            -(-self.samples // 256), obs=s.obs, action=s.action, log_prob=s.log_prob, advantage=s.advantage, target=s.target,
            mask=0 if s.mask is None else s.mask, records=self.records, samples=self.samples,
        )  # fmt: skip

    def __call__(self, storage: Any, learned: Tensor, nonfinite_row: Tensor) -> None:
        """Runs the epochs of minibatches over the records.

        Args:
            storage: the rollout, a `RolloutBuffer`.
            learned: (6,) float64, receives the means of policy loss, value loss, entropy, KL, clip fraction and gradient norm.
            nonfinite_row: (2,) int64, receives 0 if a mean, or a parameter or gradient, is not finite, else -1.
        """
        a, s, rounds = self.args, storage, self.args.update_epochs * self.args.num_minibatches
        gradient = {
            "records": self.records, "advantage": s.advantage, "mask": 0 if s.mask is None else s.mask,
            "statistics": self.statistics, "parameters": self.parameters, "partials": self.partials, "measured": self.measured,
            "iteration": self._iteration, "ent_coef": self._ent_coef, "learned": learned, "nonfinite_row": nonfinite_row,
            "seed": a.seed, "minibatches": a.num_minibatches, "size": self.size, "samples": self.samples,
            "bits": max(1, (self.samples - 1).bit_length()), "clip": a.clip, "vf_coef": a.vf_coef,
        }  # fmt: skip
        optimizer = {
            "partials": self.partials, "statistics": self.statistics, "measured": self.measured, "parameters": self.parameters,
            "first": self.first, "second": self.second, "gradient": self.gradient, "steps": self.steps, "squares": self.squares,
            "turn": self.turn, "far": self.far, "learned": learned, "nonfinite_row": nonfinite_row,
            "learning_rate": self._learning_rate,
            "rounds": rounds, "max_norm": a.max_grad_norm, "target_kl": math.inf if a.target_kl is None else a.target_kl,
        }  # fmt: skip
        self._launch["statistics"](rounds, SPLITS, dependent_launch=True, **gradient)
        for minibatch in range(rounds):
            self._launch["gradient"](2 * self.plan.parts, dependent_launch=True, minibatch=minibatch, **gradient)
            self._launch["optimizer"](self.plan.chunks, dependent_launch=True, minibatch=minibatch, **optimizer)
