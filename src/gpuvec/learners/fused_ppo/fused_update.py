"""PPO's update of small perceptrons in two kernels for a minibatch: the gradient, and the step of Adam.

The samples of a rollout are packed into records first, which an epoch goes through in an order of its own; nothing is sorted.
The network's parameters and the optimiser's moments are views of what the kernels work on, so all else finds them there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device as named_device
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.fused_ppo.fused_launch import launcher
from gpuvec.learners.fused_ppo.network_shape import COLUMNS, FOLDER, LINES, MEASURED, Shape, views
from gpuvec.learners.networks.actor_critic import ActorCritic

SPLITS = 32  # parts in which the advantages of a minibatch are summed up
SHARED, RESERVED = 227 * 1024, 1024  # bytes of a Hopper multiprocessor that blocks may share, and that each costs besides
FEW = 20_000  # parameters for which the optimiser's threads have more parts to sum up, and fewer parameters side by side

GRADIENT = {
    "records": "const float*", "advantage": "const float*", "mask": "const bool*", "statistics": "float*",
    "parameters": "const float*", "partials": "float*", "measured": "float*", "iteration": "const long long*",
    "ent_coef": "const float*", "learned": "double*", "odd": "long long*", "seed": "u64", "minibatch": "i64",
    "minibatches": "i64", "size": "i64", "samples": "i64", "bits": "i64", "clip": "double", "vf_coef": "double",
}  # fmt: skip
OPTIMIZER = {
    "partials": "const float*", "statistics": "const float*", "measured": "const float*", "parameters": "float*",
    "first": "float*", "second": "float*", "gradient": "float*", "steps": "float*", "squares": "unsigned long long*",
    "turn": "long long*", "far": "float*", "learned": "double*", "odd": "long long*",
    "learning_rate": "const float*", "minibatch": "i64", "rounds": "i64", "max_norm": "double", "target_kl": "double",
}  # fmt: skip
PACK = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "advantage": "const float*",
    "target": "const float*", "mask": "const bool*", "records": "float*", "samples": "i64",
}  # fmt: skip


class Plan(NamedTuple):
    """How an update is laid over a device."""

    parts: int  # blocks that each network's gradient of a minibatch is shared out to
    blocks: int  # of the gradient, on a multiprocessor
    columns: int  # of the optimiser's threads, which have four parameters each
    chunks: int  # blocks of the optimiser


def planned(shape: Shape, size: int, multiprocessors: int) -> Plan:
    """For minibatches of `size` samples on that many multiprocessors."""
    blocks = 2 if shape.warps == 4 and 2 * (shape.room + RESERVED) <= SHARED else 1
    tiles = -(-size // shape.rows)
    parts = min(tiles, max(1, multiprocessors * blocks // 2))  # half of the blocks have the actor, half the critic
    parts = -(-tiles // -(-tiles // parts))  # no more than as many rounds need: there is less to sum up
    columns = COLUMNS if shape.parameters() <= FEW else 2 * COLUMNS
    return Plan(parts, blocks, columns, -(-shape.parameters() // (4 * columns)))


def kernels(shape: Shape, plan: Plan) -> dict[str, CudaSource]:
    """Those of an update."""
    source = shape.constants | {"BLOCKS": plan.blocks}
    summed = shape.constants | {"MEASURED": MEASURED}
    lines = COLUMNS * LINES // plan.columns
    sizes: dict[str, int | str] = {"PARAMETERS": shape.parameters(), "PARTS": plan.parts, "MEASURED": MEASURED}
    sizes |= {"COLUMNS": plan.columns, "LINES": lines}

    def made(name: str, members: dict[str, str], given: Mapping[str, int | str], threads: int, room: int = 0) -> CudaSource:
        return CudaSource(FOLDER / f"{name}.cu", name, tuple(members.items()), tuple(given.items()), threads, room)

    return {
        "pack": made("pack", PACK, source, 256),
        "statistics": made("statistics", GRADIENT, summed, 256),
        "gradient": made("gradient", GRADIENT, source, 32 * shape.warps, shape.room),
        "optimizer": made("optimizer", OPTIMIZER, sizes, COLUMNS * LINES + 32),
    }


def too_large(shape: Shape, args: PPOArgs) -> str:
    """Why the device has no room for it; empty if it has."""
    device, properties = named_device(args.device), torch.cuda.get_device_properties(args.device)
    given = nvrtc.max_shared_memory(device)
    if shape.room > given:
        return f"a block of the gradient needs {shape.room:,} bytes of shared memory; {properties.name} gives {given:,}"
    plan = planned(shape, args.steps_per_iteration // args.num_minibatches, properties.multi_processor_count)
    if plan.chunks > nvrtc.max_resident_blocks(kernels(shape, plan)["optimizer"], device):  # they wait for each other
        return f"the optimiser's {plan.chunks} blocks do not run on {properties.name} together"
    return ""


class Update:
    """The update of `network` from rollouts of `samples` transitions.

    Args:
        shape: of the network.
        args: the settings, resolved.
        network: its parameters are moved, and stay views of `parameters`.
        optimizer: Adam, whose moments are moved likewise.
        samples: T * R.
        learning_rate, ent_coef: scalars on the device, read in each minibatch.
        iteration: scalar int64 on the device, of which the order of the samples hangs.
    """

    def __init__(
        self,
        shape: Shape,
        args: PPOArgs,
        network: ActorCritic,
        optimizer: Adam,
        samples: int,
        learning_rate: Tensor,
        ent_coef: Tensor,
        iteration: Tensor,
    ) -> None:
        self.shape, self.args, self.samples, self.size = shape, args, samples, samples // args.num_minibatches
        self._learning_rate, self._entropy_weight, self._iteration = learning_rate, ent_coef, iteration
        multiprocessors = torch.cuda.get_device_properties(args.device).multi_processor_count
        self.plan = planned(shape, self.size, multiprocessors)
        minibatches, count = args.update_epochs * args.num_minibatches, shape.parameters()

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=args.device)

        self.parameters, self.first, self.second = zeros(3, count)
        self.gradient: Tensor | int = 0  # where a minibatch's gradient is written for whoever wants to see it
        self.records, self.partials = zeros(samples, shape.record), zeros(self.plan.parts, count)
        self.statistics, self.measured = zeros(minibatches, 3, SPLITS), zeros(self.plan.parts, MEASURED)
        self.far, self.steps = zeros(minibatches + 1), zeros()
        self.squares, self.turn = zeros(self.plan.chunks, dtype=torch.int64), zeros(dtype=torch.int64)
        self._adopt(network, optimizer)
        found = kernels(shape, self.plan)
        self._launch = {name: launcher(kernel, named_device(args.device)) for name, kernel in found.items()}

    @torch.no_grad()
    def _adopt(self, network: ActorCritic, optimizer: Adam) -> None:
        parameters = dict(network.named_parameters())
        homes = [views(self.shape, network, flat) for flat in (self.parameters, self.first, self.second)]
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

    def __call__(self, storage: Any, learned: Tensor, odd: Tensor) -> None:
        """Epochs of minibatches over the records.

        Args:
            storage: the rollout, `on_policy.Storage`.
            learned: (6,) float64, for the means of policy loss, value loss, entropy, KL, clipped share and norm.
            odd: (2,) int64: 0 if a mean, or a parameter or gradient, is not finite, else -1.
        """
        a, s, rounds = self.args, storage, self.args.update_epochs * self.args.num_minibatches
        gradient = {
            "records": self.records, "advantage": s.advantage, "mask": 0 if s.mask is None else s.mask,
            "statistics": self.statistics, "parameters": self.parameters, "partials": self.partials, "measured": self.measured,
            "iteration": self._iteration, "ent_coef": self._entropy_weight, "learned": learned, "odd": odd,
            "seed": a.seed, "minibatches": a.num_minibatches, "size": self.size, "samples": self.samples,
            "bits": max(1, (self.samples - 1).bit_length()), "clip": a.clip, "vf_coef": a.vf_coef,
        }  # fmt: skip
        optimizer = {
            "partials": self.partials, "statistics": self.statistics, "measured": self.measured, "parameters": self.parameters,
            "first": self.first, "second": self.second, "gradient": self.gradient, "steps": self.steps, "squares": self.squares,
            "turn": self.turn, "far": self.far, "learned": learned, "odd": odd, "learning_rate": self._learning_rate,
            "rounds": rounds, "max_norm": a.max_grad_norm, "target_kl": math.inf if a.target_kl is None else a.target_kl,
        }  # fmt: skip
        self._launch["statistics"](rounds, SPLITS, early=True, **gradient)
        for minibatch in range(rounds):
            self._launch["gradient"](2 * self.plan.parts, early=True, minibatch=minibatch, **gradient)
            self._launch["optimizer"](self.plan.chunks, early=True, minibatch=minibatch, **optimizer)
