"""The result of a population: its numbers, and its policies as ordinary networks and checkpoints.

Letters: P agents, E environments of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from gpuvec.learners.algorithms import ALL, args_to_dict
from gpuvec.learners.cuda_graphs.settings import ordinary_tensors
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.results.population_history import PopulationHistory
from gpuvec.learners.population.state.environment import select_rows
from gpuvec.learners.ppo import PPO
from gpuvec.learners.training import make_learner, make_training_env


class PopulationResult(NamedTuple):
    """The result of `train_population`."""

    args: PopulationArgs
    """The settings, resolved."""
    history: PopulationHistory
    """The numbers of all agents over the training."""
    state: Mapping[str, Any]
    """All that the next iteration depends on, from which `train_population` continues."""
    path: str
    """What trained the population."""

    def best(self, count: int) -> list[int]:
        """Returns the numbers of the agents with the highest final returns, the best first.

        Args:
            count: the largest number of agents; agents that were stopped are left out.
        """
        return [k for k in self.history.ranking()[:count] if self.history.stopped_at[k] < 0]

    @ordinary_tensors()
    def policy(self, k: int) -> Any:
        """Returns the policy and the value function of agent `k`, an `ActorCritic` as that of a single training.

        Args:
            k: the number of the agent.

        Raises:
            IndexError: there is no such agent.
        """
        self._require_agent(k)
        with closing(make_training_env(self.args.agent(k), self.args.base.num_envs or 1)) as env:
            network = PPO.make_network(self.args.base, env.single_observation_space, env.single_action_space)
        network.to(self.args.base.device)
        with torch.no_grad():
            for name, p in network.named_parameters():
                p.copy_(self.state["tensors"]["parameters"][name][k])
        if network.normalizer is not None:
            network.normalizer.load_state_dict(self._moments(k))
        return network

    def _moments(self, k: int) -> dict[str, Any]:
        """The state of the normaliser of agent `k`; empty if observations are not normalised."""
        return {name: x[k].clone() for name, x in self.state["tensors"].get("normalizer", {}).items()}

    def checkpoint(self, k: int) -> dict[str, Any]:
        """Returns the checkpoint of a single training with the settings of agent `k`, in the state of the agent.

        It can be evaluated, exported and continued as any other. A training that continues from it draws the orders of samples
        that a single training draws, so that its numbers are others than those of the population.

        Args:
            k: the number of the agent.

        Raises:
            IndexError: there is no such agent.
        """
        self._require_agent(k)
        args, tensors = self.args.agent(k), self.state["tensors"]
        num_envs = args.num_envs or 1
        rows = slice(k * num_envs, (k + 1) * num_envs)
        with closing(make_training_env(args, num_envs)) as env:
            checkpoint = make_learner(replace(args, fused=False), env).state_dict()
            checkpoint["env"] = select_rows(env, self.state["env"], range(rows.start, rows.stop))
        policy = checkpoint["policies"][ALL]
        moments = {"exp_avg": tensors["exp_avg"], "exp_avg_sq": tensors["exp_avg_sq"]}
        policy["network"] |= {f"normalizer.{name}": x for name, x in self._moments(k).items()}
        for name in tensors["parameters"]:
            policy["network"][name] = tensors["parameters"][name][k].clone()
            own = {moment: x[name][k].clone() for moment, x in moments.items()}
            policy["optimizer"][name] = {"step": tensors["adam_step"][k].clone(), **own}
        policy["episodes"] = {name: x[rows].clone() for name, x in tensors["episodes"].items()}
        policy["num_rollouts"] = tensors["num_rollouts"].clone()
        checkpoint |= {name: tensors[name][rows].clone() for name in ("obs", "episode_start")}
        checkpoint |= {"iteration": self.state["iteration"], "seconds": float(self.history.seconds[-1])}
        checkpoint["args"] = {ALL: args_to_dict(args)}
        return checkpoint

    def _require_agent(self, k: int) -> None:
        if not 0 <= k < self.args.num_agents:
            raise IndexError(f"there is no agent {k}: the population has agents 0 to {self.args.num_agents - 1}.")
