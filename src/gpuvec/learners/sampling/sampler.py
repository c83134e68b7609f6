"""Draws actions on the device: one kernel computes action, log-probability and entropy, with a thread for each row.

Letters: R rows, N logits of all heads, H heads (components of a MultiDiscrete action), K components of a Box action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.errors import ActionError
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher
from gpuvec.learners.sampling.action_kernels import (
    KEY_MEMBERS,
    make_categorical_draw,
    make_gaussian_draw,
    make_ornstein_uhlenbeck_draw,
)


class ActionSample(NamedTuple):
    """Actions of R rows, with their log-probabilities and the entropies of their distributions."""

    action: Tensor  # (R,) or (R, H) int64, or (R, K) float32
    log_prob: Tensor  # (R,) float32
    entropy: Tensor  # (R,) float32


class Sampler:
    """Draws the actions of one policy, or of several that have equally many rows.

    Args:
        device: the device of the tensors, "cpu" or "cuda:<index>"; "simulator" to debug kernels.
        seed: from 0 to 2**63 - 1; for P policies a sequence of P seeds. Policy k has the rows from k * R / P to
            (k + 1) * R / P - 1, and draws the numbers that it draws alone.
        stream: a number below 2,048, another one for each policy that draws with this seed.
        first_row: the number of the first row, on which the numbers that it draws depend.

    Raises:
        ValueError: a seed, a stream or a first row out of its range.
    """

    def __init__(self, device: str, seed: int | Sequence[int], stream: int = 0, first_row: int = 0) -> None:
        seeds = [seed] if isinstance(seed, int) else list(seed)
        if not 0 <= stream < 2048:
            raise ValueError(f"stream must be from 0 to 2047, got {stream}.")
        if invalid := [value for value in seeds if not 0 <= value < 2**63]:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {invalid[0]}.")
        if not 0 <= first_row < 2**32:
            raise ValueError(f"first_row must be from 0 to 2**32 - 1, got {first_row}.")
        self._launcher, self._first_row = ElementwiseLauncher(device), first_row
        self._policy_seeds, self._stream = torch.tensor(seeds, dtype=torch.int64, device=self._launcher.tensor_device), stream

    def categorical(
        self,
        logits: Tensor,
        iteration: Tensor,
        step: int,
        sizes: Sequence[int] | None = None,
        *,
        mask: Tensor | None = None,
        temperature: float = 1.0,
        greedy: bool = False,
        out: ActionSample | None = None,
    ) -> ActionSample:
        """Draws from unnormalised log-probabilities.

        Args:
            logits: (R, N) float32, C-contiguous.
            iteration: () int64 on the device; with `step` it must be new for each draw.
            step: a number below 2**32.
            sizes: number of logits of each head, for actions (R, H); None for one head and actions (R,).
            mask: (R, N) bool: the actions that are allowed, at least one of each head; None for all.
            temperature: above 0; logits are divided by it.
            greedy: take the likeliest action, the first of equally likely ones.
            out: tensors that are written; None for new ones.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
            ActionError: on a CPU, a mask that allows no action of a head. On a GPU, where this check would synchronise, the
                log-probability of such a row is nan.
        """
        rows, width = logits.shape
        heads = (width,) if sizes is None else tuple(map(int, sizes))
        if sum(heads) != width or min(heads) < 1:
            raise ValueError(f"sizes must add up to the {width} logits of a row, got {heads}.")
        if not temperature > 0.0:
            raise ValueError(f"temperature must be above 0, got {temperature}.")
        shape = (rows,) if sizes is None else (rows, len(heads))
        out = out or ActionSample(logits.new_empty(shape, dtype=torch.int64), logits.new_empty(rows), logits.new_empty(rows))
        if mask is not None and mask.shape == logits.shape and mask.device.type == "cpu":
            require_allowed(mask, heads)
        members = {"logits": logits, "mask": mask, **out._asdict()}
        expected = {"logits": ((rows, width), torch.float32), "mask": ((rows, width), torch.bool)}
        expected |= _sample_specs(shape, torch.int64)
        settings = (heads, float(temperature), mask is not None, greedy)
        kernel = Elementwise("categorical", (*members, *KEY_MEMBERS), make_categorical_draw, settings)
        self._launch(kernel, members, expected, iteration, step, rows)
        return out

    def gaussian(
        self,
        mean: Tensor,
        log_std: Tensor,
        iteration: Tensor,
        step: int,
        *,
        squashed: bool = False,
        greedy: bool = False,
        out: ActionSample | None = None,
    ) -> ActionSample:
        """Draws normal numbers; the caller clips them to the action space, or takes their hyperbolic tangents if `squashed`.

        Args:
            mean: (R, K) float32, C-contiguous.
            log_std: (K,) or (R, K) float32: logarithm of the standard deviation.
            iteration, step, out: as in `categorical`.
            squashed: log-probabilities are those of the hyperbolic tangents; entropies are minus them, which is an estimate.
            greedy: take the mean.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
        """
        rows, components = mean.shape
        shared_std = log_std.dim() == 1
        out = out or ActionSample(torch.empty_like(mean), mean.new_empty(rows), mean.new_empty(rows))
        members = {"mean": mean, "log_std": log_std, **out._asdict()}
        expected = {"mean": ((rows, components), torch.float32)} | _sample_specs((rows, components), torch.float32)
        expected["log_std"] = ((components,) if shared_std else (rows, components), torch.float32)
        settings = (components, shared_std, squashed, greedy)
        kernel = Elementwise("gaussian", (*members, *KEY_MEMBERS), make_gaussian_draw, settings)
        self._launch(kernel, members, expected, iteration, step, rows)
        return out

    def ornstein_uhlenbeck(
        self,
        mean: Tensor,
        noise: Tensor,
        episode_start: Tensor,
        low: Tensor,
        high: Tensor,
        iteration: Tensor,
        step: int,
        *,
        sigma: float,
        theta: float = 0.15,
        dt: float = 1.0,
        uniform_iterations: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        """Returns `mean` plus noise (Uhlenbeck and Ornstein, 1930), clipped to `low` and `high`, (R, K).

        Args:
            mean: (R, K) float32, C-contiguous.
            noise: (R, K) float32: the state of the noise, which is updated.
            episode_start: (R,) bool: rows in which an episode begins; their noise begins at 0.
            low, high: (K,) float32.
            iteration, step: as in `categorical`.
            sigma: standard deviation of the noise that a step of length 1 adds.
            theta: share of the noise that decays in a step of length 1; with theta * dt = 1 steps are independent.
            dt: length of a step.
            uniform_iterations: while `iteration` is below it, actions are uniformly distributed from `low` to `high` instead,
                and the noise remains 0.
            out: (R, K) float32, the tensor that is written; None for a new one.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
        """
        rows, components = mean.shape
        out = torch.empty_like(mean) if out is None else out
        members = {"mean": mean, "noise": noise, "episode_start": episode_start, "low": low, "high": high, "action": out}
        expected: dict[str, Any] = dict.fromkeys(("mean", "noise", "action"), ((rows, components), torch.float32))
        expected |= dict.fromkeys(("low", "high"), ((components,), torch.float32))
        expected["episode_start"] = ((rows,), torch.bool)
        settings = (components, float(theta), float(sigma), float(dt), int(uniform_iterations))
        kernel = Elementwise("ornstein_uhlenbeck", (*members, *KEY_MEMBERS), make_ornstein_uhlenbeck_draw, settings)
        self._launch(kernel, members, expected, iteration, step, rows)
        return out

    def _launch(
        self,
        kernel: Elementwise,
        tensors: Mapping[str, Any],
        expected: Mapping[str, Any],
        iteration: Tensor,
        step: int,
        rows: int,
    ) -> None:
        """Launches `kernel` with `tensors`, whose shapes and dtypes are `expected`, and the members of the key."""
        if rows % len(self._policy_seeds):
            raise ValueError(f"{len(self._policy_seeds)} policies must have equally many rows, got {rows} rows.")
        tensors = {**tensors, "seeds": self._policy_seeds, "iteration": iteration}
        expected = {**expected, "seeds": (tuple(self._policy_seeds.shape), torch.int64), "iteration": ((), torch.int64)}
        numbers = int(step), max(1, rows // len(self._policy_seeds)), self._stream, self._first_row
        self._launcher(kernel, rows, tensors, expected, numbers)


def require_allowed(mask: Tensor, sizes: Sequence[int]) -> None:
    """Checks that each row of a mask allows an action of each head.

    Args:
        mask: (R, N) bool.
        sizes: number of actions of each head.

    Raises:
        ActionError: a row allows no action of a head.
    """
    for head, head_mask in enumerate(mask.split(list(sizes), -1)):
        if not (any_allowed := head_mask.any(-1)).all():
            row, where = int(any_allowed.int().argmin()), f" of head {head}" if len(sizes) > 1 else ""
            raise ActionError(f"the mask of row {row} allows no action{where}: at least one must be allowed in each row.")


def _sample_specs(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Returns {name: (shape, dtype)} of an `ActionSample` whose actions have `shape` and `dtype`."""
    return {"action": (shape, dtype)} | dict.fromkeys(("log_prob", "entropy"), ((shape[0],), torch.float32))
