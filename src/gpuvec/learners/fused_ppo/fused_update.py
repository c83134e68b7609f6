"""PPO's update of small networks in two kernels per minibatch: the gradient, and the step of Adam.

A first kernel packs the samples of a rollout into records. Each epoch reads them in a pseudo-random order that is computed
without a sort. The parameters of the network and the moments of the optimiser are views of the flat tensors of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.fused_ppo.network_shape import NUM_SUMS, SOURCE_FOLDER, NetworkShape, parameter_views
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.normalizer import Normalizer

ADVANTAGE_PARTS = 32  # parts in which the advantages of a minibatch are summed
PACK_THREADS, SUM_THREADS = 256, 128  # per block: of the first kernel, and of the optimiser for sums of partial gradients
MIN_VECTORS_PER_BLOCK = 16  # vectors of four parameters of an optimiser block
# Up to so many parameters an optimiser block has the fewest vectors, and the most threads for each of them.
SMALL_NETWORK = 20_000
RESIDENT_BLOCKS = 4  # of the optimiser, on each multiprocessor at least; all of its blocks must be resident at the same time
MANY_VECTORS = 4  # of a thread of the optimiser, where blocks with one for each thread could not all be resident
SAMPLES_PER_WARP = 32  # of the backpropagation, at a time
CHUNK_TILES = 2  # of so many samples, for each warp of the backpropagation in a chunk
PRODUCT_COLUMNS = 128  # of a block of weight_gradient.cu
PRODUCT_STAGE_BYTES = 3 * 32 * 2  # of its shared memory, for each column of both operands: three stages of 32 samples in FP16
SHARED_BYTES_PER_MULTIPROCESSOR, RESERVED_BYTES_PER_BLOCK = 227 * 1024, 1024  # of shared memory of a Hopper GPU

GRADIENT_MEMBERS = {
    "records": "const float*", "advantage": "const float*", "mask": "const bool*", "advantage_sums": "float*",
    "parameters": "const float*", "partial_gradients": "float*", "loss_sums": "float*", "iteration": "const long long*",
    "ent_coef": "const float*", "metrics": "double*", "fault_rows": "long long*", "seed": "u64", "minibatch": "i64",
    "num_minibatches": "i64", "minibatch_size": "i64", "num_samples": "i64", "index_bits": "i64", "clip": "double",
    "vf_coef": "double",
}  # fmt: skip
# Of the kernels of networks whose activations are kept, see activations.cuh.
CHUNK_MEMBERS = {**GRADIENT_MEMBERS, "activations": "unsigned*", "block_sums": "float*", "chunk": "i64"}
OPTIMIZER_MEMBERS = {
    "partial_gradients": "const float*", "advantage_sums": "const float*", "loss_sums": "const float*", "parameters": "float*",
    "exp_avg": "float*", "exp_avg_sq": "float*", "gradient": "float*", "step": "float*", "squared_norms": "unsigned long long*",
    "num_launches": "long long*", "kl_exceeded": "float*", "metrics": "double*", "fault_rows": "long long*",
    "learning_rate": "const float*", "minibatch": "i64", "num_updates": "i64", "max_grad_norm": "double", "target_kl": "double",
}  # fmt: skip
OBSERVATION_MEMBERS = {"moments": "const float*", "places": "const int*", "env_rows": "i64", "num_rows": "i64"}
PACK_MEMBERS = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "advantage": "const float*",
    "target": "const float*", "mask": "const bool*", "action_mask": "const bool*", "records": "float*", "num_samples": "i64",
    **OBSERVATION_MEMBERS,
}  # fmt: skip


class UpdateConfig(NamedTuple):
    """The launch configuration of an update."""

    num_partials: int  # partial gradients, and blocks of the gradient kernel for each network
    blocks_per_multiprocessor: int  # of the gradient kernel
    vectors_per_block: int  # of the optimiser kernel, of four parameters each
    optimizer_blocks: int
    vectors_per_thread: int  # of the optimiser
    gradient_blocks: int  # of the gradient kernel, or of the backpropagation, for each network
    chunk_rows: int  # samples whose gradient is computed at a time


def make_update_config(shape: NetworkShape, minibatch_size: int, multiprocessors: int) -> UpdateConfig:
    """Returns the launch configuration.

    Args:
        shape: of the network.
        minibatch_size: samples of a minibatch.
        multiprocessors: of the device.
    """
    has_room_for_two = 2 * (shape.shared_bytes + RESERVED_BYTES_PER_BLOCK) <= SHARED_BYTES_PER_MULTIPROCESSOR
    blocks = 2 if shape.warps == 4 and has_room_for_two else 1
    num_tiles = -(-minibatch_size // shape.rows_per_block)
    # Half of the blocks are for the actor, and half for the critic.
    num_partials = min(num_tiles, max(1, multiprocessors * blocks // 2))
    tiles_per_block = -(-num_tiles // num_partials)
    # As few as possible with so many tiles per block, because the optimiser has to sum them.
    num_partials = -(-num_tiles // tiles_per_block)
    gradient_blocks, chunk_rows = num_partials, minibatch_size
    if shape.keeps_activations:
        tiles = -(-minibatch_size // SAMPLES_PER_WARP)
        gradient_blocks = min(tiles, max(1, multiprocessors // 2))
        chunk_rows = min(tiles * SAMPLES_PER_WARP, CHUNK_TILES * gradient_blocks * shape.rows_per_block)
        # A multiprocessor has one of the largest products of both networks.
        num_partials = max(1, multiprocessors // (2 * -(-shape.hidden // PRODUCT_COLUMNS)))
    vectors = MIN_VECTORS_PER_BLOCK if shape.num_parameters() <= SMALL_NETWORK else 2 * MIN_VECTORS_PER_BLOCK
    optimizer_blocks = -(-shape.num_parameters() // (4 * vectors))
    per_thread = MANY_VECTORS if optimizer_blocks > RESIDENT_BLOCKS * multiprocessors else 1
    optimizer_blocks = -(-optimizer_blocks // per_thread)
    return UpdateConfig(num_partials, blocks, vectors, optimizer_blocks, per_thread, gradient_blocks, chunk_rows)


def update_kernels(shape: NetworkShape, config: UpdateConfig) -> dict[str, CudaSource]:
    """Returns {name: kernel} of an update for a network `shape` and a launch configuration `config`."""
    sum_constants = shape.constants | {"NUM_SUMS": NUM_SUMS}
    optimizer_constants = optimizer_sums(shape, config) | {"FROM_INBOX": 0}
    return {
        "pack_records": make_source("pack_records", PACK_MEMBERS, shape.constants, PACK_THREADS),
        "sum_advantages": make_source("sum_advantages", GRADIENT_MEMBERS, sum_constants, 256),
        **gradient_kernels(shape, config),
        "optimizer": make_source("optimizer", OPTIMIZER_MEMBERS, optimizer_constants, SUM_THREADS + 32),
    }


def gradient_kernels(shape: NetworkShape, config: UpdateConfig) -> dict[str, CudaSource]:
    """Returns {name: kernel} of the gradient of a minibatch: one, or two for each chunk.

    Args:
        shape: of the network.
        config: of the update.
    """
    threads = 32 * shape.warps
    if not shape.keeps_activations:
        constants = shape.constants | {"BLOCKS_PER_MULTIPROCESSOR": config.blocks_per_multiprocessor}
        return {"gradient": make_source("gradient", GRADIENT_MEMBERS, constants, threads, shape.shared_bytes)}
    chunk = shape.constants | {"CHUNK_ROWS": config.chunk_rows}
    shared_bytes = PRODUCT_STAGE_BYTES * (shape.hidden + PRODUCT_COLUMNS)
    products = chunk | {
        "NUM_SUMS": NUM_SUMS, "NUM_PARTIALS": config.num_partials, "NUM_BACKPROPAGATIONS": config.gradient_blocks,
        "SHARED_BYTES": shared_bytes,
    }  # fmt: skip
    return {
        "backpropagation": make_source("backpropagation", CHUNK_MEMBERS, chunk, threads, shape.shared_bytes),
        "weight_gradient": make_source("weight_gradient", CHUNK_MEMBERS, products, shape.hidden, shared_bytes),
    }


def num_products(shape: NetworkShape) -> int:
    """Returns how many blocks of weight_gradient.cu compute the products of one network for a part of the samples."""
    return sum(-(-columns // PRODUCT_COLUMNS) for columns in (*[shape.hidden] * (shape.layers - 1), shape.padded_inputs)) + 1


def optimizer_sums(shape: NetworkShape, config: UpdateConfig) -> dict[str, int | str]:
    """Returns the macros of kernels that sum the partial gradients of the gradient kernel.

    Args:
        shape: of the network.
        config: of the update.
    """
    return {
        "NUM_PARAMETERS": shape.num_parameters(), "NUM_PARTIALS": config.num_partials, "NUM_SUMS": NUM_SUMS,
        "VECTORS_PER_BLOCK": config.vectors_per_block, "VECTORS_PER_THREAD": config.vectors_per_thread,
        "THREADS_PER_VECTOR": SUM_THREADS // config.vectors_per_block,
        "PARTIAL_SIZE": shape.num_parameters(), "LOSS_SIZE": NUM_SUMS,
    }  # fmt: skip


def make_source(
    name: str, members: Mapping[str, str], constants: Mapping[str, int | str], threads: int, shared_bytes: int = 0
) -> CudaSource:
    """Returns a kernel of this folder.

    Args:
        name: of the kernel and of its file.
        members: {name: type} of the members of `Batch`.
        constants: {name: value} of macros.
        threads: per block.
        shared_bytes: dynamic shared memory per block.
    """
    names = tuple(members.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / f"{name}.cu", name, *names, threads, shared_bytes)


class FusedUpdate:
    """Updates a network from rollouts.

    Args:
        shape: of the network.
        args: the settings, resolved; the seed determines the order of the samples.
        network: its parameters become views of `parameters`.
        optimizer: Adam, whose moments become views of `exp_avg` and `exp_avg_sq`.
        num_samples: T * R.
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
        num_samples: int,
        learning_rate: Tensor,
        ent_coef: Tensor,
        iteration: Tensor,
    ) -> None:
        self.shape, self.args, self.num_samples = shape, args, num_samples
        self.minibatch_size = num_samples // args.num_minibatches
        self._learning_rate, self._ent_coef, self._iteration = learning_rate, ent_coef, iteration
        multiprocessors = torch.cuda.get_device_properties(args.device).multi_processor_count
        self.config = config = make_update_config(shape, self.minibatch_size, multiprocessors)
        self.num_updates = num_updates = args.update_epochs * args.num_minibatches
        count = shape.num_parameters()

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=args.device)

        self.parameters, self.exp_avg, self.exp_avg_sq = zeros(3, count)
        self.gradient: Tensor | int = 0
        """(N,) float32 that receives the gradient of each minibatch, for tests; 0 for none."""
        self.records = zeros(num_samples, shape.record_size)
        self.advantage_sums = zeros(num_updates, 3, ADVANTAGE_PARTS)
        self._chunk_members: dict[str, Tensor] = {}
        if shape.keeps_activations:
            halves = config.chunk_rows * shape.activation_columns
            block_sums = zeros(2 * config.gradient_blocks, 2 * shape.padded_outputs + NUM_SUMS)
            self._chunk_members = {"activations": zeros(halves // 2, dtype=torch.int32), "block_sums": block_sums}
        self.partial_gradients, self.loss_sums = zeros(config.num_partials, count), zeros(config.num_partials, NUM_SUMS)
        self.kl_exceeded, self.step = zeros(num_updates + 1), zeros()
        self.squared_norms = zeros(config.optimizer_blocks, dtype=torch.int64)
        self.num_launches = zeros(dtype=torch.int64)
        # The means and the inverse standard deviations of the features, (2, D).
        self.moments = zeros(2, shape.features)
        self._move_parameters(network, optimizer)
        device = parse_device(args.device)
        self._launch = {name: make_tensor_launcher(kernel, device) for name, kernel in update_kernels(shape, config).items()}

    @torch.no_grad()
    def _move_parameters(self, network: ActorCritic, optimizer: Adam) -> None:
        """Makes the parameters of `network` and the moments of `optimizer` views of the tensors that the kernels use."""
        flat_tensors = self.parameters, self.exp_avg, self.exp_avg_sq
        views_by_name = [parameter_views(self.shape, network, flat) for flat in flat_tensors]
        for name, p in network.named_parameters():
            state, views = optimizer.state[p], [views[name] for views in views_by_name]
            for view, values in zip(views, (p, state["exp_avg"], state["exp_avg_sq"]), strict=True):
                view.copy_(values)
            p.data, state["exp_avg"], state["exp_avg_sq"] = views
            p.grad = None
            state["step"] = self.step

    def read_moments(self, normalizer: Normalizer | None) -> None:
        """Copies the moments of `normalizer`, if there is one, to where the kernels read them."""
        if normalizer is not None:
            self.moments.copy_(torch.stack([normalizer.mean, normalizer.std.reciprocal()]))

    def observation_members(self, places: Tensor | None = None, env_rows: int = 0) -> dict[str, Any]:
        """Returns the arguments with which kernels read observations.

        Args:
            places: (R,) int32, the numbers of the rows among the environment's; None if all rows are those of the policy.
            env_rows: the number of the environment's rows.
        """
        num_rows = self.num_samples // self.args.num_steps
        return {
            "moments": self.moments, "places": 0 if places is None else places, "env_rows": env_rows, "num_rows": num_rows
        }  # fmt: skip

    def pack_records(self, buffer: RolloutBuffer, obs: Tensor, members: Mapping[str, Any]) -> None:
        """Writes the records of the rollout in `buffer`, unless `FusedEstimate` writes them.

        Args:
            buffer: the rollout; its observations are not used.
            obs: (T + 1, R, D) float32, or all of the environment's observations, of which `members` says which are used.
            members: `observation_members`.
        """
        s = buffer
        self._launch["pack_records"](
            -(-self.num_samples * self.shape.record_size // PACK_THREADS), obs=obs, action=s.action, log_prob=s.log_prob,
            advantage=s.advantage, target=s.target, mask=0 if s.mask is None else s.mask,
            action_mask=0 if s.action_mask is None else s.action_mask, records=self.records, num_samples=self.num_samples,
            **members,
        )  # fmt: skip

    def __call__(self, buffer: RolloutBuffer, metrics: Tensor, fault_rows: Tensor) -> None:
        """Runs the epochs of minibatches over the records.

        Args:
            buffer: the rollout.
            metrics: (6,) float64, receives the means of policy loss, value loss, entropy, KL, clip fraction and gradient norm.
            fault_rows: (2,) int64, receives 0 if a mean, or a parameter or gradient, is not finite, else -1.
        """
        gradient_members = self.gradient_members(buffer)
        optimizer_members = {
            "partial_gradients": self.partial_gradients, "loss_sums": self.loss_sums, "advantage_sums": self.advantage_sums,
            **self.optimizer_members(metrics, fault_rows),
        }  # fmt: skip
        self.sum_advantages(gradient_members, metrics, fault_rows)
        for minibatch in range(self.num_updates):
            self.launch_gradient(minibatch, gradient_members)
            self._launch["optimizer"](
                self.config.optimizer_blocks, dependent_launch=True, minibatch=minibatch, **optimizer_members
            )

    def sum_advantages(
        self, members: Mapping[str, Any], metrics: Tensor, fault_rows: Tensor, dependent_launch: bool = True
    ) -> None:
        """Writes `advantage_sums`, and initialises `metrics` and `fault_rows`, which are those of `__call__`.

        Args:
            members: `gradient_members`.
            metrics, fault_rows: (6,) and (2,), as in `__call__`.
            dependent_launch: whether a kernel of this package is launched before it.
        """
        outputs = {"metrics": metrics, "fault_rows": fault_rows}
        self._launch["sum_advantages"](
            self.num_updates, ADVANTAGE_PARTS, dependent_launch=dependent_launch, **members, **outputs
        )

    def launch_gradient(self, minibatch: int, members: Mapping[str, Any], dependent_launch: bool = True) -> None:
        """Writes `partial_gradients` and `loss_sums` of a minibatch.

        Args:
            minibatch: its number in the update.
            members: `gradient_members`.
            dependent_launch: whether a kernel of this package is launched before it.
        """
        config = self.config
        if not self.shape.keeps_activations:
            self._launch["gradient"](
                2 * config.gradient_blocks, dependent_launch=dependent_launch, minibatch=minibatch, **members
            )
            return
        num_blocks = 2 * config.num_partials * num_products(self.shape)
        for chunk in range(-(-self.minibatch_size // config.chunk_rows)):
            arguments = {"minibatch": minibatch, "chunk": chunk, **members, **self._chunk_members}
            self._launch["backpropagation"](
                2 * config.gradient_blocks, dependent_launch=dependent_launch or chunk > 0, **arguments
            )
            self._launch["weight_gradient"](num_blocks, dependent_launch=True, **arguments)

    def gradient_members(self, buffer: RolloutBuffer) -> dict[str, Any]:
        """Returns the arguments of the kernels that read the rollout in `buffer`."""
        args = self.args
        return {
            "records": self.records, "advantage": buffer.advantage, "mask": 0 if buffer.mask is None else buffer.mask,
            "advantage_sums": self.advantage_sums, "parameters": self.parameters, "partial_gradients": self.partial_gradients,
            "loss_sums": self.loss_sums, "iteration": self._iteration, "ent_coef": self._ent_coef,
            "seed": args.seed, "num_minibatches": args.num_minibatches,
            "minibatch_size": self.minibatch_size, "num_samples": self.num_samples,
            "index_bits": max(1, (self.num_samples - 1).bit_length()), "clip": args.clip, "vf_coef": args.vf_coef,
        }  # fmt: skip

    def optimizer_members(self, metrics: Tensor, fault_rows: Tensor) -> dict[str, Any]:
        """Returns the arguments of the optimiser, but for the sums that it reads.

        Args:
            metrics, fault_rows: (6,) and (2,), as in `__call__`.
        """
        args = self.args
        return {
            "parameters": self.parameters, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "gradient": self.gradient,
            "step": self.step, "squared_norms": self.squared_norms, "num_launches": self.num_launches,
            "kl_exceeded": self.kl_exceeded, "metrics": metrics, "fault_rows": fault_rows,
            "learning_rate": self._learning_rate, "num_updates": self.num_updates, "max_grad_norm": args.max_grad_norm,
            "target_kl": math.inf if args.target_kl is None else args.target_kl,
        }  # fmt: skip

    def share_with(self, leader: FusedUpdate) -> None:
        """Uses parameters, settings and kept activations of `leader`, the update of another shard of the process."""
        self.parameters, self._ent_coef, self.moments = leader.parameters, leader._ent_coef, leader.moments
        self._chunk_members = leader._chunk_members
