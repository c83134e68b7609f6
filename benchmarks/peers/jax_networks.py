"""Networks in JAX for PPO, as pytrees of weights: perceptrons for features, and a convolution with a perceptron for images.

CartPole has two networks of 2 x 64 tanh units. Breakout has a convolution of 16 filters of 3 x 3 and a hidden layer of 128
units, both with ReLU, which policy and value function share, as in `gpuvec.learners.networks.cnn`. All weights are orthogonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

FILTERS, KERNEL_SIZE, HIDDEN = 16, 3, 128
BREAKOUT_SHAPE, BREAKOUT_ACTIONS = (10, 10, 4), 3  # images (H, W, C)
LAYOUT = ("NHWC", "HWIO", "NHWC")  # of images, weights and results of the convolution


def orthogonal(key: Any, shape: tuple[int, ...], gain: float) -> tuple[Any, Any]:
    """Returns (weight, bias) of a layer, orthogonal and 0.

    Args:
        key: of the random numbers.
        shape: of the weight, whose last dimension is the number of outputs.
        gain: factor of the weight.
    """
    import jax

    return jax.nn.initializers.orthogonal(gain)(key, shape), jax.numpy.zeros(shape[-1])


def mlp(key: Any, sizes: Sequence[int], gain: float) -> list[Any]:
    """Returns the layers of a perceptron, as [(weight, bias)].

    Args:
        key: of the random numbers.
        sizes: numbers of the inputs, and of the outputs of each layer.
        gain: of the last layer; that of the others is sqrt(2).
    """
    import jax

    shapes = list(pairwise(sizes))
    gains = [2**0.5] * (len(shapes) - 1) + [gain]
    keys = jax.random.split(key, len(shapes))
    return [orthogonal(*layer) for layer in zip(keys, shapes, gains, strict=True)]


def apply_mlp(layers: Any, x: Any) -> Any:
    """Returns the output of a perceptron with tanh units, `layers`, for observations `x`, (..., D)."""
    import jax.numpy as jnp

    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def make_cartpole_network(key: Any) -> dict[str, Any]:
    """Returns the weights of policy and value function for CartPole; `key` is of the random numbers."""
    import jax

    actor_key, critic_key = jax.random.split(key)
    return {"actor": mlp(actor_key, (4, 64, 64, 2), 0.01), "critic": mlp(critic_key, (4, 64, 64, 1), 1.0)}


def make_breakout_network(key: Any) -> dict[str, Any]:
    """Returns the weights of the shared network for Breakout; `key` is of the random numbers."""
    import jax

    convolution_key, *keys = jax.random.split(key, 4)
    height, width, channels = BREAKOUT_SHAPE
    features = FILTERS * (height - KERNEL_SIZE + 1) * (width - KERNEL_SIZE + 1)
    gain = 2**0.5
    return {
        "convolution": orthogonal(convolution_key, (KERNEL_SIZE, KERNEL_SIZE, channels, FILTERS), gain),
        "hidden": orthogonal(keys[0], (features, HIDDEN), gain),
        "policy": orthogonal(keys[1], (HIDDEN, BREAKOUT_ACTIONS), 0.01),
        "value": orthogonal(keys[2], (HIDDEN, 1), 1.0),
    }


def log_probs_and_values(net: Any, obs: Any) -> tuple[Any, Any]:
    """Returns log-probabilities (..., N) and values (...) of the network `net`.

    Args:
        net: the weights, of one of `NETWORKS`.
        obs: (..., D) float32, or images (E, H, W, C) uint8.
    """
    import jax
    import jax.numpy as jnp

    if "convolution" not in net:
        return jax.nn.log_softmax(apply_mlp(net["actor"], obs)), apply_mlp(net["critic"], obs)[..., 0]
    weight, bias = net["convolution"]
    images = obs.astype(weight.dtype)
    x = jax.nn.relu(jax.lax.conv_general_dilated(images, weight, (1, 1), "VALID", dimension_numbers=LAYOUT) + bias)
    x = jax.nn.relu(x.reshape(len(x), -1) @ net["hidden"][0] + net["hidden"][1])
    logits, value = (x @ net[name][0] + net[name][1] for name in ("policy", "value"))
    return jax.nn.log_softmax(logits.astype(jnp.float32)), value[..., 0].astype(jnp.float32)


def as_dtype(net: Any, dtype: str) -> Any:
    """Returns the network `net` with weights of another `dtype`, in which its layers compute."""
    import jax

    return jax.tree.map(lambda x: x.astype(dtype), net)


NETWORKS = {"CartPole-v1": make_cartpole_network, "Breakout-MinAtar": make_breakout_network}
