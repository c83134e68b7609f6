"""Nested dicts of tensors, copied and restored in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import StateError


def clone_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same nesting with copies of the `tensors`, which have any shapes (...)."""
    return {name: x.detach().clone() if isinstance(x, Tensor) else clone_tensors(x) for name, x in tensors.items()}


@torch.no_grad()
def copy_into(tensors: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Copies `saved` into `tensors` in place, so that CUDA graphs and optimisers that hold their addresses stay valid.

    Args:
        tensors: nested dicts of tensors of any shapes (...).
        saved: the same nesting, shapes and dtypes.

    Raises:
        StateError: other names, shapes or dtypes; nothing is written then.
    """
    pairs = _pairs(tensors, saved, "")
    for own, other in pairs:
        own.copy_(other)


def _pairs(tensors: Mapping[str, Any], saved: Mapping[str, Any], path: str) -> list[tuple[Tensor, Tensor]]:
    if not isinstance(saved, Mapping) or tensors.keys() != saved.keys():
        names = list(saved) if isinstance(saved, Mapping) else type(saved).__name__
        raise StateError(
            f"this is no state of the learner: {path or 'it'} has {names}, expected {sorted(tensors)}; "
            "it was saved by another algorithm, network or environment."
        )
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, own in tensors.items():
        other = saved[name]
        if not isinstance(own, Tensor):
            pairs += _pairs(own, other, f"{path}{name}.")
        elif not isinstance(other, Tensor):
            raise StateError(f"{path}{name} must be a tensor of shape {tuple(own.shape)}, got {type(other).__name__}.")
        elif own.shape != other.shape or own.dtype != other.dtype:
            raise StateError(
                f"{path}{name} must have shape {tuple(own.shape)} and dtype {own.dtype}, "
                f"got {tuple(other.shape)} and {other.dtype}: it was saved with other settings, or by another version."
            )
        else:
            pairs.append((own, other))
    return pairs
