"""Losses and metrics of users, which `train(loss=..., metrics=...)` takes, for the algorithms on `on_policy.OnPolicy`.

A loss of a user is called for each minibatch, after that of the algorithm::

    def loss(network, samples, args, own_loss):
        roughness = ...
        return own_loss + 0.1 * roughness, {"roughness": roughness}

    network    the `ActorCritic` that learns
    samples    `rollout_buffer.Samples` of the minibatch, of A2C of the rollout, (B, ...) each
    args       the settings
    own_loss   (): the loss of the algorithm. A function that does not use it replaces it.

It returns the loss that is differentiated, (), alone or with {name: ()} of metrics, which are averaged over the minibatches.
Where `samples.mask` is not None, means must leave out other samples: `masked_moments.masked_mean` does.

A metric of a user is a function of `(network, samples)` that returns (). It is called once in an iteration after the update,
without gradients, with all samples of the rollout, (T * R, ...).

On a GPU both are captured in CUDA graphs. They must not read tensors on the host, as `.item()` and `print` do, branch on them,
or copy tensors between devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpuvec.learners.buffers.rollout_buffer import Samples

StandardLoss = Callable[..., tuple[Tensor, Tensor]]
"""`loss(network, samples, args, ent_coef, ...)` returns the loss of an algorithm, (), and its metrics, (N,)."""
Loss = Callable[[Any, Samples, Any, Tensor], Tensor | tuple[Tensor, Mapping[str, Tensor]]]
"""A loss of a user, as the docstring of this module says."""
Metrics = Mapping[str, Callable[[Any, Samples], Tensor]]
"""{name: metric of a user}, as the docstring of this module says."""
PROBED_SAMPLES = 2


def probe_loss(loss: Loss, network: Any, samples: Samples, args: Any, taken: Collection[str]) -> tuple[str, ...]:
    """Calls a loss of a user for two samples, and returns the names of its metrics.

    Args:
        loss: the function.
        network: the network.
        samples: (T, R, ...) each, of any numbers.
        args: the settings.
        taken: names that other metrics have.

    Raises:
        ValueError: it does not return what it must.
    """
    name = f"loss={describe(loss)}"
    own_loss = next(network.parameters()).sum() * 0.0
    with without_synchronization(own_loss.device, name):
        result = loss(network, flat_samples(samples, PROBED_SAMPLES), args, own_loss)
    _, metrics = checked_result(loss, result)
    require_names(metrics, taken, name)
    return tuple(metrics)


def checked_result(loss: Loss, result: object) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Returns the `result` of a `loss` of a user with its metrics, which may be none.

    Raises:
        ValueError: it is not what a loss must return.
    """
    name = f"loss={describe(loss)}"
    total, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(total, Tensor) or total.shape != () or not isinstance(metrics, Mapping):
        raise ValueError(
            f"{name} must return a tensor of shape (), or such a tensor and {{name: tensor}}, got {shape_of(result)}."
        )
    if not total.requires_grad:
        raise ValueError(f"{name} returned a tensor without a gradient: compute it from the network without no_grad or detach.")
    for metric_name, value in metrics.items():
        require_scalar(value, f"the metric {metric_name!r} of {name}")
    return total, metrics


def probe_metrics(metrics: Metrics, network: Any, samples: Samples, taken: Collection[str]) -> None:
    """Calls metrics of a user for two samples.

    Args:
        metrics: {name: function}.
        network: the network.
        samples: (T, R, ...) each, of any numbers.
        taken: names that other metrics have.

    Raises:
        ValueError: a function does not return what it must, or a name is taken.
    """
    require_names(metrics, taken, "metrics=")
    for name, compute in metrics.items():
        with torch.no_grad(), without_synchronization(samples.advantage.device, f"the metric {name!r}"):
            require_scalar(compute(network, flat_samples(samples, PROBED_SAMPLES)), f"the metric {name!r}")


def with_own_loss(standard: StandardLoss, loss: Loss, names: tuple[str, ...]) -> StandardLoss:
    """Returns the loss of an algorithm with that of a user, whose metrics follow those of the algorithm.

    Args:
        standard: the loss of the algorithm.
        loss: that of the user.
        names: of its metrics.
    """

    def loss_with_own(network: Any, samples: Samples, args: Any, *more: Any) -> tuple[Tensor, Tensor]:
        own_loss, metrics = standard(network, samples, args, *more)
        flat = samples if samples.advantage.dim() == 1 else flat_samples(samples)
        total, own_metrics = checked_result(loss, loss(network, flat, args, own_loss))
        if own_metrics.keys() != set(names):
            raise ValueError(
                f"loss={describe(loss)} returned the metrics {list(own_metrics)}, and {list(names)} before: return the "
                "same ones in each call."
            )
        return total, torch.cat([metrics, *(own_metrics[name].detach().view(1).to(metrics.dtype) for name in names)])

    return loss_with_own


def flat_samples(samples: Samples, count: int | None = None) -> Samples:
    """Returns samples with one leading dimension, (T * R, ...), or the first `count` of them.

    Args:
        samples: (T, R, ...) each.
        count: their number; None for all.
    """
    return Samples(**{name: x.flatten(0, 1)[:count] for name, x in samples._asdict().items() if x is not None})


def require_names(names: Collection[Any], taken: Collection[str], owner: str) -> None:
    """Raises ValueError unless names are new names of metrics.

    Args:
        names: the names.
        taken: names that other metrics have.
        owner: whose names they are, for the message.
    """
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise ValueError(
                f"{owner} has a metric {name!r}; a name is a Python identifier, and not one of {', '.join(taken)}."
            )


def require_scalar(value: object, owner: str) -> None:
    """Raises ValueError unless a value is a tensor of shape ().

    Args:
        value: the value.
        owner: what returned it, for the message.
    """
    if not isinstance(value, Tensor) or value.shape != ():
        raise ValueError(f"{owner} must be a tensor of shape (), got {shape_of(value)}.")


def shape_of(value: object) -> str:
    """Returns the type of a value, with the shape of a tensor.

    Args:
        value: the value.
    """
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def describe(function: Any) -> str:
    """Returns the name of a function, or that of the class of an object."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


@contextmanager
def without_synchronization(device: torch.device, owner: str) -> Iterator[None]:
    """In the block, on a GPU, an operation of PyTorch that waits for the device raises an error.

    Args:
        device: of the tensors.
        owner: what runs in the block, for the message.

    Raises:
        ValueError: an operation waited. A CUDA graph could not contain it.
    """
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
        yield
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise
        raise ValueError(
            f"{owner} waits for the GPU, which CUDA graphs cannot: leave out .item(), .cpu(), print and `if` on tensors, and "
            "create constants on the device of the samples, without a copy from the host, for example by torch.full."
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
