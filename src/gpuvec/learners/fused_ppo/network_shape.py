"""The networks that the fused kernels support, and the memory layout of their parameters and samples.

Letters: D features, H units of a hidden layer, N outputs of the policy, K components of an action, T steps, R rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import SeparateMLP

FOLDER = Path(__file__).parent
WIDTHS = (32, 64, 128)  # of hidden layers; others are padded with units whose weights stay 0
FEATURES, OUTPUTS = 64, 32  # at most
SUMS = 5  # sums over samples that a minibatch writes
MAX_SHARED_BYTES = 200 * 1024  # of a block of the gradient kernel
COLUMNS, LINES = 16, 8  # threads of an optimiser block that sum parts


class NetworkShape(NamedTuple):
    """The network, the action and the loss for which kernels are compiled."""

    features: int  # D
    hidden: int  # H, one of WIDTHS
    layers: int
    outputs: int  # N
    actions: int  # K
    heads: tuple[int, ...]  # sizes of a discrete action's components; () for a Gaussian
    relu: bool
    masked: bool
    clip_value: bool

    @property
    def inputs(self) -> int:
        """Columns of the first weight matrix: the features, the bias, and zeros as padding."""
        return _round_up(self.features + 1, 8)

    @property
    def record(self) -> int:
        """Floats of the record of a sample."""
        return _round_up(self.features + self.actions + 3 + self.masked, 4)

    @property
    def warps(self) -> int:
        """Warps of a block of the gradient kernel."""
        return 8 if self.hidden == 128 else 4

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows that a warp processes at a time: two if registers suffice."""
        return 2 if self.hidden <= 64 and self.inputs <= 16 and self.outputs <= 8 else 1

    @property
    def rows(self) -> int:
        """Samples that a block processes at a time."""
        return 16 * self.tiles * self.warps

    @property
    def in_place_gradients(self) -> bool:
        """Whether gradients overwrite the activations that they are computed from, because shared memory would not suffice."""
        return self._shared_bytes(False) > MAX_SHARED_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block of the gradient kernel, which computes the actor or the critic."""
        return self._shared_bytes(self.in_place_gradients)

    def _shared_bytes(self, in_place_gradients: bool) -> int:
        h, o, x, rows = self.hidden, self.padded_outputs, self.pitch, self.rows
        deep, full, none = self.layers == 2, rows * (h + 8), 8
        derivatives = 2 * none if in_place_gradients else full + (full if deep else none)
        activations = 2 * (rows * (x + _pitch(o)) + full + (full if deep else none) + derivatives)
        return rows * self.record * 4 + self.weights(False) + activations + self.warps * (2 * o + SUMS) * 4

    def weights(self, critic: bool) -> int:
        """Returns the bytes of shared memory of the parameters of the `critic`, or else of the actor."""
        h, o = self.hidden, 8 if critic else self.padded_outputs
        return 2 * (h * self.pitch + (h * (h + 8) if self.layers == 2 else 8) + o * (h + 8)) + 4 * (h + o)

    @property
    def padded_outputs(self) -> int:
        """Outputs of the policy, padded to a multiple of 8."""
        return _round_up(self.outputs, 8)

    @property
    def pitch(self) -> int:
        """Distance of two rows of inputs in shared memory, in float16 elements."""
        return _pitch(self.inputs)

    @property
    def constants(self) -> dict[str, int | str]:
        """The constants that are defined before the kernels' sources."""
        heads = self.heads or (1,)
        return {
            "FEATURES": self.features, "HIDDEN": self.hidden, "LAYERS": self.layers, "OUTPUTS": self.outputs,
            "ACTIONS": self.actions, "GAUSSIAN": int(not self.heads), "HEADS": "{" + ", ".join(map(str, heads)) + "}",
            "RELU": int(self.relu), "MASKED": int(self.masked), "CLIP_VALUE": int(self.clip_value), "RECORD": self.record,
            "WARPS": self.warps, "TILES": self.tiles, "SPACE": self.shared_bytes,
            "IN_PLACE_GRADIENTS": int(self.in_place_gradients),
        }  # fmt: skip

    def places(self, critic: bool) -> dict[str, tuple[int, tuple[int, int]]]:
        """Returns {name: (offset in floats, (rows, columns))} of the parameters of the `critic`, or else of the actor.

        The first bias is a column of "w1".
        """
        h, o = self.hidden, 8 if critic else self.padded_outputs
        sizes = {"w1": (h, self.inputs)}
        sizes |= {"w2": (h, h), "b2": (1, h)} if self.layers == 2 else {}
        sizes |= {"w3": (o, h), "b3": (1, o), "log_std": (1, o)}
        offsets, offset = {}, self.parameters(False) if critic else 0
        for name, (rows, columns) in sizes.items():
            offsets[name] = (offset, (rows, columns))
            offset += rows * columns
        return offsets

    def parameters(self, both: bool = True) -> int:
        """Returns the number of floats of the parameters of the actor, or of `both` networks."""
        h = self.hidden
        layers = h * self.inputs + (h * h + h if self.layers == 2 else 0)
        actor, critic = (layers + o * h + 2 * o for o in (self.padded_outputs, 8))
        return actor + critic if both else actor


