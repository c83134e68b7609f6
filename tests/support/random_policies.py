"""Policies with random weights, for tests of files and exports, in which training would take longer than the test."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tests.support import guess_env, signal_env  # noqa: F401  # registers the environments

from gpuvec.learners.algorithms import ALL, args_class, args_to_dict, policy_class
from gpuvec.learners.environments import find_agent_spaces


class PolicyCase(NamedTuple):
    """An environment, and the settings of its policies."""

    env: str
    algorithm: str = "ppo"
    roles: tuple[str, ...] = (ALL,)
    settings: dict[str, Any] = {}  # noqa: RUF012  # is not mutated
    body: Any = None  # makes the network; None for that of the settings

    def contents(self) -> dict[str, Any]:
        """What a checkpoint has of the policies, with random weights, biases and moments."""
        args = args_class(self.algorithm)(**{"env": self.env, "hidden": (16,), "seed": 3, **self.settings}).resolved("cpu")
        generator = torch.Generator().manual_seed(7)
        networks = {}
        for role in self.roles:
            spaces = find_agent_spaces(args.env, args.params, "cpu", role)
            network = policy_class(args).make_network(args, *spaces[:2], self.body, critic_space=spaces.critic_observation)
            state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            for name, tensor in state.items():
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                state[name] = (
                    noise.abs() + 0.5
                    if name.endswith((".var", ".count"))
                    else tensor + (0.7 if tensor.dim() > 1 else 0.1) * noise
                )
            networks[role] = {"network": state}
        return {"args": dict.fromkeys(self.roles, args_to_dict(args)), "policies": networks}


CASES = {
    "discrete": PolicyCase("gpuvec/CartPole-v1", settings={"normalize": True}),
    "means": PolicyCase("gpuvec/Pendulum-v1", "a2c", settings={"activation": "relu", "shared": True}),
    "ddpg": PolicyCase("gpuvec/Pendulum-v1", "ddpg", settings={"critics": 2, "normalize": True}),
    "image": PolicyCase("gpuvec/Breakout-v0", settings={"activation": "relu"}),
    "bf16": PolicyCase("gpuvec/Breakout-v0", settings={"precision": "bf16", "activation": "relu"}),
    "masked": PolicyCase("gpuvec/ConnectFour-v0", settings={"params": {"max_episode_steps": 30}}),
    "components": PolicyCase("gpuvec/TagContinuous-v0", settings={"params": {"num_taggers": 2, "num_runners": 3}}),
    "roles": PolicyCase("tests/Signal-v0", roles=("lamp", "watcher", "runner"), settings={"normalize": True}),
    "critic": PolicyCase("tests/Guesser-v0"),
}
