"""Sums over the shards of a training.

A process computes the part of each of its shards by itself, and hands the numbers of all of them to a `Reduce`, which adds
those of all processes in the order of the shards. In a training with one shard it returns the numbers as they are.

Letters: S shards, N numbers of a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.shards.process_group import Processes

Masks = Sequence[Tensor | None]
"""(...) bool for each shard of this process: the samples that count; None for all."""


@dataclass(frozen=True)
class Shard:
    """One of the equal parts into which the environments of a training are divided.

    A shard computes its rows alone, whatever process has it, so that the results do not depend on the number of processes.
    """

    index: int = 0
    """Its environments begin at `index` times their number in the numbering of all environments."""
    count: int = 1
    """The number of shards of the training."""


class Reduce:
    """Adds numbers of all shards of a training; the arguments are those of the shards of this process, in their order.

    Args:
        count: S.
        processes: the processes of the training; None for this one alone.
    """

    def __init__(self, count: int = 1, processes: Processes | None = None) -> None:
        self.count, self.processes = count, processes or Processes()

    def gather(self, numbers: Sequence[Tensor], only_sum: bool = False) -> Tensor:
        """Returns the numbers of all shards, (S, N).

        Args:
            numbers: (N,) of each shard of this process.
            only_sum: whether their sum is returned, (N,).

        Raises:
            RuntimeError: the numbers of other shards are missing.
            LostProcessError: another process ended.
        """
        if len(numbers) * self.processes.size != self.count:
            raise RuntimeError(
                f"the numbers of {len(numbers)} shards were given in each of {self.processes.size} processes, and the training "
                f"has {self.count}: a stage needs the other shards, so call that of the first policy of the process."
            )
        return self.processes.exchange(numbers, only_sum)

    def sum(self, numbers: Sequence[Tensor]) -> Tensor:
        """Returns the sums over all shards of `numbers`, (N,) of each shard of this process."""
        return numbers[0] if self.count == 1 else self.gather(numbers, only_sum=True)

    def mean(self, means: Sequence[Sequence[Tensor]], masks: Masks) -> list[Tensor]:
        """Returns means over the samples of all shards.

        Args:
            means: for each shard of this process tensors of any shapes (...), which are means over its samples.
            masks: the samples that count; None for equally many in all shards.
        """
        if self.count == 1:
            return list(means[0])
        flat = [torch.cat([x.reshape(-1) for x in each]) for each in means]
        counts = [mask.sum().to(x.dtype) for x, mask in zip(flat, masks, strict=True) if mask is not None]
        if counts:
            sums = self.sum([torch.cat([x * count, count.view(1)]) for x, count in zip(flat, counts, strict=True)])
            pooled = sums[:-1] / sums[-1].clamp(min=1.0)
        else:
            pooled = self.sum(flat) / self.count
        parts = pooled.split([x.numel() for x in means[0]])
        return [part.view(x.shape).to(x.dtype) for part, x in zip(parts, means[0], strict=True)]

    def var_means(self, samples: Sequence[Sequence[Tensor]], masks: Sequence[Masks]) -> list[tuple[Tensor, Tensor]]:
        """Returns the unbiased variance and the mean of each tensor over all shards, as `masked_var_mean` for one.

        Args:
            samples: for each shard of this process tensors of any shapes (...).
            masks: for each of these tensors the samples that count.
        """
        if self.count == 1:
            return [masked_var_mean(x, mask) for x, mask in zip(samples[0], masks[0], strict=True)]
        moments = [
            torch.stack([_moments(x, mask) for x, mask in zip(*each, strict=True)]) for each in zip(samples, masks, strict=True)
        ]
        counts, means, squares = self.gather([x.flatten() for x in moments]).view(self.count, -1, 3).unbind(-1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total.clamp(min=1.0)
        squares = squares.sum(0) + (counts * (means - mean).square()).sum(0)
        var = squares / (total - 1.0).clamp(min=1.0)
        return [(var[k].float(), mean[k].float()) for k in range(len(var))]

    @torch.no_grad()
    def update_normalizer(self, normalizer: Normalizer, obs: Sequence[Tensor], masks: Masks) -> None:
        """Merges the samples of all shards into the moments of a normaliser that the shards of a process share.

        Args:
            normalizer: the normaliser.
            obs: for each shard of this process (T, E, D), or with other leading dimensions.
            masks: the samples that count.
        """
        moments = [normalizer.sample_moments(x, mask) for x, mask in zip(obs, masks, strict=True)]
        count, mean, var = moments[0]
        if self.count > 1:
            numbers = self.gather([torch.cat([x.flatten() for x in each]) for each in moments])
            counts, means, variances = numbers.split([1, mean.numel(), var.numel()], dim=1)
            count = counts.sum()
            pooled_mean = (counts * means).sum(0) / count.clamp(min=1.0)
            pooled_var = (counts * (variances + (means - pooled_mean).square())).sum(0) / count.clamp(min=1.0)
            mean, var = pooled_mean.view(mean.shape), pooled_var.view(var.shape)
        normalizer.merge(count, mean, var)


def _moments(x: Tensor, mask: Tensor | None) -> Tensor:
    """The number of samples, their mean, and the sum of squared deviations from it, (3,) float64."""
    weight = torch.ones_like(x) if mask is None else mask.to(x.dtype)
    count = weight.sum(dtype=torch.float64)
    mean = (x * weight).sum(dtype=torch.float64) / count.clamp(min=1.0)
    return torch.stack([count, mean, ((x - mean.float()).square() * weight).sum(dtype=torch.float64)])
