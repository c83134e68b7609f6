"""The kernel of a population: the trainings for which it is compiled, its source, and the places of the parameters.

Letters: P agents, D features, N outputs of the policy, K components of an action, E environments of an agent, T steps, B
samples of a minibatch. Of the layout, N are the parameters of an agent with padding, and H the units of the kernel's layers.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.sampling.action_kernels import FIRST_DRAW

SOURCE_FOLDER = Path(__file__).parent
THREADS = 256  # per block, which is an agent
MAX_HIDDEN, MAX_FEATURES, MAX_OUTPUTS = 64, 64, 32
TILE = 64  # samples that a warpgroup processes at a time
MAX_UPDATES = 1024  # minibatches of an iteration
MIN_COMPUTE_CAPABILITY = (8, 0)  # of products by `mma`
MEMBERS = {
    "parameters": "float*", "exp_avg": "float*", "exp_avg_sq": "float*", "adam_step": "float*",
    "learning_rate": "const double*", "ent_coef": "const double*", "vf_coef": "const double*", "gamma": "const double*",
    "gae_lambda": "const double*", "clip": "const double*", "reward_scale": "const double*",
    "action_seeds": "const unsigned long long*", "order_seeds": "const unsigned long long*", "clock": "const unsigned*",
    "obs": "float*", "running_return": "double*", "running_length": "double*", "last_return": "double*",
    "final_obs": "const float*", "low": "const float*", "high": "const float*", "metrics": "float*", "fault": "long long*",
    "stopped_at": "long long*", "samples": "float*", "gradient": "float*", "records": "float*", "first_iteration": "i64",
    "num_iterations": "i64", "anneal_iterations": "i64", "num_updates": "i64", "num_agents": "i64", "max_grad_norm": "double",
}  # fmt: skip


class KernelVariant(NamedTuple):
    """The products of the kernel, and the GPUs for which it is compiled."""

    is_portable: bool
    """Whether products are those of warps, which every GPU has from `MIN_COMPUTE_CAPABILITY` on, and not Hopper's."""
    max_shared_bytes: int
    """Bytes of shared memory that a block of the GPU can have."""


HOPPER = KernelVariant(False, 227 * 1024)
"""The variant of compute capability 9.0, whose instructions exist on no other."""


class MemoryLayout(NamedTuple):
    """What is in shared memory; the rest is in global memory, and mostly in its cache."""

    tiles: int
    """Tiles of samples that are processed at a time."""
    tiles_stored: int
    """Tiles whose activations are stored at a time for the gradients of the weights."""
    owned: bool = True
    """Whether second weights and first moments, which are in registers during updates, are there between updates."""
    d2: bool = True
    """Whether derivatives by the sums of the second layer have memory of their own; if not, they replace its activations."""
    second_moments: bool = True
    """Whether the second moments of the second weights are there."""
    samples: bool = True
    """Whether the samples of a rollout are there."""
    small: bool = True
    """Whether the small parameters with their moments are there."""

    def cost(self) -> int:
        """Returns what this layout costs, in thousands of cycles of an iteration on CartPole."""
        absent = sum(cost for name, cost in LAYOUT_COSTS.items() if not getattr(self, name))
        return absent + (TILE_COST if self.tiles_stored < self.tiles else 0)


# Estimates from the bytes that pass through the cache of the GPU, and from additional barriers. They order the layouts.
LAYOUT_COSTS = {"owned": 2, "d2": 4, "second_moments": 20, "samples": 12, "small": 12}
TILE_COST = 5


