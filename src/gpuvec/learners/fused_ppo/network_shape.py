"""The networks that the fused kernels support, and the memory layout of their parameters and records.

Letters: D features, H units of a hidden layer, N outputs of the policy, K components of an action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import SeparateMLP

SOURCE_FOLDER = Path(__file__).parent
HIDDEN_SIZES = (32, 64, 128, 256)  # of hidden layers; others are padded with units whose weights stay 0
MAX_FEATURES, MAX_OUTPUTS = 127, 48
NUM_SUMS = 5  # sums of the loss that the gradient kernel writes, see objective.cuh
MAX_SHARED_BYTES = 200 * 1024  # of a block of the gradient kernel, unless gradients are in place


class NetworkShape(NamedTuple):
    """The network, the action and the loss for which kernels are compiled."""

    features: int  # D
    hidden: int  # H, one of HIDDEN_SIZES
    layers: int  # number of hidden layers
    outputs: int  # N
    action_size: int  # K
    head_sizes: tuple[int, ...]  # of the components of a discrete action; () for a Gaussian
    relu: bool
    has_mask: bool
    clip_value: bool
    has_action_mask: bool = False
    normalize: bool = False  # whether observations are normalised
    has_places: bool = False  # whether observations are among those of other agents, see observation.cuh

    @property
    def padded_inputs(self) -> int:
        """Columns of the first weight matrix: the features, the bias, and zeros as padding."""
        return _round_up(self.features + 1, 8)

    @property
    def record_size(self) -> int:
        """Words of 4 bytes of the record of a sample, see record.cuh."""
        mask_words = -(-self.outputs // 32) if self.has_action_mask else 0
        return _round_up((self.features + 2) // 2 + self.action_size + 3 + self.has_mask + mask_words, 4)

    @property
    def warps(self) -> int:
        """Warps of a block of the gradient kernel."""
        return 8 if self.hidden >= 128 else 4

    @property
    def forward_warps(self) -> int:
        """Warps of a block of the kernels of rollouts, actions and values: a thread for each unit, at least."""
        return max(4, self.hidden // 32)

    @property
    def max_forward_rows(self) -> int:
        """Rows of a warp of these kernels, at most: the activations of both layers are in registers."""
        return 16 if self.hidden > 128 else 32

    @property
    def act_tiles(self) -> int:
        """Tiles of 16 rows that a warp of the kernel of actions processes at a time."""
        return 2 if self.hidden <= 64 and self.padded_inputs <= 32 else 1

    @property
    def act_bytes(self) -> int:
        """Bytes of shared memory of a block of the kernel of actions: weights, and outputs of its rows."""
        rows = self.forward_warps * 16 * self.act_tiles
        return self.weight_bytes(False) + rows * 4 * (self.padded_outputs + 1)

    def rollout_bytes(self, rows: int) -> int:
        """Returns the bytes of shared memory of a block of the kernel of rollouts, which has inputs and moments as well.

        Args:
            rows: of a warp.
        """
        row = 2 * self.input_pitch + 4 * (self.padded_outputs + 1)
        moments = 4 * (2 * self.features if self.normalize else 1)
        return self.weight_bytes(False) + self.forward_warps * rows * row + moments

    @property
    def keeps_activations(self) -> bool:
        """Whether gradients of weights do not fit into registers, and another kernel computes them from stored activations."""
        return self.hidden > 128

    @property
    def activation_columns(self) -> int:
        """Numbers that are stored for a sample, of both networks, as activations.cuh describes."""
        return self.padded_inputs + 4 * self.layers * self.hidden + self.padded_outputs + 8

    @property
    def tiles_per_warp(self) -> int:
        """Tiles of 16 rows that a warp of the gradient kernel processes at a time: two if registers suffice."""
        is_small = self.hidden <= 64 and self.padded_inputs <= 16 and self.outputs <= 8
        return 2 if is_small or self.keeps_activations else 1

    @property
    def rows_per_block(self) -> int:
        """Samples that a block of the gradient kernel processes at a time."""
        return 16 * self.tiles_per_warp * self.warps

    @property
    def in_place_gradients(self) -> bool:
        """Whether gradients overwrite the activations from which they are computed, since shared memory does not suffice."""
        return not self.keeps_activations and self._shared_bytes(False) > MAX_SHARED_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block of the gradient kernel, which computes the actor or the critic."""
        return self._shared_bytes(self.in_place_gradients)

    def _shared_bytes(self, in_place_gradients: bool) -> int:
        h, o, rows = self.hidden, self.padded_outputs, self.rows_per_block
        sums = self.warps * (2 * o + NUM_SUMS) * 4
        if self.keeps_activations:
            return self.weight_bytes(False) + sums
        layer, empty = rows * (h + 8), 8  # halves of the activations of a layer, and of a layer that does not exist
        second_layer = layer if self.layers == 2 else empty
        gradients = 2 * empty if in_place_gradients else layer + second_layer
        activations = 2 * (rows * (self.input_pitch + _pitch(o)) + layer + second_layer + gradients)
        return rows * self.record_size * 4 + self.weight_bytes(False) + activations + sums

    def weight_bytes(self, critic: bool) -> int:
        """Returns the bytes of shared memory of the parameters of the `critic`, or else of the actor."""
        h, o = self.hidden, 8 if critic else self.padded_outputs
        return 2 * (h * self.input_pitch + (h * (h + 8) if self.layers == 2 else 8) + o * (h + 8)) + 4 * (h + o)

    @property
    def padded_outputs(self) -> int:
        """Outputs of the policy, padded to a multiple of 8."""
        return _round_up(self.outputs, 8)

    @property
    def input_pitch(self) -> int:
        """Distance of two rows of inputs in shared memory, in float16 elements."""
        return _pitch(self.padded_inputs)

    @property
    def constants(self) -> dict[str, int | str]:
        """The macros of the kernels' sources."""
        head_sizes = self.head_sizes or (1,)
        return {
            "FEATURES": self.features, "HIDDEN": self.hidden, "LAYERS": self.layers, "OUTPUTS": self.outputs,
            "ACTION_SIZE": self.action_size, "GAUSSIAN": int(not self.head_sizes),
            "HEAD_SIZES": "{" + ", ".join(map(str, head_sizes)) + "}", "RELU": int(self.relu),
            "HAS_MASK": int(self.has_mask), "CLIP_VALUE": int(self.clip_value), "RECORD_SIZE": self.record_size,
            "HAS_ACTION_MASK": int(self.has_action_mask), "NORMALIZE": int(self.normalize),
            "HAS_PLACES": int(self.has_places),
            "WARPS": self.warps, "TILES": self.tiles_per_warp, "SHARED_BYTES": self.shared_bytes,
            "IN_PLACE_GRADIENTS": int(self.in_place_gradients),
        }  # fmt: skip

    def parameter_offsets(self, critic: bool) -> dict[str, tuple[int, tuple[int, int]]]:
        """Returns {name: (offset in floats, (rows, columns))} of the parameters of the `critic`, or else of the actor.

        The first bias is a column of "w1".
        """
        h, o = self.hidden, 8 if critic else self.padded_outputs
        sizes = {"w1": (h, self.padded_inputs)}
        sizes |= {"w2": (h, h), "b2": (1, h)} if self.layers == 2 else {}
        sizes |= {"w3": (o, h), "b3": (1, o), "log_std": (1, o)}
        offsets, offset = {}, self.num_parameters(False) if critic else 0
        for name, (rows, columns) in sizes.items():
            offsets[name] = (offset, (rows, columns))
            offset += rows * columns
        return offsets

    def num_parameters(self, both: bool = True) -> int:
        """Returns the number of parameters of the actor, or of `both` networks, with padding."""
        h = self.hidden
        hidden_layers = h * self.padded_inputs + (h * h + h if self.layers == 2 else 0)
        actor, critic = (hidden_layers + o * h + 2 * o for o in (self.padded_outputs, 8))
        return actor + critic if both else actor


