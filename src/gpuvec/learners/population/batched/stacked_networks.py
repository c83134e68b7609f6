"""The policies and the value functions of all agents, evaluated group by group, and their normalised observations.

Letters: P agents, E environments of an agent, R = P * E rows, B rows of an agent, D observation features, N outputs of the
policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpuvec.learners.networks.actor_critic import ActorCritic, Policy
from gpuvec.learners.networks.distributions import Categorical, Gaussian, MultiCategorical
from gpuvec.learners.networks.normalizer import LIMIT, MIN_STD
from gpuvec.learners.population.state.parameters import AgentLayout, evaluate_layers, layers_of


class StackedNetworks:
    """The networks of P agents.

    Args:
        network: the network of an agent, for its spaces.
        layout: the places of the parameters.
        parameters: (P, N), which are read in each evaluation.
        groups: the agents of each group.
        activation: "tanh" or "relu".
        device: of the parameters.
    """

    def __init__(
        self,
        network: ActorCritic,
        layout: AgentLayout,
        parameters: Tensor,
        groups: Sequence[slice],
        activation: str,
        device: str,
    ) -> None:
        self.groups, self.activation, self._sizes, self._discrete = groups, activation, network.sizes, network.discrete
        self.control = _Control(network, device)
        """Converts actions of the policies to those of the environment."""
        self.views = [layout.views(parameters[group]) for group in groups]
        """The parameters of each group by name."""
        self._actors = [layers_of(views, "actor") for views in self.views]
        self._critics = [layers_of(views, "critic") for views in self.views]

    def outputs(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policies, (P, B, N), for `obs`, (P, B, D)."""
        parts = zip(self._actors, self.groups, strict=True)
        return torch.cat([evaluate_layers(layers, obs[group], self.activation) for layers, group in parts])

    def values(self, obs: Tensor) -> Tensor:
        """Returns V, (P, B), for `obs`, (P, B, D)."""
        parts = zip(self._critics, self.groups, strict=True)
        return torch.cat([evaluate_layers(layers, obs[group], self.activation) for layers, group in parts]).squeeze(-1)

    def policy(self, outputs: Tensor, log_std: Tensor | None) -> Policy:
        """Returns the distributions of actions.

        Args:
            outputs: (P, B, N) or (R, N): those of the policies.
            log_std: (P, 1, N) or (R, N); None for discrete actions.
        """
        if self._sizes:
            return MultiCategorical(outputs, self._sizes)
        if self._discrete:
            return Categorical(outputs)
        assert log_std is not None, "a Gaussian policy has a standard deviation"
        return Gaussian(outputs, log_std)

    def row_policy(self, outputs: Tensor) -> Policy:
        """Returns the distributions of the rows, (R,), whose outputs are (P, E, N)."""
        rows = outputs.flatten(0, 1)
        if self._discrete or self._sizes:
            return self.policy(rows, None)
        log_std = torch.cat([views["log_std"] for views in self.views])
        return self.policy(rows, log_std.unsqueeze(1).expand_as(outputs).flatten(0, 1))


class _Control:
    """Converts actions of the policies, (R, ...), to those of the environment, on the device of the actions."""

    def __init__(self, network: ActorCritic, device: str) -> None:
        self._network = network
        self._bounds = {name: x.to(device) for name, x in network.named_buffers() if name in ("low", "high", "starts")}

    def __call__(self, action: Tensor) -> Tensor:
        if "starts" in self._bounds:
            return action + self._bounds["starts"]
        if "low" in self._bounds:
            return action.clamp(self._bounds["low"], self._bounds["high"])
        return self._network.control(action)


class StackedNormalizer:
    """Normalises the observations of each agent by its own moments, updated as those of `networks.normalizer.Normalizer`.

    Args:
        num_agents: P.
        features: D.
        device: of the tensors.
    """

    def __init__(self, num_agents: int, features: int, device: str) -> None:
        self.mean = torch.zeros(num_agents, features, dtype=torch.float64, device=device)
        self.var = torch.ones_like(self.mean)
        self.count = torch.zeros(num_agents, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Merges samples into the moments.

        Args:
            obs: (P, B, D).
        """
        num_samples = obs.shape[1]
        mean = obs.sum(1, dtype=torch.float64) / num_samples
        var = (obs - mean.float().unsqueeze(1)).square().sum(1, dtype=torch.float64) / num_samples
        total = self.count + num_samples
        fraction = (num_samples / total).unsqueeze(1)
        change = mean - self.mean
        self.var.copy_((1.0 - fraction) * (self.var + fraction * change.square()) + fraction * var)
        self.mean.add_(fraction * change)
        self.count.copy_(total)

    def __call__(self, obs: Tensor) -> Tensor:
        """Returns `obs`, (P, B, D), normalised."""
        std = self.var.sqrt().clamp(min=MIN_STD).float().unsqueeze(1)
        return ((obs - self.mean.float().unsqueeze(1)) / std).clamp(-LIMIT, LIMIT)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the moments by the names that a single training gives them."""
        return {"mean": self.mean, "var": self.var, "count": self.count}