class PopulationShape(NamedTuple):
    """The network, the action, the loss and the rollout for which the kernel is compiled, and its variant."""

    features: int  # D
    outputs: int  # N
    action_size: int  # K
    gaussian: bool
    layers: int  # number of hidden layers
    relu: bool
    clip_value: bool
    num_envs: int  # E
    num_steps: int  # T
    epochs: int
    num_minibatches: int
    max_episode_steps: int | None
    variant: KernelVariant = HOPPER

    @property
    def num_samples(self) -> int:
        """Samples of a rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """B."""
        return self.num_samples // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Minibatches of an iteration."""
        return self.epochs * self.num_minibatches

    @property
    def max_truncations(self) -> int:
        """How often an environment can be truncated in a rollout."""
        return 0 if self.max_episode_steps is None else (self.num_steps - 1) // self.max_episode_steps + 1

    @property
    def derivatives(self) -> int:
        """Derivatives of a sample: by the outputs, and by the logarithms of the standard deviations."""
        return 2 * self.action_size if self.gaussian else self.outputs

    @property
    def small_columns(self) -> int:
        """Columns of 64 small parameters: first biases and weights, second biases, last weights."""
        return self.features + self.layers + self.outputs

    @property
    def num_small(self) -> int:
        """Small parameters of a network, with padding."""
        return self.small_columns * MAX_HIDDEN + _round_up(self.derivatives, 4)

    @property
    def network_size(self) -> int:
        """Parameters of a network, with padding."""
        return self.num_small + (MAX_HIDDEN * MAX_HIDDEN if self.layers == 2 else 0)

    @property
    def record_size(self) -> int:
        """Floats of a sample: log-probability, features, action, advantage, target."""
        return _round_up(self.features + self.action_size + 3, 4)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the samples of an agent, the size of `Samples` in layout.cuh."""
        samples = _round_up(self.num_samples, TILE)
        return _round_up(4 * samples * (self.record_size + 1) + 2 * self.epochs * self.num_samples, 16)

    @property
    def memory(self) -> MemoryLayout:
        """The first of `_memory_layouts` that fits into shared memory, or the smallest one."""
        layouts = self._memory_layouts()
        fitting = (layout for layout in layouts if self._shared_bytes(layout) <= self.variant.max_shared_bytes)
        return next(fitting, min(layouts, key=self._shared_bytes))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, the size of `SharedMemory` in layout.cuh."""
        return self._shared_bytes(self.memory)

    def _memory_layouts(self) -> list[MemoryLayout]:
        """Returns the layouts of the variant from the fastest on: two tiles are processed at a time if they are a minibatch."""
        most_tiles = 2 if self.minibatch_size == 2 * TILE else 1
        if self.variant.is_portable:
            tiles_stored = (2, 1) if most_tiles == 2 else (1,)
            choices = itertools.product((most_tiles,), tiles_stored, *[(True, False)] * len(LAYOUT_COSTS))
            return sorted(itertools.starmap(MemoryLayout, choices), key=MemoryLayout.cost)
        places = (True, True), (False, True), (False, False)  # of samples and small parameters
        tiles = range(most_tiles, 0, -1)
        return [MemoryLayout(count, count, samples=samples, small=small) for count in tiles for samples, small in places]

    def _shared_bytes(self, memory: MemoryLayout) -> int:
        factors = self.num_updates * (16 + 8)  # of Adam's steps, and means and scales of advantages
        size = 2 * self._network_bytes(memory) + (self.sample_bytes if memory.samples else 16) + factors
        return _round_up(size + (16 + 8 + 1 + 9) * 4 + self.num_envs * 48 + 8, self._alignment)

    @property
    def _alignment(self) -> int:
        return 128 if self.variant.is_portable else 1024

    def _network_bytes(self, memory: MemoryLayout) -> int:
        h, two, portable, alignment = MAX_HIDDEN, self.layers == 2, self.variant.is_portable, self._alignment
        inputs, padded_outputs = _round_up(self.features + 1, 8), _round_up(self.outputs, 8)
        columns, step, tiles = _round_up(self.derivatives + 4, 8), 8 if portable else 16, memory.tiles_stored
        edge_columns = _round_up(self.features + 1, step) + _round_up(self.outputs, step) + step * two
        second = 2 * h * h if two else alignment  # bytes of the second weights as FP16, and of a copy
        weights = second + (alignment if portable else second) + 2 * h * _round_up(edge_columns, step if portable else TILE)
        weights += alignment if portable else 2 * TILE * padded_outputs
        activations = 2 * TILE * tiles * (2 * h + inputs) + (2 * TILE * tiles * h if two and memory.d2 else alignment)
        extra = _round_up(self.num_envs * (1 + self.max_truncations), TILE)
        owned = (h * h if two else 0) + 4  # second weights, with padding
        between = 8 * (owned if memory.owned else 4) + 4 * extra * (1 + _round_up(self.features + 1, 4)) + THREADS // 32 * 4 * h
        tail = _round_up(self.derivatives, 4)
        gradients = 4 * (self.small_columns * (h + 4) + tail)
        wide, narrow = (0, gradients) if memory.small else (gradients, 16)
        union = _round_up(max(activations, between, wide), alignment)
        size = weights + union + _round_up(max(2 * TILE * tiles * columns, narrow), 16)
        moments = 4 * (owned if memory.second_moments else 4)
        return _round_up(size + moments + 12 * (tail + (self.small_columns * h if memory.small else 4)), alignment)

    @property
    def constants(self) -> dict[str, int | str]:
        """The macros of the kernel's source."""
        memory = self.memory
        return {
            "FEATURES": self.features, "OUTPUTS": self.outputs, "ACTION_SIZE": self.action_size,
            "GAUSSIAN": int(self.gaussian), "LAYERS": self.layers, "RELU": int(self.relu), "CLIP_VALUE": int(self.clip_value),
            "ENVS": self.num_envs, "STEPS": self.num_steps, "EPOCHS": self.epochs, "MINIBATCHES": self.num_minibatches,
            "PORTABLE": int(self.variant.is_portable), "TILES_PER_PASS": memory.tiles, "TILES_STORED": memory.tiles_stored,
            "OWNED_IN_SHARED": int(memory.owned), "D2_IN_SHARED": int(memory.d2),
            "SECOND_MOMENTS_IN_SHARED": int(memory.second_moments), "SAMPLES_IN_SHARED": int(memory.samples),
            "SMALL_IN_SHARED": int(memory.small), "MAX_TRUNCATIONS": self.max_truncations,
            "SAMPLE_BYTES": self.sample_bytes, "SHARED_BYTES": self._shared_bytes(memory),
        }  # fmt: skip

    def reason_not_supported(self) -> str:
        """Returns why the kernel does not support this shape, naming the limit and what is nearest to it, or ""."""
        if self.features > MAX_FEATURES or self.outputs > MAX_OUTPUTS:
            supported = f"the kernel supports at most {MAX_FEATURES} and {MAX_OUTPUTS}"
            return f"there are {self.features} features and {self.outputs} outputs of the policy; {supported}"
        if self.num_samples % self.num_minibatches or self.minibatch_size % TILE:
            nearest = max(TILE, _round_up(self.minibatch_size, TILE))
            size = f"a minibatch has {self.num_samples / self.num_minibatches:g} samples"
            return f"{size}; the kernel needs a multiple of {TILE}, the nearest of which is {nearest}"
        if self.num_samples > 2**16:
            return f"a rollout has {self.num_samples:,} samples; the kernel supports at most {2**16:,}"
        if self.num_updates > MAX_UPDATES:
            return f"an iteration has {self.num_updates} updates; the kernel supports at most {MAX_UPDATES}"
        if self.shared_bytes > self.variant.max_shared_bytes:
            available = f"a block has {self.variant.max_shared_bytes:,}"
            needed = f"an agent needs {self.shared_bytes:,} bytes of shared memory, and {available}"
            return f"{needed}{self._nearest_number_of_features()}"
        return ""

    def _nearest_number_of_features(self) -> str:
        """Returns how many features fit, in words, or "" if no number does."""
        for features in range(self.features - 1, 0, -1):
            if self._replace(features=features).shared_bytes <= self.variant.max_shared_bytes:
                return f"; {features} features fit"
        return ""


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def population_kernel(shape: PopulationShape, env_functions: LinkedFunctions, action_start: int = 0) -> CudaSource:
    """Returns the kernel that trains an agent with each block.

    Args:
        shape: of the network, the rollout and the updates.
        env_functions: the environment's functions, which are linked with the kernel.
        action_start: the smallest discrete action.
    """
    members = MEMBERS | {f"env_{name}": "u64" for name in env_functions.members}
    constants = shape.constants | env_functions.constants | {
        "ENV_BATCH": ", ".join(f"b.env_{name}" for name in env_functions.members),
        "ACTION_START": action_start,
        "FIRST_DRAW": f"{FIRST_DRAW}u",
    }  # fmt: skip
    names = tuple(members.items()), tuple(constants.items())
    return CudaSource(
        SOURCE_FOLDER / "population.cu", "train_population", *names, THREADS, shape.shared_bytes, env_functions.code,
        is_architecture_specific=not shape.variant.is_portable,
    )  # fmt: skip