def make_network_shape(network: Any, args: PPOArgs, has_mask: bool, has_action_mask: bool = False) -> NetworkShape | str:
    """Returns the shape of `network`, or the reason why the kernels do not support it.

    Args:
        network: the policy, an `ActorCritic` or another module.
        args: the settings, resolved.
        has_mask: whether samples have a mask.
        has_action_mask: whether the environment has a mask of actions.
    """
    body = getattr(network, "body", None)
    if not isinstance(network, ActorCritic) or type(body) is not SeparateMLP:
        return "the network is not one perceptron each for policy and value function (shared=False, no body of your own)"
    if network.has_critic_obs:
        return "the value function takes the observations of a critic"
    if args.precision != "tf32":
        return f"precision is {args.precision}, and the kernels use FP16 operands, whose mantissa is that of TF32"
    actor, critic = linear_layers(body.actor), linear_layers(body.critic)
    sizes = [layer.out_features for layer in actor[:-1]]
    if not 1 <= len(sizes) <= 2 or max(sizes) > HIDDEN_SIZES[-1]:
        return f"hidden layers are {tuple(sizes)}; one or two of at most {HIDDEN_SIZES[-1]} units are supported"
    features, outputs = actor[0].in_features, actor[-1].out_features
    if features > MAX_FEATURES or outputs > MAX_OUTPUTS:
        supported = f"{MAX_FEATURES} and {MAX_OUTPUTS} are supported"
        return f"there are {features} features and {outputs} outputs of the policy; {supported}"
    assert [layer.out_features for layer in critic[:-1]] == sizes, "both networks of a SeparateMLP have the same hidden layers"
    hidden = next(size for size in HIDDEN_SIZES if size >= max(sizes))
    head_sizes = network.sizes or ((outputs,) if network.discrete else ())
    action_size, relu = len(head_sizes) or outputs, args.activation == "relu"
    return NetworkShape(
        features, hidden, len(sizes), outputs, action_size, head_sizes, relu, has_mask, args.clip_value, has_action_mask,
        normalize=network.normalizer is not None,
    )  # fmt: skip


