"""A population that is trained by torch operations over all agents.

The matrix products of a group of agents are one operation. A group always has the same number of agents, which depends on the
device alone, because a library chooses its algorithm by the number of matrices: so the numbers of an agent do not depend on how
many others there are. The last group is filled up with copies of the last agent, which are no part of any result.

Letters: P agents (with the copies), E environments of an agent, R = P * E rows, T steps, B = T * E samples of an agent, D
observation features, N outputs of the policy.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.config.schedule import remaining_share
from gpuvec.learners.cuda_graphs.graph import capture, clone_tensors, copy_into
from gpuvec.learners.estimators.advantage import AdvantageEstimator, compute_final_values
from gpuvec.learners.estimators.episode_statistics import episode_metrics
from gpuvec.learners.metric_names import EPISODE_METRICS
from gpuvec.learners.population.batched.batched_update import BatchedUpdate
from gpuvec.learners.population.batched.population_evaluator import PopulationEvaluator
from gpuvec.learners.population.batched.stacked_networks import StackedNetworks, StackedNormalizer
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.state.agent_state import AgentState, agent_bytes, require_population_memory, select_leading
from gpuvec.learners.population.state.environment import make_population_env, row_streams, select_rows
from gpuvec.learners.population.state.parameters import ParameterLayout
from gpuvec.learners.ppo import PPO
from gpuvec.learners.sampling.sampler import ActionSample, Sampler
from gpuvec.learners.seeds import ACTIONS, stream_seed

GROUP_SIZES = {"cpu": 16, "cuda": 256}
"""The number of agents whose matrix products are one operation, by the kind of the device."""


class BatchedPopulation:
    """A population that learns.

    Args:
        args: the settings, resolved.
        group_size: the number of agents whose matrix products are one operation; None for that of the device.

    Raises:
        ValueError: an environment that a population does not support.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """

    name = "batched operations"
    """What trains, for messages."""

    def __init__(self, args: PopulationArgs, group_size: int | None = None) -> None:
        self.args, self.iteration = args, 0
        device = args.base.device
        size = group_size or GROUP_SIZES[device.partition(":")[0]]
        num_agents = -(-args.num_agents // size) * size
        self._agents = [min(k, args.num_agents - 1) for k in range(num_agents)]  # those of the groups
        padded = args.select(self._agents)
        self.env = make_population_env(padded)
        self._num_envs = self.env.num_envs // num_agents
        spaces = self.env.single_observation_space, self.env.single_action_space
        self.network = PPO.make_network(args.base, *spaces)
        """The network of an agent, on the CPU, with any parameters."""
        features, action_size = (math.prod(space.shape or ()) for space in spaces)
        num_floats = ParameterLayout(self.network).num_floats
        require_population_memory(args, agent_bytes(args, num_floats, features, action_size))
        self.state = AgentState(padded, self.network)
        groups = [slice(k, k + size) for k in range(0, num_agents, size)]
        layout, parameters = self.state.layout, self.state.parameters
        self._networks = StackedNetworks(self.network, layout, parameters, groups, args.base.activation, device)
        self._allocate(padded)
        self._rollout.reset(row_streams(padded))  # type: ignore[arg-type]  # any seed of `VectorEnv.reset`
        self._normalizer = StackedNormalizer(num_agents, features, device) if args.base.normalize else None
        if self._normalizer is not None:
            self._normalizer.update(self._by_agent(self._rows.obs[-1:]))
        self._evaluator = PopulationEvaluator(args, self.network, self.state, self._normalizer, size)
        self._run = self._iterate

    def _allocate(self, padded: PopulationArgs) -> None:
        """Allocates what an iteration writes."""
        base, device = padded.base, padded.base.device
        self._rollout = EnvRollout(self.env, base.num_steps, device)
        self._rows = self._rollout.rows(AgentSubset(None, None))
        action = self.network.policy(self._rows.obs[0].cpu()).mode().to(device)
        T, R = self._rows.reward.shape
        self._action = action.new_zeros((T, *action.shape))
        self._log_prob, self._final_value = torch.zeros(2, T, R, device=device)
        self._value = torch.zeros(T + 1, R, device=device)
        self._entropy = torch.zeros(R, device=device)  # of the policy in the last step
        self._sampler = Sampler(device, [stream_seed(seed, ACTIONS) for seed in padded.seeds])
        self._advantage = AdvantageEstimator(device, base.gamma, base.gae_lambda)
        self._update = BatchedUpdate(padded, self._networks, self.state)
        self._metrics = torch.zeros(len(METRICS), padded.num_agents, device=device)

    @property
    def stopped_at(self) -> Tensor:
        """(P,) int64: the iteration in which an agent was stopped, because a number was not finite; -1 for one that runs."""
        return self.state.stopped_at[: self.args.num_agents]

    def close(self) -> None:
        """Frees the environments."""
        self.env.close()
        self._evaluator.close()

    def evaluate(self) -> Tensor:
        """Returns the mean return of each agent in an evaluation, see `PopulationEvaluator`, (P,) float32 on the CPU."""
        return self._evaluator.evaluate(self.iteration)

    def capture(self) -> None:
        """Captures an iteration as a CUDA graph; the state is restored afterwards."""
        saved = self.state_dict()

        def kernel_version() -> int:
            return int(self.env.unwrapped.kernel_version)

        self._run = capture(self._iterate, self.args.base.device, (), kernel_version)
        self.load_state_dict(saved)

    def advance(self, iterations: int) -> Tensor:
        """Runs iterations, on a GPU asynchronously, and returns their `METRICS`, (iterations, metrics, P) float32.

        Args:
            iterations: the number of iterations.
        """
        base, results = self.args.base, []
        for _ in range(iterations):
            decay = remaining_share(self.iteration, base.iterations) if base.anneal_lr else 1.0
            self._update.learning_rate_decay.fill_(decay)
            self._run()
            results.append(self._metrics[:, : self.args.num_agents].clone())
            self.iteration += 1
        return torch.stack(results)

    def _iterate(self) -> None:
        """Runs one iteration."""
        self._collect()
        advantage, target = self._estimate()
        samples = {
            "obs": self._rows.obs[:-1], "action": self._action, "log_prob": self._log_prob, "value": self._value[:-1],
            "advantage": advantage, "target": target,
        }  # fmt: skip
        by_agent = {name: self._by_agent(x) for name, x in samples.items()}
        obs = by_agent["obs"]
        by_agent["obs"] = self._normalized(obs)
        self._metrics[len(EPISODE_METRICS) :] = self._update({name: x.flatten(0, 1) for name, x in by_agent.items()})
        # The normaliser does not change during an update, whose probability ratios compare policies at equal observations.
        if self._normalizer is not None:
            self._normalizer.update(obs)

    def _normalized(self, obs: Tensor) -> Tensor:
        """Returns observations (P, B, D) as the networks take them."""
        return obs if self._normalizer is None else self._normalizer(obs)

    def _by_agent(self, x: Tensor) -> Tensor:
        """Returns the rows (T, R, ...) of a rollout as samples (P, T * E, ...)."""
        return x.view(len(x), -1, self._num_envs, *x.shape[2:]).transpose(0, 1).flatten(1, 2)

    @torch.no_grad()
    def _collect(self) -> None:
        """Runs T steps of each environment."""
        rollout, networks = self._rollout, self._networks
        rollout.begin_rollout()
        for t in range(self.args.base.num_steps):
            obs = self._rows.obs[t].unflatten(0, (-1, self._num_envs))
            policy = networks.row_policy(networks.outputs(self._normalized(obs)))
            sample = ActionSample(self._action[t], self._log_prob[t], self._entropy)
            policy.draw(self._sampler, self.state.num_rollouts, t, sample)
            rollout.step(t, networks.control(self._action[t]))
        self.state.num_rollouts.add_(1)
        finite = self._rows.reward.isfinite() & self._log_prob.isfinite()
        self.state.stop(~self._by_agent(finite).all(1), 1)

    @torch.no_grad()
    def _estimate(self) -> tuple[Tensor, Tensor]:
        """Computes advantages and targets, (T, R), and writes the metrics of the episodes."""
        rows, settings = self._rows, self.state.settings
        value = self._networks.values(self._normalized(self._by_agent(rows.obs)))  # (P, T * E)
        self._value.copy_(value.view(len(value), -1, self._num_envs).transpose(0, 1).flatten(1, 2))
        compute_final_values(
            lambda obs: self._networks.values(self._normalized(obs.unflatten(0, (-1, self._num_envs)))).flatten(),
            rows.final_obs, rows.ended & ~rows.terminated, self._rollout.max_truncations, self._final_value,
        )  # fmt: skip
        scale = settings["reward_scale"].float().unsqueeze(1).expand(-1, self._num_envs).flatten()
        discount = settings["gamma"]
        factors = torch.stack([discount, discount * settings["gae_lambda"]], 1).float()
        inputs = rows.reward * scale, self._value, self._final_value, rows.terminated, rows.ended
        advantage, target = self._advantage(*inputs, factors=factors)
        finite = self._value[:-1].isfinite() & advantage.isfinite()
        self.state.stop(~self._by_agent(finite).all(1), 2)
        sums = self.state.episodes.add(rows.reward, rows.ended).unflatten(1, (-1, self._num_envs)).sum(2)
        self._metrics[: len(EPISODE_METRICS)] = episode_metrics(sums)
        return advantage, target

    def _all_tensors(self) -> dict[str, Any]:
        normalizer = {} if self._normalizer is None else {"normalizer": self._normalizer.tensors()}
        return {**self.state.tensors(), **self._rollout.state_tensors(), **normalizer}

    def tensors(self) -> dict[str, Any]:
        """Returns copies of all tensors that the next iteration depends on, without those of the environment."""
        P, E = self.args.num_agents, self._num_envs
        groups = len(self._agents)
        return clone_tensors(select_leading(self._all_tensors(), {groups * E: range(P * E), groups: range(P)}))

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next iteration depends on: copies of `tensors`, the environment and the iteration."""
        rows = range(self.args.num_agents * self._num_envs)
        env = select_rows(self.env, self.env.state_dict(), rows)
        return {"tensors": self.tensors(), "env": env, "iteration": self.iteration}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called.

        Args:
            saved: its result, of a population with the same number of agents, networks and environment.

        Raises:
            StateError: a state of another population.
        """
        P, E = self.args.num_agents, self._num_envs
        if not isinstance(saved, Mapping) or saved.keys() != {"tensors", "env", "iteration"}:
            raise StateError("this is no state of a population.")
        num_agents = len(saved["tensors"]["stopped_at"])
        if num_agents != P or saved["env"]["seed"] != row_streams(self.args).seeds:
            seeds = reprlib.repr(tuple(dict.fromkeys(saved["env"]["seed"])))
            raise StateError(
                f"this state is of {num_agents} agents with the seeds {seeds}; this population has {P} agents with "
                f"{reprlib.repr(self.args.seeds)} and {E} environments each."
            )
        rows = [k * E + e for k in self._agents for e in range(E)]
        expanded = select_leading(saved["tensors"], {P * E: rows, P: self._agents})
        copy_into(self._all_tensors(), expanded)
        self.env.load_state_dict(select_rows(self.env, saved["env"], rows))
        self.iteration = saved["iteration"]

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents for the iterations that follow.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """
        self.state.set_settings(name, np.asarray(values)[self._agents])

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the moments of another one; settings and environments do not change.

        An agent that was stopped continues if it takes those of one that runs.

        Args:
            source: P numbers of agents; the own number for an agent that keeps what it has, as each agent that is copied does.
        """
        self.state.copy_learned(np.asarray(source)[self._agents])
