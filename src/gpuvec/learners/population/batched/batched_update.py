"""The update of all agents from their rollouts: epochs of minibatches of Adam, group by group.

Letters: P agents, B samples of an agent, or of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.buffers.minibatches import SampleOrder
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.networks.actor_critic import Policy
from gpuvec.learners.population.batched.stacked_networks import StackedNetworks
from gpuvec.learners.population.population_args import LOSS_METRICS, PopulationArgs
from gpuvec.learners.population.state.agent_state import AgentState, adam_step
from gpuvec.learners.population.state.parameters import evaluate_layers, layers_of
from gpuvec.learners.ppo import loss_terms
from gpuvec.learners.seeds import MINIBATCHES, stream_seed

APPROX_KL = LOSS_METRICS.index("approx_kl")


class BatchedUpdate:
    """The update of all agents.

    Args:
        args: the settings, resolved.
        networks: the networks of the agents.
        state: the agents, which are updated in place.
    """

    def __init__(self, args: PopulationArgs, networks: StackedNetworks, state: AgentState) -> None:
        self._args, self._networks, self._state = args.base, networks, state
        device, num_samples = args.base.device, args.base.steps_per_iteration
        seeds = [stream_seed(seed, MINIBATCHES) for seed in args.seeds]
        self._sample_order = SampleOrder(device, seeds, num_samples)
        self._order = torch.zeros(args.num_agents, num_samples, dtype=torch.int64, device=device)
        self.learning_rate_decay = torch.ones((), dtype=torch.float64, device=device)
        """The factor of the learning rates in this iteration."""
        self._gradients = [torch.zeros_like(state.parameters[group]) for group in networks.groups]

    def __call__(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Updates all agents that run, and returns means over the minibatches, (6, P): `LOSS_METRICS` and the gradient's norm.

        Args:
            samples: {name: (P * B, ...)}: the fields of `Samples`, without masks.
        """
        args, state = self._args, self._state
        num_agents = len(state.stopped_at)
        metrics = torch.zeros(len(LOSS_METRICS) + 1, num_agents, device=args.device)
        is_stopped_early = torch.zeros(num_agents, dtype=torch.bool, device=args.device)
        learning_rate = (state.settings["learning_rate"] * self.learning_rate_decay).float()
        for epoch in range(args.update_epochs):
            order = self._sample_order(state.num_rollouts, epoch, self._order).flatten()
            shuffled = {name: x.index_select(0, order).unflatten(0, (num_agents, -1)) for name, x in samples.items()}
            for begin in range(0, self._order.shape[1], self._order.shape[1] // args.num_minibatches):
                end = begin + self._order.shape[1] // args.num_minibatches
                minibatch = {name: x[:, begin:end] for name, x in shuffled.items()}
                for k, group in enumerate(self._networks.groups):
                    loss_metrics = self._compute_gradient(k, {name: x[group] for name, x in minibatch.items()})
                    if args.target_kl is not None:
                        is_stopped_early[group] |= loss_metrics[APPROX_KL] > args.target_kl
                    norm = self._optimize(k, learning_rate[group], is_stopped_early[group])
                    metrics[:, group] += torch.cat([loss_metrics, norm.unsqueeze(0)])
        return metrics / (args.update_epochs * args.num_minibatches)

    def _compute_gradient(self, k: int, samples: dict[str, Tensor]) -> Tensor:
        """Writes the gradients of the agents in group `k`, and returns their loss metrics."""
        networks, settings, group = self._networks, self._state.settings, self._networks.groups[k]
        parameters = {name: x.detach().requires_grad_() for name, x in networks.views[k].items()}
        obs = samples["obs"]
        outputs = evaluate_layers(layers_of(parameters, "actor"), obs, networks.activation)
        value = evaluate_layers(layers_of(parameters, "critic"), obs, networks.activation).squeeze(-1)
        log_std = parameters["log_std"].unsqueeze(1) if "log_std" in parameters else None
        columns = (settings[name][group].float().unsqueeze(1) for name in LossCoefficients._fields)
        loss, metrics = population_loss(
            networks.policy(outputs, log_std), value, Samples(**samples), LossCoefficients(*columns), self._args.clip_value
        )
        gradients = torch.autograd.grad(loss.sum(), list(parameters.values()))
        views = self._state.layout.views(self._gradients[k])
        torch._foreach_copy_([views[name] for name in parameters], list(gradients))
        return metrics

    @torch.no_grad()
    def _optimize(self, k: int, learning_rate: Tensor, is_stopped_early: Tensor) -> Tensor:
        """Takes a step of the agents in group `k`, stops those whose gradient is not finite, and returns the norms, (G,)."""
        state, group, gradient = self._state, self._networks.groups[k], self._gradients[k]
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        state.stop(~norm.isfinite(), 3, group)
        is_stepped = state.is_running[group] & ~is_stopped_early
        divisor = (norm / self._args.max_grad_norm).clamp(min=1.0)
        adam_step(state.parameters[group], gradient, state.adam.agents(group), learning_rate, is_stepped, divisor)
        return norm


class LossCoefficients(NamedTuple):
    """The coefficients of each agent, (P, 1) float32."""

    clip: Tensor
    vf_coef: Tensor
    ent_coef: Tensor


def population_loss(
    policy: Policy, value: Tensor, samples: Samples, coefficients: LossCoefficients, clip_value: bool
) -> tuple[Tensor, Tensor]:
    """Returns the losses, (P,), and (5, P) metrics, as `ppo.ppo_loss` computes them for one agent.

    Args:
        policy: the distributions of actions, (P, B).
        value: V, (P, B).
        samples: the minibatch, (P, B).
        coefficients: those of the agents.
        clip_value: whether the change of V is clipped, too.
    """
    variance, mean = torch.var_mean(samples.advantage, 1, keepdim=True)
    advantage = (samples.advantage - mean) / (variance.sqrt() + 1e-8)
    terms = loss_terms(policy, value, samples, advantage, coefficients.clip, clip_value)
    objective, value_loss, entropy, approx_kl, clip_fraction = (x.mean(1) for x in terms)
    metrics = torch.stack([-objective, value_loss, entropy, approx_kl, clip_fraction]).detach()
    return -objective + coefficients.vf_coef[:, 0] * value_loss - coefficients.ent_coef[:, 0] * entropy, metrics
