"""Parallelised Q-Network (Gallici et al., 2024, arXiv:2407.04811), an algorithm that gpuvec does not have.

    gpuvec train --algorithm pqn:pqn --env gpuvec/CartPole-v1

PQN has neither a replay buffer nor a target network. Layer normalisation keeps the values bounded, and Q(lambda) targets are
those of generalised advantage estimation with V(s) = max Q(s, a), which `OnPolicy` computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpuvec.learners.algorithms import register_algorithm
from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.estimators.masked_moments import masked_mean
from gpuvec.learners.evaluation.players import policy
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.own_loss import flat_samples


@dataclass(frozen=True)
class PQNArgs(OnPolicyArgs):
    """Settings of PQN; gae_lambda is that of Q(lambda)."""

    num_iterations: int = 64
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    epsilon: float = 0.1
    """Share of random actions at the end; it decreases linearly from 1 in the first half of the training."""
    update_epochs: int = 4
    """Passes over a rollout."""
    num_minibatches: int = 8
    """Gradient steps per pass."""


class QNetwork(nn.Module):
    """Values of the actions, (..., N), whose logits are the policy and whose maximum is V."""

    def __init__(self, observation_space: Any, action_space: Any, width: int = 128) -> None:
        super().__init__()
        layers = [nn.Linear(observation_space.shape[0], width), nn.LayerNorm(width), nn.ReLU()]
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, int(action_space.n))]
        self.policy = nn.Sequential(*layers)

    def value(self, obs: Tensor) -> Tensor:
        return self.policy(obs).amax(-1)


def q_loss(network: Any, samples: Any, args: PQNArgs, ent_coef: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error of Q(s, a), and (2,) metrics: the loss and the mean of Q."""
    value = network.policy(samples.obs).logits.gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)
    loss = masked_mean(0.5 * (value - samples.target).square(), samples.mask)
    return loss, torch.stack([loss, masked_mean(value, samples.mask)]).detach()


class PQN(OnPolicy):
    """A policy that takes the action of the largest Q, and a random one with probability epsilon."""

    update_metrics = ("q_loss", "q_value", "grad_norm")

    def __init__(self, args: PQNArgs, context: Any, network: Any) -> None:
        super().__init__(args, context, network, q_loss)

    @staticmethod
    def make_network(args: Any, observation_space: Any, action_space: Any, body: Any = None, *more: Any) -> Any:
        return OnPolicy.make_network(args, observation_space, action_space, body or QNetwork, *more)

    def act(self, t: int, episode_start: Tensor) -> Tensor:
        values = self.network.policy(self.buffer.obs[t]).logits
        # Numbers on the device, since a CUDA graph repeats this code.
        epsilon = (1.0 - 2.0 * self.num_rollouts / self.args.iterations).clamp(min=self.args.epsilon)
        draws = torch.rand(2, len(values), generator=self.generator, device=values.device)
        random_action = (draws[1] * values.shape[-1]).long()
        self.buffer.action[t] = random_action.where(draws[0] < epsilon, values.argmax(-1))
        return self.network.control(self.buffer.action[t])

    def improve(self) -> None:
        metrics = []
        for _ in range(self.args.update_epochs):
            # A process may train several shards of the environments, each with a policy that has the same network.
            for minibatches in zip(*(shard.minibatches() for shard in self.shards), strict=True):
                means = self.differentiate(minibatches)
                metrics.append(torch.cat([means, self.optimize().view(1)]))
        self.finish_update(torch.stack(metrics).mean(0))

    def minibatches(self) -> Iterator[Any]:
        samples = flat_samples(self.buffer.samples())
        order = torch.rand(len(samples.target), generator=self.generator, device=samples.target.device).argsort()
        for index in order.view(self.args.num_minibatches, -1):
            yield samples._make(None if x is None else x[index] for x in samples)

    def player(self, seed: int, draws: Any) -> Any:
        return policy(self.network, greedy=True)


register_algorithm("pqn", PQNArgs, PQN)
