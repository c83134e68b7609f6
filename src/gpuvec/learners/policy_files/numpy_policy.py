"""Policies of files that act in NumPy, for programs that start without PyTorch, such as the demo.

They are perceptrons of PPO and A2C in float32. A network has the results of `networks.actor_critic` up to the rounding of sums.

Letters: R rows, D observation features, N outputs of the policy, K action components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import ALL, args_from_dict
from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.environments import AgentSpaces, find_agent_spaces
from gpuvec.learners.policy_files.policy_file import (
    is_perceptron,
    num_outputs,
    perceptron_tensors,
    read_policy_file,
    require_same_spaces,
    require_tensors,
)

FloatArray = NDArray[np.float32]
FORBIDDEN = np.float32(-1e8)  # the logit of a forbidden action, as in `actor_critic`
LIMIT, MIN_STD = 10.0, 1e-2  # of a normalised observation, as in `normalizer`


class NumpyPolicy:
    """Trained policies of a file, each of a role, or one for all agents.

    Args:
        path: of the policy file.

    Attributes:
        env, params, roles, args, spaces: as those of a `TrainedPolicy`.
        device: "cpu".
        output: "numpy", that of environments in which it acts.

    Raises:
        CheckpointError: the file cannot be used, its environment is in a module that is not imported, or a network needs
            PyTorch.
        StateError: the spaces are not those of the environment, or the network is not that of the settings.
        MissingExtraError: safetensors is not installed.
    """

    device, output = "cpu", "numpy"

    def __init__(self, path: Path | str) -> None:
        contents = read_policy_file(path, "numpy")
        self.args: dict[str, OnPolicyArgs] = {}
        self.spaces: dict[str, AgentSpaces] = {}
        self._networks: dict[str, dict[str, NDArray[Any]]] = {}
        for role, settings in contents["args"].items():
            args, network = args_from_dict(settings), contents["policies"][role]["network"]
            spaces = find_agent_spaces(args.env, args.params, "cpu", role)
            require_same_spaces(contents["spaces"][role], spaces, args, contents["gpuvec"])
            if not isinstance(args, OnPolicyArgs) or not is_perceptron(args, contents["spaces"][role]["observation"]):
                raise CheckpointError(f"{path} has a network that needs PyTorch: load_policy reads it.")
            require_tensors(network, perceptron_tensors(args, spaces))
            self.args[role], self.spaces[role], self._networks[role] = args, spaces, network
        first = next(iter(self.args.values()))
        self.env, self.params, self.roles = first.env, dict(first.params), tuple(self.args)

    def find_role(self, role: str | None) -> str:
        """Returns the role of a policy, that of the only one if `role` is None.

        Args:
            role: the role; None if there is only one policy.
        """
        return self.roles[0] if role is None else role

    def make_act(self, envs: Any, stochastic: bool = False) -> Callable[..., Any]:
        """Returns a function that returns the most probable actions of all agents for observations and action masks.

        Args:
            envs: the environment.
            stochastic: must be false.
        """
        if stochastic:
            raise ValueError("a policy in NumPy takes the most probable actions: load_policy draws them.")

        def act(obs: Any, action_mask: Any = None) -> Any:
            if isinstance(obs, Mapping):
                masks = action_mask or {}
                return {role: self.act(obs[role], masks.get(role), role=role) for role in self.roles}
            if self.roles == (ALL,):
                return self.act(obs, action_mask)
            actions = None
            for role, agents in envs.roles.items():
                of_role = self.act(obs, action_mask, role=role)
                actions = of_role if actions is None else actions
                actions[:, agents] = of_role[:, agents]
            return actions

        return act

    def act(self, obs: Any, action_mask: Any = None, *, role: str | None = None) -> Any:
        """Returns the most probable actions as the environment takes them, (...) or (..., K).

        Args:
            obs: (..., D).
            action_mask: (..., N) bool; None in environments without action masks.
            role: the role of the agents; None if there is only one policy.
        """
        space = self.spaces[self.find_role(role)].action
        outputs = self._outputs(obs, action_mask, role)
        if isinstance(space, gym.spaces.Discrete):
            return outputs.argmax(-1) + space.start
        if isinstance(space, gym.spaces.MultiDiscrete):
            return np.stack([part.argmax(-1) for part in split_components(outputs, space)], -1) + space.start
        assert isinstance(space, gym.spaces.Box), "policies have these three spaces"
        return outputs.clip(space.low, space.high)

    def probabilities(self, obs: Any, action_mask: Any = None, *, role: str | None = None) -> Any:
        """Returns the probabilities of the actions, (..., N); of a MultiDiscrete action a tuple, (..., N_k) of each component.

        Args:
            obs: (..., D).
            action_mask: (..., N) bool; None in environments without action masks.
            role: the role of the agents; None if there is only one policy.
        """
        space = self.spaces[self.find_role(role)].action
        outputs = self._outputs(obs, action_mask, role)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return tuple(map(softmax, split_components(outputs, space)))
        return softmax(outputs)

    def value(self, obs: Any, *, role: str | None = None) -> FloatArray:
        """Returns the expected return, (...,).

        Args:
            obs: (..., D); in environments with observations of a critic these, (..., Dc).
            role: the role of the agents; None if there is only one policy.
        """
        spaces = self.spaces[self.find_role(role)]
        x = self._run(role, "critic", "normalizer" if spaces.critic_observation is None else "critic_normalizer", obs)
        return x[..., num_outputs(spaces.action) if self.args[self.find_role(role)].shared else 0]

    def _outputs(self, obs: Any, action_mask: Any, role: str | None) -> FloatArray:
        """The outputs of the policy's network, (..., N)."""
        outputs = self._run(role, "actor", "normalizer", obs)[..., : num_outputs(self.spaces[self.find_role(role)].action)]
        return outputs if action_mask is None else np.where(np.asarray(action_mask, bool), outputs, FORBIDDEN)

    def _run(self, role: str | None, part: str, normalizer: str, obs: Any) -> FloatArray:
        """The outputs of a part of a role's network, or of the layer that all its parts share."""
        network, args = self._networks[self.find_role(role)], self.args[self.find_role(role)]
        x = normalize(network, normalizer, obs)
        if not args.shared:
            return run_layers(network, f"body.{part}", x, args.activation, is_last=True)
        hidden = run_layers(network, "body.trunk", x, args.activation, is_last=False)
        outputs: FloatArray = hidden @ network["body.head.weight"].T + network["body.head.bias"]
        return outputs


