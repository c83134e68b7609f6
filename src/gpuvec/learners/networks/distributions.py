"""Distributions of actions: drawn by the sampler's kernels, and plain tensor arithmetic that gradients pass through.

`torch.distributions` checks and broadcasts its arguments at every call, which costs several times the arithmetic itself;
the tests compare with it. Nothing waits for the device, so all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.sampling import Drawn, Sampler

LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Categorical(NamedTuple):
    """One of N actions; actions are (...,) int64."""

    log_probs: Tensor
    """(..., N), normalised."""

    @classmethod
    def of(cls, logits: Tensor) -> Categorical:
        """From unnormalised log-probabilities, (..., N)."""
        return cls(logits.log_softmax(-1))

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """An action of each row, with its log-probability; `iteration`, `step` and `out` as in `Sampler`."""
        drawn = sampler.categorical(rows(self.log_probs), iteration, step, out=out)
        return of_shape(drawn, self.log_probs.shape[:-1])

    def mode(self) -> Tensor:
        """(...,): the likeliest action."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(...,) of `action`, (...,)."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """(...,) in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class MultiCategorical(NamedTuple):
    """K independent choices, the k-th one of N_k; actions are (..., K) int64."""

    logits: Tensor
    """(..., N_1 + ... + N_K), not normalised."""
    choices: tuple[Categorical, ...]

    @classmethod
    def of(cls, logits: Tensor, sizes: Sequence[int]) -> MultiCategorical:
        """From the unnormalised log-probabilities of all choices, (..., N_1 + ... + N_K)."""
        return cls(logits, tuple(map(Categorical.of, logits.split(list(sizes), -1))))

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """As `Categorical.draw`."""
        sizes = [choice.log_probs.shape[-1] for choice in self.choices]
        return of_shape(sampler.categorical(rows(self.logits), iteration, step, sizes, out=out), self.logits.shape[:-1])

    def mode(self) -> Tensor:
        """(..., K): the likeliest of each choice."""
        return torch.stack([choice.mode() for choice in self.choices], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(...,) of `action`, (..., K)."""
        return sum_of(choice.log_prob(a) for choice, a in zip(self.choices, action.unbind(-1), strict=True))

    def entropy(self) -> Tensor:
        """(...,) in nats."""
        return sum_of(choice.entropy() for choice in self.choices)


def rows(x: Tensor) -> Tensor:
    """(R, N) of (..., N), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def of_shape(drawn: Drawn, shape: tuple[int, ...]) -> Drawn:
    """(..., K) of what was drawn for R rows."""
    return Drawn(*(x.view(*shape, *x.shape[1:]) for x in drawn))


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    return reduce(torch.add, tensors)


class Gaussian(NamedTuple):
    """K independent normal components; actions are (..., K) float32."""

    mean: Tensor
    """(..., K)."""
    log_std: Tensor
    """(K,) or (..., K): the logarithm of the standard deviation."""

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """As `Categorical.draw`."""
        log_std = self.log_std if self.log_std.dim() == 1 else rows(self.log_std)
        return of_shape(sampler.gaussian(rows(self.mean), log_std, iteration, step, out=out), self.mean.shape[:-1])

    def mode(self) -> Tensor:
        """(..., K): the mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """(...,): the log-density of `action`, (..., K)."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - LOG_SQRT_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        """(...,) in nats."""
        return (self.log_std + (0.5 + LOG_SQRT_TWO_PI)).expand_as(self.mean).sum(-1)