def make_network_shape(network: Any, args: PPOArgs, masked: bool) -> NetworkShape | str:
    """Returns the shape of `network`, or the reason why the kernels do not support it.

    Args:
        network: the policy, an `ActorCritic` or another module.
        args: the settings, resolved.
        masked: whether samples have a mask.
    """
    body = getattr(network, "body", None)
    if not isinstance(network, ActorCritic) or type(body) is not SeparateMLP:
        return "the network is not one perceptron each for policy and value function (shared=False, no body of your own)"
    if args.precision != "tf32":
        return f"precision is {args.precision}, and the kernels use FP16 operands, whose mantissa is that of TF32"
    if network.normalizer is not None:
        return "observations are normalised (normalize=True)"
    actor, critic = linear_layers(body.actor), linear_layers(body.critic)
    widths = [layer.out_features for layer in actor[:-1]]
    if not 1 <= len(widths) <= 2 or max(widths) > WIDTHS[-1]:
        return f"hidden layers are {tuple(widths)}; one or two of at most {WIDTHS[-1]} units fit"
    features, outputs = actor[0].in_features, actor[-1].out_features
    if features > FEATURES or outputs > OUTPUTS:
        return f"there are {features} features and {outputs} outputs of the policy; {FEATURES} and {OUTPUTS} fit"
    assert [layer.out_features for layer in critic[:-1]] == widths, "both networks of a SeparateMLP have the same hidden layers"
    hidden = next(width for width in WIDTHS if width >= max(widths))
    heads = network.sizes or ((outputs,) if network.discrete else ())
    actions, relu = len(heads) or outputs, args.activation == "relu"
    return NetworkShape(features, hidden, len(widths), outputs, actions, heads, relu, masked, args.clip_value)


def linear_layers(network: nn.Sequential) -> list[nn.Linear]:
    """Returns the linear layers of `network`."""
    return [layer for layer in network if isinstance(layer, nn.Linear)]


def parameter_views(shape: NetworkShape, network: ActorCritic, flat: Tensor) -> dict[str, Tensor]:
    """Returns {parameter: its view of `flat`}, by the names of `network.named_parameters()`.

    Args:
        shape: of the network.
        network: the policy.
        flat: (N,) float32, all parameters or moments of it.
    """
    body: Any = network.body
    views: dict[Tensor, Tensor] = {}
    for critic, layers in ((False, linear_layers(body.actor)), (True, linear_layers(body.critic))):
        pieces = {
            name: flat[at : at + rows * columns].view(rows, columns)
            for name, (at, (rows, columns)) in shape.places(critic).items()
        }
        first, *between, last = layers
        views[first.weight] = pieces["w1"][: first.out_features, : first.in_features]
        views[first.bias] = pieces["w1"][: first.out_features, first.in_features]
        for layer in between:
            views[layer.weight] = pieces["w2"][: layer.out_features, : layer.in_features]
            views[layer.bias] = pieces["b2"][0, : layer.out_features]
        views[last.weight] = pieces["w3"][: last.out_features, : last.in_features]
        views[last.bias] = pieces["b3"][0, : last.out_features]
        if not critic and not shape.heads:
            views[network.log_std] = pieces["log_std"][0, : shape.outputs]
    return {name: views[p] for name, p in network.named_parameters()}


def _round_up(count: int, to: int) -> int:
    return -(-count // to) * to


def _pitch(columns: int) -> int:
    """Distance of two rows in shared memory in float16 elements, as in network.cuh: rows begin in different banks."""
    return columns if columns % 16 == 8 else columns + 8
