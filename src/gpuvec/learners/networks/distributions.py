"""Distributions of actions: sampled by the kernels of `sampling`, with differentiable log-probabilities and entropies.

`torch.distributions` checks and broadcasts its arguments at every call, which costs several times the arithmetic itself;
the tests compare with it. No operation synchronises with the device, so all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction as SavedTensors
from torch.autograd.function import FunctionCtx, once_differentiable

from gpuvec.learners.sampling.sampler import ActionSample, Sampler

LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Categorical(NamedTuple):
    """A distribution over N actions; actions are (...,) int64."""

    logits: Tensor
    """(..., N): unnormalised log-probabilities."""

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: ActionSample | None = None) -> ActionSample:
        """Draws an action of each row.

        Args:
            sampler: the source of random numbers.
            iteration: () int64 on the device; with `step` it must be new for each draw.
            step: a number below 2**32.
            out: tensors to write to, of R rows; None for new ones.
        """
        sample = sampler.categorical(_flatten_rows(self.logits), iteration, step, out=out)
        return _unflatten_rows(sample, self.logits.shape[:-1])

    def mode(self) -> Tensor:
        """Returns the most likely action, (...,)."""
        return self.logits.argmax(-1)

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probability of `action`, (E,) int64, and the entropy in nats, both (E,); other leading dimensions
        are kept.
        """
        log_prob, entropy = _LogProbAndEntropy.apply(self.logits, action)  # type: ignore[no-untyped-call]  # of torch's
        return log_prob, entropy


class _LogProbAndEntropy(torch.autograd.Function):
    """The log-probability of an action and the entropy, with one function for the gradient of both.

    A rollout of millions of rows is memory-bound, and each of the many small operations that torch would use reads all logits.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(-1)
        ctx.save_for_backward(log_probs, probs, entropy, action)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedTensors, log_prob_gradient: Tensor, entropy_gradient: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient of the logits.

        By a logit of probability p, the derivative of the log-probability is 1 - p for the action and -p for others, and the
        derivative of the entropy is -p (log p + entropy).
        """
        log_probs, probs, entropy, action = ctx.saved_tensors  # type: ignore[misc]  # torch declares a tuple of one tensor
        common = -(log_prob_gradient + entropy_gradient * entropy)
        gradient = torch.addcmul(common.unsqueeze(-1), log_probs, entropy_gradient.unsqueeze(-1), value=-1).mul_(probs)
        return gradient.scatter_add_(-1, action.unsqueeze(-1), log_prob_gradient.unsqueeze(-1)), None


class MultiCategorical(NamedTuple):
    """K independent choices, the k-th one of N_k; actions are (..., K) int64."""

    logits: Tensor
    """(..., N_1 + ... + N_K): unnormalised log-probabilities of all choices, concatenated."""
    sizes: tuple[int, ...]
    """N_1, ..., N_K."""

    @property
    def choices(self) -> tuple[Categorical, ...]:
        """The distributions of the K choices."""
        return tuple(map(Categorical, self.logits.split(self.sizes, -1)))

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: ActionSample | None = None) -> ActionSample:
        """Draws K choices of each row.

        Args:
            sampler: the source of random numbers.
            iteration: () int64 on the device; with `step` it must be new for each draw.
            step: a number below 2**32.
            out: tensors to write to, of R rows; None for new ones.
        """
        sample = sampler.categorical(_flatten_rows(self.logits), iteration, step, self.sizes, out=out)
        return _unflatten_rows(sample, self.logits.shape[:-1])

    def mode(self) -> Tensor:
        """Returns the most likely action of each choice, (..., K)."""
        return torch.cat([run.mode() for run in self._runs()], -1)

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probability of `action`, (E, K) int64, and the entropy in nats, both (E,); other leading dimensions
        are kept.
        """
        runs = self._runs()
        actions = action.split([run.logits.shape[-2] for run in runs], -1)
        pairs = (run.log_prob_and_entropy(component) for run, component in zip(runs, actions, strict=True))
        log_probs, entropies = zip(*((log_prob.sum(-1), entropy.sum(-1)) for log_prob, entropy in pairs), strict=True)
        return reduce(torch.add, log_probs), reduce(torch.add, entropies)

    def _runs(self) -> tuple[Categorical, ...]:
        """Neighbouring choices of one size as one distribution, with logits (..., n, N)."""
        shapes = [(len(list(run)), size) for size, run in groupby(self.sizes)]
        parts = self.logits.split([math.prod(shape) for shape in shapes], -1)
        return tuple(Categorical(part.unflatten(-1, shape)) for part, shape in zip(parts, shapes, strict=True))


def _flatten_rows(x: Tensor) -> Tensor:
    """Returns (..., N) as contiguous (R, N)."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def _unflatten_rows(sample: ActionSample, shape: tuple[int, ...]) -> ActionSample:
    """Returns the `sample` of R rows with the leading dimensions `shape`."""
    return ActionSample(*(x.view(*shape, *x.shape[1:]) for x in sample))


class Gaussian(NamedTuple):
    """K independent normal components; actions are (..., K) float32."""

    mean: Tensor
    """(..., K)."""
    log_std: Tensor
    """(K,) or (..., K): the logarithm of the standard deviation."""

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: ActionSample | None = None) -> ActionSample:
        """Draws K normal components of each row.

        Args:
            sampler: the source of random numbers.
            iteration: () int64 on the device; with `step` it must be new for each draw.
            step: a number below 2**32.
            out: tensors to write to, of R rows; None for new ones.
        """
        log_std = self.log_std if self.log_std.dim() == 1 else _flatten_rows(self.log_std)
        sample = sampler.gaussian(_flatten_rows(self.mean), log_std, iteration, step, out=out)
        return _unflatten_rows(sample, self.mean.shape[:-1])

    def mode(self) -> Tensor:
        """Returns the mean, (..., K)."""
        return self.mean

    def log_prob_and_entropy(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-density of `action`, (E, K) float32, and the entropy in nats, both (E,); other leading dimensions
        are kept.
        """
        z = (action - self.mean) * (-self.log_std).exp()
        log_prob = (-0.5 * z.square() - self.log_std - LOG_SQRT_TWO_PI).sum(-1)
        return log_prob, (self.log_std + (0.5 + LOG_SQRT_TWO_PI)).expand_as(self.mean).sum(-1)