def needs_torch(contents: Mapping[str, Any]) -> bool:
    """Returns whether a `NumpyPolicy` cannot have the networks of a policy file.

    Args:
        contents: the result of `read_policy_file`.
    """
    observations = {role: spaces.get("observation") for role, spaces in contents["spaces"].items()}
    return not all(
        isinstance(observations[role], dict) and is_perceptron(args_from_dict(settings), observations[role])
        for role, settings in contents["args"].items()
    )


def run_layers(network: Mapping[str, NDArray[Any]], part: str, x: FloatArray, activation: str, is_last: bool) -> FloatArray:
    """Returns the results of a perceptron, (..., N).

    Args:
        network: {name: array}.
        part: the beginning of the names of its layers, such as "body.actor".
        x: (..., D).
        activation: "tanh" or "relu".
        is_last: whether the last layer has no activation.
    """
    numbers = sorted({int(name.split(".")[2]) for name in network if name.startswith(f"{part}.")})
    for k in numbers:
        x = x @ network[f"{part}.{k}.weight"].T + network[f"{part}.{k}.bias"]
        if not (is_last and k == numbers[-1]):
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0.0)
    return x


def normalize(network: Mapping[str, NDArray[Any]], name: str, obs: Any) -> FloatArray:
    """Returns observations as a network takes them, (..., D) float32.

    Args:
        network: {name: array}, with the moments if it normalises.
        name: of the normaliser in it.
        obs: (..., D).
    """
    x = np.asarray(obs, np.float32)
    if f"{name}.mean" not in network:
        return x
    mean, std = network[f"{name}.mean"].astype(np.float32), np.sqrt(network[f"{name}.var"]).clip(MIN_STD).astype(np.float32)
    normalized: FloatArray = ((x - mean) / std).clip(-LIMIT, LIMIT).astype(np.float32)
    return normalized


def split_components(outputs: FloatArray, space: gym.spaces.MultiDiscrete) -> list[FloatArray]:
    """Returns the outputs of each component of an action, (..., N_k).

    Args:
        outputs: (..., N).
        space: of the action.
    """
    return np.split(outputs, np.cumsum(space.nvec)[:-1], -1)


def softmax(logits: FloatArray) -> FloatArray:
    """Returns the probabilities, (..., N).

    Args:
        logits: (..., N).
    """
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(-1, keepdims=True)
    return probabilities
