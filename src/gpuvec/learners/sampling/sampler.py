"""Actions drawn on the device: the action, its log-probability and the entropy by one kernel, a thread for each row.

Letters: R rows, N logits in all, H heads (components of a MultiDiscrete action), K components of a Box action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise import Elementwise
from gpuvec.errors import ActionError
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher
from gpuvec.learners.sampling.action_kernels import KEY, categorical, gaussian, noisy


class Drawn(NamedTuple):
    """What is drawn for R rows."""

    action: Tensor  # (R,) or (R, H) int64, or (R, K) float32
    log_prob: Tensor  # (R,) float32
    entropy: Tensor  # (R,) float32


class Sampler:
    """Draws of one policy.

    Args:
        device: "cpu" or "cuda:<index>", where the tensors are; "simulator" to debug kernels.
        seed: from 0 to 2**63 - 1.
        stream: a number below 2,048 for each policy that draws with this seed.
    """

    def __init__(self, device: str, seed: int, stream: int = 0) -> None:
        if not 0 <= stream < 2048:
            raise ValueError(f"stream must be from 0 to 2047, got {stream}.")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {seed}.")
        self._launches = ElementwiseLauncher(device)
        self._seed, self._stream = seed, stream

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
        out: Drawn | None = None,
    ) -> Drawn:
        """Draws from unnormalised log-probabilities.

        Args:
            logits: (R, N) float32, C-contiguous.
            iteration: scalar int64 on the device; with `step` it must be new for each draw.
            step: a number below 2**32.
            sizes: N of each head, for actions (R, H); None for one head and actions (R,).
            mask: (R, N) bool, which actions are allowed, at least one of each head; None for all.
            temperature: above 0; logits are divided by it.
            greedy: take the likeliest action, the first of equally likely ones.
            out: where to write; None for new tensors.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
            ActionError: on a CPU, a mask that allows no action of a head. On a GPU, where looking would wait for the device,
                the log-probability of such a row is nan.
        """
        rows, width = logits.shape
        heads = (width,) if sizes is None else tuple(map(int, sizes))
        if sum(heads) != width or min(heads) < 1:
            raise ValueError(f"sizes must add up to the {width} logits of a row, got {heads}.")
        if not temperature > 0.0:
            raise ValueError(f"temperature must be above 0, got {temperature}.")
        shape = (rows,) if sizes is None else (rows, len(heads))
        out = out or Drawn(logits.new_empty(shape, dtype=torch.int64), logits.new_empty(rows), logits.new_empty(rows))
        if mask is not None and mask.shape == logits.shape and mask.device.type == "cpu":
            require_allowed(mask, heads)
        members = {"logits": logits, "mask": mask, **out._asdict()}
        expected = {"logits": ((rows, width), torch.float32), "mask": ((rows, width), torch.bool)} | _outputs(
            shape, torch.int64
        )
        work = Elementwise("categorical", (*members, *KEY), categorical, (heads, float(temperature), mask is not None, greedy))
        self._launch(work, members, expected, iteration, step, rows)
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
        out: Drawn | None = None,
    ) -> Drawn:
        """Draws normal numbers; whoever plays clips them, or takes their hyperbolic tangent if `squashed`.

        Args:
            mean: (R, K) float32, C-contiguous.
            log_std: (K,) or (R, K) float32: logarithm of the standard deviation.
            iteration, step, out: as in `categorical`.
            squashed: log-probabilities are those of the hyperbolic tangents, and the entropy is minus them, an estimate.
            greedy: take the mean.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
        """
        rows, components = mean.shape
        shared = log_std.dim() == 1
        out = out or Drawn(torch.empty_like(mean), mean.new_empty(rows), mean.new_empty(rows))
        members = {"mean": mean, "log_std": log_std, **out._asdict()}
        expected = {"mean": ((rows, components), torch.float32)} | _outputs((rows, components), torch.float32)
        expected["log_std"] = ((components,) if shared else (rows, components), torch.float32)
        work = Elementwise("gaussian", (*members, *KEY), gaussian, (components, shared, squashed, greedy))
        self._launch(work, members, expected, iteration, step, rows)
        return out

    def noisy(
        self,
        mean: Tensor,
        noise: Tensor,
        ended: Tensor,
        low: Tensor,
        high: Tensor,
        iteration: Tensor,
        step: int,
        *,
        sigma: float,
        theta: float = 0.15,
        dt: float = 1.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """(R, K) `mean` plus noise of Ornstein and Uhlenbeck (1930), clipped to `low` and `high`, (K,).

        Args:
            mean: (R, K) float32, C-contiguous.
            noise: (R, K) float32: the state of the noise, which is moved on.
            ended: (R,) bool: rows in which an episode begins; their noise begins at 0.
            low, high: (K,) float32.
            iteration, step: as in `categorical`.
            sigma: standard deviation of a step of length 1.
            theta: how much of the noise fades in a step of length 1; with theta * dt = 1 steps are independent.
            dt: length of a step.
            out: where to write; None for a new tensor.

        Raises:
            ValueError, TypeError: tensors of other shapes, types or devices.
        """
        rows, components = mean.shape
        out = torch.empty_like(mean) if out is None else out
        members = {"mean": mean, "noise": noise, "ended": ended, "low": low, "high": high, "action": out}
        expected: dict[str, Any] = dict.fromkeys(("mean", "noise", "action"), ((rows, components), torch.float32))
        expected |= dict.fromkeys(("low", "high"), ((components,), torch.float32)) | {"ended": ((rows,), torch.bool)}
        work = Elementwise("noisy", (*members, *KEY), noisy, (components, float(theta), float(sigma), float(dt)))
        self._launch(work, members, expected, iteration, step, rows)
        return out

    def _launch(
        self,
        work: Elementwise,
        tensors: Mapping[str, Any],
        expected: Mapping[str, Any],
        iteration: Tensor,
        step: int,
        rows: int,
    ) -> None:
        key = {"iteration": ((), torch.int64)}
        numbers = (int(step), self._seed, self._stream)
        self._launches(work, rows, {**tensors, "iteration": iteration}, {**expected, **key}, numbers)


def require_allowed(mask: Tensor, sizes: Sequence[int]) -> None:
    """Raises ActionError unless each row of a mask, (R, N) bool, allows an action of each head."""
    for head, part in enumerate(mask.split(list(sizes), -1)):
        if not (some := part.any(-1)).all():
            where = f" of head {head}" if len(sizes) > 1 else ""
            raise ActionError(
                f"the mask of row {int(some.int().argmin())} allows no action{where}: at least one must be allowed in each row."
            )


def _outputs(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Shapes and types of what is drawn."""
    return {"action": (shape, dtype)} | dict.fromkeys(("log_prob", "entropy"), ((shape[0],), torch.float32))
