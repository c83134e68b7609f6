"""Trained policies that act on NumPy arrays or tensors, without an environment. `gpuvec.load_policy` returns one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import args_from_dict, args_to_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.cuda_graphs.settings import ordinary_tensors
from gpuvec.learners.environments import AgentSpaces, TrainingEnv, find_agent_spaces
from gpuvec.learners.evaluation.evaluate import make_trained_network
from gpuvec.learners.evaluation.players import Act, action_distribution, policies_by_role, policy, role_seed
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.actor_critic import Body, obs_dtype
from gpuvec.learners.networks.deterministic import DeterministicActorCritic
from gpuvec.learners.networks.distributions import Categorical, MultiCategorical
from gpuvec.learners.policy_files.policy_file import SUFFIX, describe_policies, read_policy_file, require_same_spaces, to_bytes
from gpuvec.learners.runs.checkpoint import learning_policies, load
from gpuvec.learners.runs.trusted_code import require_imported
from gpuvec.policies import policy_names, policy_path


def load_contents(name_or_path: str | os.PathLike[str], trust: bool = False) -> tuple[dict[str, Any], Path]:
    """Reads trained policies, and returns what the file contains and its path.

    Args:
        name_or_path: the name of a policy that comes with gpuvec, or the path of a run folder, of a checkpoint or of a policy
            file. A name comes first: give a path with the same name as "./CartPole-v1".
        trust: whether the modules that it names may be imported, which runs their code.

    Raises:
        FileNotFoundError: there is no such policy or file; the message lists the policies that come with gpuvec.
        CheckpointError: the file cannot be used, or names a module that is neither imported nor trusted.
        MissingExtraError: safetensors is not installed.
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and name_or_path in policy_names():
        path = policy_path(name_or_path)
    elif not path.exists():
        policy_path(str(name_or_path))  # raises the error that lists the names
    return (read_policy_file(path, trust=trust) if path.suffix == SUFFIX else load(path, trust)), path


