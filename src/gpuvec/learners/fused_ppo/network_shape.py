"""Which networks the fused kernels are made for, and how their parameters and samples lie.

Letters: D features, H units of a hidden layer, N numbers of the policy, K numbers of an action, T steps, R rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import Separate

FOLDER = Path(__file__).parent
WIDTHS = (32, 64, 128)  # of hidden layers; others are filled up with units that nothing comes of
FEATURES, OUTPUTS = 64, 32  # at most
MEASURED = 5  # sums over samples that a minibatch leaves
ROOM = 200 * 1024  # bytes of shared memory that a block of the gradient may take
COLUMNS, LINES = 16, 8  # threads of a block of the optimiser that sum up


class Shape(NamedTuple):
    """What the kernels are compiled for."""

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
        """Columns of the first weights: the features, the biases, and zeros."""
        return _up(self.features + 1, 8)

    @property
    def record(self) -> int:
        """Floats of a sample."""
        return _up(self.features + self.actions + 3 + self.masked, 4)

    @property
    def warps(self) -> int:
        """Of a block of the gradient."""
        return 8 if self.hidden == 128 else 4

    @property
    def tiles(self) -> int:
        """Of 16 rows, which a warp has at a time: two where registers suffice."""
        return 2 if self.hidden <= 64 and self.inputs <= 16 and self.outputs <= 8 else 1

    @property
    def rows(self) -> int:
        """Samples that a block has at a time."""
        return 16 * self.tiles * self.warps

    @property
    def in_place_gradients(self) -> bool:
        """Whether derivatives take the place of what they are derived from, as there is none for them otherwise."""
        return self._room(False) > ROOM

    @property
    def room(self) -> int:
        """Bytes of shared memory of a block of the gradient, which has the actor or the critic."""
        return self._room(self.in_place_gradients)

    def _room(self, in_place_gradients: bool) -> int:
        h, o, x, rows = self.hidden, self.numbers, self.pitch, self.rows
        deep, full, none = self.layers == 2, rows * (h + 8), 8
        derivatives = 2 * none if in_place_gradients else full + (full if deep else none)
        activations = 2 * (rows * (x + _pitch(o)) + full + (full if deep else none) + derivatives)
        return rows * self.record * 4 + self.weights(False) + activations + self.warps * (2 * o + MEASURED) * 4

    def weights(self, critic: bool) -> int:
        """Bytes of shared memory of a network's parameters."""
        h, o = self.hidden, 8 if critic else self.numbers
        return 2 * (h * self.pitch + (h * (h + 8) if self.layers == 2 else 8) + o * (h + 8)) + 4 * (h + o)

    @property
    def numbers(self) -> int:
        """Of the policy, filled up."""
        return _up(self.outputs, 8)

    @property
    def pitch(self) -> int:
        """Halves from one row of inputs to the next in shared memory."""
        return _pitch(self.inputs)

    @property
    def constants(self) -> dict[str, int | str]:
        """What the kernels' sources are given."""
        heads = self.heads or (1,)
        return {
            "FEATURES": self.features, "HIDDEN": self.hidden, "LAYERS": self.layers, "OUTPUTS": self.outputs,
            "ACTIONS": self.actions, "GAUSSIAN": int(not self.heads), "HEADS": "{" + ", ".join(map(str, heads)) + "}",
            "RELU": int(self.relu), "MASKED": int(self.masked), "CLIP_VALUE": int(self.clip_value), "RECORD": self.record,
            "WARPS": self.warps, "TILES": self.tiles, "SPACE": self.room, "FRUGAL": int(self.in_place_gradients),
        }  # fmt: skip

    def places(self, critic: bool) -> dict[str, tuple[int, tuple[int, int]]]:
        """{name: (offset in floats, (rows, columns))} of a network's parameters; the first biases are a column of W1."""
        h, o = self.hidden, 8 if critic else self.numbers
        sizes = {"w1": (h, self.inputs)}
        sizes |= {"w2": (h, h), "b2": (1, h)} if self.layers == 2 else {}
        sizes |= {"w3": (o, h), "b3": (1, o), "log_std": (1, o)}
        found, at = {}, self.parameters(False) if critic else 0
        for name, (rows, columns) in sizes.items():
            found[name] = (at, (rows, columns))
            at += rows * columns
        return found

    def parameters(self, both: bool = True) -> int:
        """Floats of the actor, or of `both`."""
        h = self.hidden
        layers = h * self.inputs + (h * h + h if self.layers == 2 else 0)
        actor, critic = (layers + o * h + 2 * o for o in (self.numbers, 8))
        return actor + critic if both else actor


