"""Distributions of actions: drawn by the sampler's kernels, and plain tensor arithmetic that gradients pass through.

`torch.distributions` checks and broadcasts its arguments at every call, which costs several times the arithmetic itself;
the tests compare with it. Nothing waits for the device, so all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.learners.sampling.sampler import Drawn, Sampler

LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Categorical(NamedTuple):
    """One of N actions; actions are (...,) int64."""

    logits: Tensor
    """(..., N), not normalised."""

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """An action of each row, with its log-probability; `iteration`, `step` and `out` as in `Sampler`."""
        drawn = sampler.categorical(rows(self.logits), iteration, step, out=out)
        return of_shape(drawn, self.logits.shape[:-1])

    def mode(self) -> Tensor:
        """(...,): the likeliest action."""
        return self.logits.argmax(-1)

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) the log-probability of `action`, (...,), and (...,) the entropy in nats."""
        log_prob, entropy = _Judged.apply(self.logits, action)  # type: ignore[no-untyped-call]  # of torch's
        return log_prob, entropy


class _Judged(torch.autograd.Function):
    """The log-probability of an action and the entropy, with the gradient of both at once: a rollout of millions of rows waits
    for memory, and each of the many small operations of which torch would make it passes over all logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(-1)
        ctx.save_for_backward(log_probs, probs, entropy, action)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_prob: Tensor, of_entropy: Tensor) -> tuple[Tensor, None]:
        """By a logit with probability p: 1 for the action's, minus p, and -p (log p + entropy)."""
        log_probs, probs, entropy, action = ctx.saved_tensors
        common = -(of_log_prob + of_entropy * entropy)
        gradient = torch.addcmul(common.unsqueeze(-1), log_probs, of_entropy.unsqueeze(-1), value=-1).mul_(probs)
        return gradient.scatter_add_(-1, action.unsqueeze(-1), of_log_prob.unsqueeze(-1)), None


class MultiCategorical(NamedTuple):
    """K independent choices, the k-th one of N_k; actions are (..., K) int64."""

    logits: Tensor
    """(..., N_1 + ... + N_K), not normalised, choice after choice."""
    sizes: tuple[int, ...]
    """N_1, ..., N_K."""

    @property
    def choices(self) -> tuple[Categorical, ...]:
        """Each of them."""
        return tuple(map(Categorical, self.logits.split(self.sizes, -1)))

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """As `Categorical.draw`."""
        return of_shape(sampler.categorical(rows(self.logits), iteration, step, self.sizes, out=out), self.logits.shape[:-1])

    def mode(self) -> Tensor:
        """(..., K): the likeliest of each choice."""
        return torch.stack([choice.mode() for choice in self.choices], -1)

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) the log-probability of `action`, (..., K), and (...,) the entropy in nats."""
        if len(set(self.sizes)) == 1:
            even = Categorical(self.logits.unflatten(-1, (len(self.sizes), -1)))
            log_prob, entropy = even.log_prob_and_entropy(action)
            return log_prob.sum(-1), entropy.sum(-1)
        pairs = zip(self.choices, action.unbind(-1), strict=True)
        log_probs, entropies = zip(*(choice.log_prob_and_entropy(each) for choice, each in pairs), strict=True)
        return reduce(torch.add, log_probs), reduce(torch.add, entropies)


def rows(x: Tensor) -> Tensor:
    """(R, N) of (..., N), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def of_shape(drawn: Drawn, shape: tuple[int, ...]) -> Drawn:
    """(..., K) of what was drawn for R rows."""
    return Drawn(*(x.view(*shape, *x.shape[1:]) for x in drawn))


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

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """(...,) the log-density of `action`, (..., K), and (...,) the entropy in nats."""
        z = (action - self.mean) * (-self.log_std).exp()
        log_prob = (-0.5 * z.square() - self.log_std - LOG_SQRT_TWO_PI).sum(-1)
        return log_prob, (self.log_std + (0.5 + LOG_SQRT_TWO_PI)).expand_as(self.mean).sum(-1)