class TrainedPolicy:
    """Policies of one environment that were trained, each for a role, or one for all agents.

    Args:
        contents: a checkpoint, such as the one of a training's result, or what `read_policy_file` returned.
        device: of the networks: "auto", "cpu", "cuda" or "cuda:1".
        seed: of the actions that are drawn.
        body: the function that made the networks; None for the default.

    Attributes:
        env: the id of the environment.
        params: the environment's own parameters.
        roles: the roles that have a policy; ("all",) if one policy acts for all agents.
        args: {role: settings of the training}.
        spaces: {role: spaces of one agent}.
        networks: {role: network}, which players of an evaluation and other code in PyTorch take.
        device: the device of the networks.

    Raises:
        CheckpointError: the environment is in a module that is not imported, or the settings describe a larger network.
        StateError: the contents are of another network, or of other spaces than the environment has.
        NonFiniteError: a number of a network is not finite.
    """

    @ordinary_tensors()
    def __init__(self, contents: Mapping[str, Any], device: str = "cpu", seed: int = 0, body: Body | None = None) -> None:
        self.device, self._seed = torch.device(str(parse_device(device))), seed
        require_imported(contents["args"])
        self.args: dict[str, TrainingArgs] = {role: args_from_dict(values) for role, values in contents["args"].items()}
        self.spaces: dict[str, AgentSpaces] = {}
        self.networks: dict[str, Any] = {}
        for role, args in self.args.items():
            spaces = self.spaces[role] = find_agent_spaces(args.env, args.params, str(self.device), role)
            if "spaces" in contents:
                require_same_spaces(contents["spaces"][role], spaces, args, contents["gpuvec"])
            network = make_trained_network(args, spaces, contents["policies"][role]["network"], body)
            self.networks[role] = network.to(self.device)
        first = next(iter(self.args.values()))
        self.env, self.params, self.roles = first.env, dict(first.params), tuple(self.args)
        self._acts = {(role, greedy): self._make_act(role, greedy) for role in self.roles for greedy in (True, False)}

    def _make_act(self, role: str, greedy: bool) -> Act:
        player = policy(self.networks[role], greedy=greedy, seed=role_seed(self._seed, role))
        return player(cast(TrainingEnv, self))  # of which it reads the device alone

    output = "torch"
    """That of environments in which the policies act."""

    def make_act(self, envs: TrainingEnv, stochastic: bool = False) -> Act:
        """Returns a function that returns the actions of all agents for observations and action masks.

        Args:
            envs: the environment.
            stochastic: draw actions from the policy instead of taking the most probable ones.
        """
        return policies_by_role(self.networks, greedy=not stochastic)(envs)

    @ordinary_tensors()
    @torch.no_grad()
    def act(self, obs: Any, action_mask: Any = None, *, role: str | None = None, stochastic: bool = False) -> Any:
        """Returns actions as the environment takes them, a NumPy array or a tensor as `obs` is.

        Args:
            obs: the observation of one agent, or a batch with any leading dimensions; or {role: observations}.
            action_mask: (..., N) bool: `infos["action_mask"]` of the environment, with the leading dimensions of `obs`; None
                in environments without action masks. {role: mask} if `obs` is a dict.
            role: the role of the agents; None if there is only one policy, or if `obs` is a dict.
            stochastic: draw actions from the policy instead of taking the most probable ones. Each call draws other random
                numbers, which depend on the seed and on the number of the call.

        Raises:
            StateError: there is no policy of that role.
            ValueError: observations or masks of another shape or dtype, or no masks in an environment that has them.
        """
        if isinstance(obs, Mapping):
            masks = action_mask or {}
            return {name: self.act(x, masks.get(name), role=name, stochastic=stochastic) for name, x in obs.items()}
        role = self.find_role(role)
        inputs, leading = self._policy_inputs(obs, action_mask, role)
        return _like(obs, self._acts[role, not stochastic](*inputs), leading)

    @ordinary_tensors()
    @torch.no_grad()
    def probabilities(self, obs: Any, action_mask: Any = None, *, role: str | None = None) -> Any:
        """Returns the probabilities of the actions, (..., N); of a MultiDiscrete action a tuple, (..., N_k) of each component.

        Args:
            obs: as in `act`, without dicts.
            action_mask: as in `act`.
            role: the role of the agents; None if there is only one policy.

        Raises:
            StateError: there is no policy of that role.
            ValueError: as `act`; or the actions are continuous.
        """
        role = self.find_role(role)
        (rows, *masks), leading = self._policy_inputs(obs, action_mask, role)
        distribution = action_distribution(self.networks[role], rows, masks[0] if masks else None)
        if isinstance(distribution, Categorical):
            return _like(obs, distribution.logits.softmax(-1), leading)
        if isinstance(distribution, MultiCategorical):
            return tuple(_like(obs, choice.logits.softmax(-1), leading) for choice in distribution.choices)
        raise ValueError(
            f"the actions are {self.spaces[role].action}, which have a density and no probabilities: act(obs) returns the mean."
        )

    @ordinary_tensors()
    @torch.no_grad()
    def value(self, obs: Any, *, role: str | None = None) -> Any:
        """Returns the expected return, (...,); of DDPG that of the policy's action by its lowest critic.

        Args:
            obs: as in `act`, without dicts; in environments with observations of a critic these, (..., Dc).
            role: the role of the agents; None if there is only one policy.

        Raises:
            StateError: there is no policy of that role.
            ValueError: observations of another shape or dtype.
        """
        role = self.find_role(role)
        spaces = self.spaces[role]
        rows, leading = self._to_rows(obs, spaces.critic_observation or spaces.observation)
        return _like(obs, value_of(self.networks[role], rows), leading)

    def to_bytes(self, roles: Sequence[str] | None = None) -> bytes:
        """Returns the content of a policy file.

        Args:
            roles: those whose policies are in it; None for all.

        Raises:
            MissingExtraError: safetensors is not installed.
        """
        roles = self.roles if roles is None else tuple(roles)
        settings = {role: args_to_dict(self.args[role]) for role in roles}
        description = describe_policies(settings, {role: self.spaces[role] for role in roles})
        return to_bytes(description, {role: self.networks[role].state_dict() for role in roles})

    def find_role(self, role: str | None) -> str:
        """Returns the role of a policy, that of the only one if `role` is None.

        Args:
            role: the role; None if there is only one policy.

        Raises:
            StateError: there is no policy of that role, or there are several and `role` is None.
        """
        role = self.roles[0] if role is None and len(self.roles) == 1 else role
        if role not in self.roles:
            raise StateError(f"there are policies of {', '.join(self.roles)}: give one of these as role, not {role!r}.")
        return role

    def _policy_inputs(self, obs: Any, action_mask: Any, role: str) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The observations and, in environments with masks, the masks as rows, and the leading dimensions."""
        spaces = self.spaces[role]
        rows, leading = self._to_rows(obs, spaces.observation)
        if spaces.has_masks != (action_mask is not None):
            remedy = 'give infos["action_mask"]' if spaces.has_masks else "give none"
            raise ValueError(f"{self.env} has {'' if spaces.has_masks else 'no '}action masks: {remedy} as action_mask.")
        if action_mask is None:
            return (rows,), leading
        mask, shape = self._to_tensor(action_mask), (*leading, self.networks[role].num_outputs)
        if tuple(mask.shape) != shape or mask.dtype not in (torch.bool, torch.int8):
            raise ValueError(f"action_mask must be bool of shape {shape}, got {mask.dtype} of shape {tuple(mask.shape)}.")
        return (rows, mask.bool().view(len(rows), -1)), leading

    def _to_rows(self, obs: Any, space: gym.Space[Any]) -> tuple[Tensor, tuple[int, ...]]:
        """Observations as (R, ...) of the dtype of the network, and their leading dimensions."""
        tensor, shape, dtype = self._to_tensor(obs), space.shape or (1,), obs_dtype(space)
        num_leading = tensor.dim() - len(shape)
        if num_leading < 0 or tensor.shape[num_leading:] != shape:
            raise ValueError(f"observations of {self.env} have the shape (..., {str(shape)[1:]}, got {tuple(tensor.shape)}.")
        if dtype == torch.uint8 and tensor.dtype != dtype:
            raise ValueError(f"observations of {self.env} are uint8, got {tensor.dtype}.")
        return tensor.to(dtype).reshape(-1, *shape), tuple(tensor.shape[:num_leading])

    def _to_tensor(self, array: Any) -> Tensor:
        return (array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))).to(self.device)


def value_of(network: Any, obs: Tensor) -> Tensor:
    """Returns the expected return, (R,), for observations of a critic if the environment has them.

    Args:
        network: an `ActorCritic` or `DeterministicActorCritic`.
        obs: (R, ...).
    """
    if isinstance(network, DeterministicActorCritic):
        features = network.normalize_obs(obs)
        return network.values(network.critics, features, network.act(network.actor, features)).amin(0)
    value: Tensor = network.value(obs)
    return value


def _like(obs: Any, rows: Tensor, leading: tuple[int, ...]) -> Any:
    """Rows (R, ...) with the leading dimensions, as a tensor on the device of `obs`, or a NumPy array or number."""
    result = rows.reshape((*leading, *rows.shape[1:]))
    return result.to(obs.device) if isinstance(obs, Tensor) else result.numpy(force=True)[()]


class PolicyReadout:
    """Reads the policies that learn, asynchronously: on a GPU the training continues while the copies are made.

    Args:
        learner: the learner of the training.
    """

    def __init__(self, learner: Learner) -> None:
        policies = learning_policies(learner.policies)
        settings = {role: args_to_dict(policy.args) for role, policy in policies.items()}
        self._description = describe_policies(settings, {role: AgentSpaces.of_env(learner.env, role) for role in policies})
        states: dict[str, dict[str, Tensor]] = {
            role: policy.network.state_dict() for role, policy in policies.items() if policy.network is not None
        }
        self._readouts = {
            role: {name: Readout(tensor, depth=1) for name, tensor in state.items()} for role, state in states.items()
        }
        self._learner = learner
        self.iteration = 0
        """The number of iterations after which the policies were read last."""

    def start(self) -> None:
        """Starts to read the policies after the iteration that was launched last.

        Raises:
            RuntimeError: a read was started and not taken.
        """
        for readouts in self._readouts.values():
            for readout in readouts.values():
                readout.start()
        self.iteration = self._learner.iteration

    def take(self) -> bytes:
        """Waits for the copies, and returns the content of a policy file. Any thread may call it."""
        return self.to_bytes(
            {role: {name: readout.take() for name, readout in part.items()} for role, part in self._readouts.items()}
        )

    def to_bytes(self, networks: Mapping[str, Mapping[str, Any]]) -> bytes:
        """Returns the content of a policy file with other weights.

        Args:
            networks: {role: {name: tensor}} of the same networks, such as those of a checkpoint.
        """
        return to_bytes(self._description, networks)