def shape_of(network: Any, args: PPOArgs, masked: bool) -> Shape | str:
    """The shape of what is to be learned, or why it does not fit."""
    body = getattr(network, "body", None)
    if not isinstance(network, ActorCritic) or type(body) is not Separate:
        return "the network is not a perceptron each for policy and value function (shared=False, no body of one's own)"
    if args.precision != "tf32":
        return f"precision is {args.precision}, and the kernels take operands in FP16, whose mantissa is TF32's"
    if network.normalizer is not None:
        return "observations are normalised (normalize=True)"
    actor, critic = layers_of(body.actor), layers_of(body.critic)
    widths = [layer.out_features for layer in actor[:-1]]
    if not 1 <= len(widths) <= 2 or max(widths) > WIDTHS[-1]:
        return f"hidden layers are {tuple(widths)}; one or two of at most {WIDTHS[-1]} units fit"
    features, outputs = actor[0].in_features, actor[-1].out_features
    if features > FEATURES or outputs > OUTPUTS:
        return f"there are {features} features and {outputs} numbers of the policy; {FEATURES} and {OUTPUTS} fit"
    assert [layer.out_features for layer in critic[:-1]] == widths, "of a Separate"
    hidden = next(width for width in WIDTHS if width >= max(widths))
    heads = network.sizes or ((outputs,) if network.discrete else ())
    actions, relu = len(heads) or outputs, args.activation == "relu"
    return Shape(features, hidden, len(widths), outputs, actions, heads, relu, masked, args.clip_value)


def layers_of(network: nn.Sequential) -> list[nn.Linear]:
    """Its layers that have weights."""
    return [layer for layer in network if isinstance(layer, nn.Linear)]


def views(shape: Shape, network: ActorCritic, flat: Tensor) -> dict[str, Tensor]:
    """{parameter: where it is in `flat`, (parameters,)}, by the names of `network.named_parameters()`."""
    body: Any = network.body
    found: dict[Tensor, Tensor] = {}
    for critic, layers in ((False, layers_of(body.actor)), (True, layers_of(body.critic))):
        pieces = {
            name: flat[at : at + rows * columns].view(rows, columns)
            for name, (at, (rows, columns)) in shape.places(critic).items()
        }
        first, *between, last = layers
        found[first.weight] = pieces["w1"][: first.out_features, : first.in_features]
        found[first.bias] = pieces["w1"][: first.out_features, first.in_features]
        for layer in between:
            found[layer.weight] = pieces["w2"][: layer.out_features, : layer.in_features]
            found[layer.bias] = pieces["b2"][0, : layer.out_features]
        found[last.weight] = pieces["w3"][: last.out_features, : last.in_features]
        found[last.bias] = pieces["b3"][0, : last.out_features]
        if not critic and not shape.heads:
            found[network.log_std] = pieces["log_std"][0, : shape.outputs]
    return {name: found[p] for name, p in network.named_parameters()}


def _up(count: int, to: int) -> int:
    return -(-count // to) * to


def _pitch(columns: int) -> int:
    """Halves from one row to the next in shared memory, as in network.cuh."""
    return columns if columns % 16 == 8 else columns + 8