def linear_layers(network: nn.Sequential) -> list[nn.Linear]:
    """Returns the linear layers of `network`."""
    return [layer for layer in network if isinstance(layer, nn.Linear)]


def parameter_views(shape: NetworkShape, network: ActorCritic, flat: Tensor) -> dict[str, Tensor]:
    """Returns {parameter: its view of `flat`}, by the names of `network.named_parameters()`.

    Args:
        shape: of the network.
        network: the policy.
        flat: (N,) float32, all parameters, or the moments of all.
    """
    body: Any = network.body
    views: dict[Tensor, Tensor] = {}
    for critic, layers in ((False, linear_layers(body.actor)), (True, linear_layers(body.critic))):
        matrices = {
            name: flat[offset : offset + rows * columns].view(rows, columns)
            for name, (offset, (rows, columns)) in shape.parameter_offsets(critic).items()
        }
        first, *between, last = layers
        views[first.weight] = matrices["w1"][: first.out_features, : first.in_features]
        views[first.bias] = matrices["w1"][: first.out_features, first.in_features]
        for layer in between:
            views[layer.weight] = matrices["w2"][: layer.out_features, : layer.in_features]
            views[layer.bias] = matrices["b2"][0, : layer.out_features]
        views[last.weight] = matrices["w3"][: last.out_features, : last.in_features]
        views[last.bias] = matrices["b3"][0, : last.out_features]
        if not critic and not shape.head_sizes:
            views[network.log_std] = matrices["log_std"][0, : shape.outputs]
    return {name: views[p] for name, p in network.named_parameters()}


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _pitch(columns: int) -> int:
    """Returns the distance of two rows in shared memory in float16 elements, as `pitch` of network.cuh."""
    return columns if columns % 16 == 8 else columns + 8