class KernelParameterLayout:
    """The places of the parameters, as layout.cuh has them: the actor, then the critic, each with its small parameters first.

    Args:
        network: the network of an agent.
        shape: that of the kernel.
    """

    def __init__(self, network: ActorCritic, shape: PopulationShape) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
        self._shape = shape
        self.num_floats = 2 * shape.network_size
        """N, with padding, which stays 0."""

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns {name: view of `flat`}, (P, ...) each, by the names of `ActorCritic.named_parameters()`.

        Args:
            flat: (P, N): parameters, moments or gradients.
        """
        return {name: self._view(flat, name, shape) for name, shape in self.shapes.items()}

    def _view(self, flat: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        s = self._shape
        tail = s.small_columns * MAX_HIDDEN
        if name == "log_std":
            return flat[:, tail + s.action_size : tail + 2 * s.action_size]
        _, part, number, kind = name.split(".")
        network: Tensor = flat.unflatten(1, (2, s.network_size))[:, int(part == "critic")]
        numbers = sorted({int(other.split(".")[2]) for other in self.shapes if other.startswith(f"body.{part}.")})
        layer = numbers.index(int(number))
        columns: Tensor = network[:, :tail].unflatten(1, (s.small_columns, MAX_HIDDEN))  # (P, columns, units)
        if layer == len(numbers) - 1:
            first = s.features + s.layers
            return columns[:, first : first + shape[0], : shape[1]] if kind == "weight" else network[:, tail : tail + shape[0]]
        if layer == 0:
            weights = columns[:, 1 : 1 + s.features].transpose(1, 2)
            return weights[:, : shape[0]] if kind == "weight" else columns[:, 0, : shape[0]]
        if kind == "weight":
            between: Tensor = network[:, s.num_small :].unflatten(1, (MAX_HIDDEN, MAX_HIDDEN))
            return between[:, : shape[0], : shape[1]]
        return columns[:, s.features + 1, : shape[0]]
