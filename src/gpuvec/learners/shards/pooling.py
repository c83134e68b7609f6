"""Computations that pool numbers with the other shards of a training.

A pooling is a generator: it yields the numbers of its own shard, and receives those of all shards. Whoever runs it advances all
shards of a process in lockstep and exchanges what they yield with the other processes. In a training with one shard nothing is
yielded, and the results are those of a function without exchanges.

Letters: S shards, N numbers of a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.shards.shard import Shard

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")


class PoolRequest(NamedTuple):
    """What a shard yields."""

    values: Tensor  # (N,): the numbers of the shard
    only_sum: bool = False  # whether it receives the sum over the shards, (N,), instead of all numbers, (S, N)


Pooling = Generator[PoolRequest, Tensor, R]
Exchange = Callable[[Sequence[Tensor], bool], Tensor]
"""Returns (S, N), or with True the sum (N,), for the numbers (N,) of each shard of this process."""


def pooling_stage(method: Callable[Concatenate[Owner, P], Pooling[None]]) -> Callable[Concatenate[Owner, P], None]:
    """Makes a stage of a method that is a pooling: a call runs it in a training with one shard, `run_in_lockstep` in others."""

    @wraps(method)
    def run(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> None:
        run_alone(method(owner, *args, **kwargs))

    run.pooling = method  # type: ignore[attr-defined]  # `pooling_of` reads it
    return run


def run_alone(pooling: Pooling[R]) -> R:
    """Runs a pooling of a training with one shard, and returns its result.

    Raises:
        RuntimeError: it waits for other shards.
    """
    try:
        next(pooling)
    except StopIteration as result:
        value: R = result.value
        return value
    raise RuntimeError("a stage of one of several shards was called: it needs the other shards, so run them in lockstep.")


def pooling_of(stage: Callable[[], object]) -> Pooling[None]:
    """Returns the pooling of a stage, or one that calls it.

    Args:
        stage: a method, a partial call of one, or a function.
    """
    function: Any = stage.func if isinstance(stage, partial) else stage
    args = stage.args if isinstance(stage, partial) else ()
    method = getattr(getattr(function, "__func__", None), "pooling", None)
    if method is None:
        stage()
        return
    yield from method(function.__self__, *args)


def run_in_lockstep(stages: Sequence[Callable[[], object]], exchange: Exchange) -> None:
    """Runs the same stage of all shards of a process.

    After each exchange the first shard, which leads, continues before the others, so that they compute with what it wrote.

    Args:
        stages: that of each shard.
        exchange: exchanges numbers with the shards of other processes.

    Raises:
        RuntimeError: some shards exchange numbers and others do not.
    """
    poolings, reply = [pooling_of(stage) for stage in stages], None
    while True:
        requests = []
        for pooling in poolings:
            try:
                requests.append(pooling.send(reply))  # type: ignore[arg-type]  # a generator starts with None
            except StopIteration:
                continue
        if not requests:
            return
        if len(requests) < len(poolings):
            raise RuntimeError("the shards of a process exchange different numbers: their stages must be the same.")
        reply = exchange([request.values for request in requests], requests[0].only_sum)


def pooled_sum(shard: Shard, values: Tensor) -> Pooling[Tensor]:
    """Returns the sums over all shards of `values`, (N,), those of `shard`."""
    if shard.count == 1:
        return values
    return (yield PoolRequest(values, only_sum=True))


def pooled_mean(shard: Shard, means: Sequence[Tensor], mask: Tensor | None = None) -> Pooling[list[Tensor]]:
    """Returns means over the samples of all shards.

    Args:
        shard: the shard.
        means: tensors of any shapes (...): means over the samples of the shard.
        mask: (...) bool: the samples of the shard that count; None for equally many in all shards.
    """
    if shard.count == 1:
        return list(means)
    flat = torch.cat([x.reshape(-1) for x in means])
    if mask is None:
        pooled = (yield PoolRequest(flat, only_sum=True)) / shard.count
    else:
        count = mask.sum().to(flat.dtype)
        sums = yield PoolRequest(torch.cat([flat * count, count.view(1)]), only_sum=True)
        pooled = sums[:-1] / sums[-1].clamp(min=1.0)
    parts = pooled.split([x.numel() for x in means])
    return [part.view(x.shape).to(x.dtype) for part, x in zip(parts, means, strict=True)]


def pooled_var_means(
    shard: Shard, samples: Sequence[Tensor], masks: Sequence[Tensor | None]
) -> Pooling[list[tuple[Tensor, Tensor]]]:
    """Returns the unbiased variance and the mean of each tensor over all shards, as `masked_var_mean` for one.

    Args:
        shard: the shard.
        samples: tensors of any shapes (...).
        masks: (...) bool for each tensor: the samples that count; None for all.
    """
    if shard.count == 1:
        return [masked_var_mean(x, mask) for x, mask in zip(samples, masks, strict=True)]
    moments = torch.stack([_moments(x, mask) for x, mask in zip(samples, masks, strict=True)])
    counts, means, squares = (yield PoolRequest(moments.flatten())).view(shard.count, -1, 3).unbind(-1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1.0)
    squares = squares.sum(0) + (counts * (means - mean).square()).sum(0)
    var = squares / (total - 1.0).clamp(min=1.0)
    return [(var[k].float(), mean[k].float()) for k in range(len(samples))]


def _moments(x: Tensor, mask: Tensor | None) -> Tensor:
    """The number of samples, their mean, and the sum of squared deviations from it, (3,) float64."""
    weight = torch.ones_like(x) if mask is None else mask.to(x.dtype)
    count = weight.sum(dtype=torch.float64)
    mean = (x * weight).sum(dtype=torch.float64) / count.clamp(min=1.0)
    return torch.stack([count, mean, ((x - mean.float()).square() * weight).sum(dtype=torch.float64)])


@torch.no_grad()
def update_normalizer(shard: Shard, normalizer: Normalizer, obs: Tensor, mask: Tensor | None = None) -> Pooling[None]:
    """Merges the samples of all shards into the moments of a normaliser that the shards of a process share.

    Args:
        shard: the shard.
        normalizer: the normaliser.
        obs: (T, E, D) or with other leading dimensions: the samples of the shard.
        mask: (T, E) bool: the samples that count; None for all.
    """
    count, mean, var = normalizer.sample_moments(obs, mask)
    if shard.count > 1:
        numbers = yield PoolRequest(torch.cat([count.view(1), mean.flatten(), var.flatten()]))
        counts, means, variances = numbers.split([1, mean.numel(), var.numel()], dim=1)
        count = counts.sum()
        pooled_mean = (counts * means).sum(0) / count.clamp(min=1.0)
        pooled_var = (counts * (variances + (means - pooled_mean).square())).sum(0) / count.clamp(min=1.0)
        mean, var = pooled_mean.view(mean.shape), pooled_var.view(var.shape)
    if shard.leads:
        normalizer.merge(count, mean, var)


def lowest_fault(fault_rows: Tensor, no_fault: int) -> Tensor:
    """Returns the lowest row of all shards, (N,) int64, for `fault_rows`, (S, N) int64 with `no_fault` for none."""
    largest = torch.iinfo(fault_rows.dtype).max
    first_rows = fault_rows.where(fault_rows != no_fault, largest).amin(0)
    return first_rows.where(first_rows != largest, no_fault)
