"""Evaluations of all agents of a population, in environments of their own.

Letters: P agents, C agents of a part, K episodes of an agent, D observation features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import run_first_episodes
from gpuvec.learners.evaluation.players import Draws
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.population.batched.stacked_networks import StackedNetworks, StackedNormalizer
from gpuvec.learners.population.population_args import RUNNING, PopulationArgs
from gpuvec.learners.population.state.agent_state import AgentState
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import INTERMEDIATE_EVALUATION, stream_seed
from gpuvec.vector.reset_arguments import RowStreams

MAX_ROWS = 2**16
"""The largest number of environments of a part, unless one group of agents has more."""


class PopulationEvaluator:
    """Evaluates the present policies of all agents, as often as it is called. Nothing of the training changes.

    An evaluation is the first episode of each of `base.evaluate_episodes` environments of an agent, with actions that are
    drawn, as in a single training with the seed of the agent. The environments have the parameters `base.evaluate_params`, and
    apart from them their own, also where the training has others.

    Agents are evaluated part by part. Each part has the same number of agents, on whose number the rounding of products
    depends, so that the numbers of an agent do not depend on how many others there are.

    Args:
        args: the settings, resolved.
        network: the network of an agent, for its spaces.
        state: the agents, of which the first P are evaluated.
        normalizer: of their observations; None if these are not normalised.
        group_size: the number of agents whose matrix products are one operation.

    Raises:
        ValueError, TypeError: parameters that the environment refuses, or with which policies cannot be evaluated.
        OutOfMemoryError: the environments do not fit into the memory that is free.
    """

    def __init__(
        self,
        args: PopulationArgs,
        network: ActorCritic,
        state: AgentState,
        normalizer: StackedNormalizer | None,
        group_size: int,
    ) -> None:
        base, self._args, self._state, self._normalizer = args.base, args, state, normalizer
        num_groups = min(-(-args.num_agents // group_size), max(1, MAX_ROWS // (group_size * base.evaluate_episodes)))
        self._num_agents = num_groups * group_size
        """C."""
        self._env = make_env(
            base.env, self._num_agents * base.evaluate_episodes, base.evaluate_params,
            device=base.device, output="torch", autoreset_mode="SameStep", buffers=1, backend=base.backend,
        )  # fmt: skip
        self._parameters = state.parameters.new_zeros(self._num_agents, state.parameters.shape[1])
        groups = [slice(k, k + group_size) for k in range(0, self._num_agents, group_size)]
        self._networks = StackedNetworks(network, state.layout, self._parameters, groups, base.activation, base.device)
        self._moments = None
        if normalizer is not None:
            self._moments = StackedNormalizer(self._num_agents, normalizer.mean.shape[1], base.device)
        self._draws = Draws(base.device)

    @torch.no_grad()
    def evaluate(self, iteration: int) -> Tensor:
        """Returns the mean return of each agent, (P,) float32 on the CPU, nan for agents that were stopped.

        On a GPU all operations are on the current stream, and the host waits for the end of the episodes.

        Args:
            iteration: the number of finished iterations, on which the random numbers depend.

        Raises:
            GpuvecError: an episode took more than 100,000 steps.
        """
        P, C = self._args.num_agents, self._num_agents
        parts = [self._evaluate_part([min(first + k, P - 1) for k in range(C)], iteration) for first in range(0, P, C)]
        is_running = self._state.stopped_at[:P].cpu() == RUNNING
        return torch.where(is_running, torch.cat(parts)[:P].float(), torch.nan)

    def _evaluate_part(self, agents: list[int], iteration: int) -> Tensor:
        """Returns the mean returns of some agents, (C,) float64 on the CPU."""
        base, K = self._args.base, self._args.base.evaluate_episodes
        index = torch.tensor(agents, device=base.device)
        # Those of an agent that was stopped may not be finite, and its episodes would not end.
        self._parameters.copy_(self._state.parameters[index].nan_to_num(0.0, 0.0, 0.0))
        if self._normalizer is not None and self._moments is not None:
            for name, x in self._moments.tensors().items():
                x.copy_(self._normalizer.tensors()[name][index])
        seeds = [self._args.seeds[k] for k in agents]
        sampler = Sampler(base.device, [stream_seed(seed, INTERMEDIATE_EVALUATION) for seed in seeds])
        self._draws.begin(iteration)

        def act(obs: Tensor, action_mask: Tensor | None = None) -> Tensor:
            by_agent = obs.unflatten(0, (-1, K))
            outputs = self._networks.outputs(by_agent if self._moments is None else self._moments(by_agent))
            policy = self._networks.row_policy(outputs)
            return self._networks.control(policy.draw(sampler, self._draws.evaluation, next(self._draws.steps)).action)

        env_seeds = [stream_seed(seed, INTERMEDIATE_EVALUATION, index=iteration) for seed in seeds]
        row_seeds = RowStreams([seed for seed in env_seeds for _ in range(K)], list(range(K)) * len(agents))
        # The type is that of any seed of `VectorEnv.reset`.
        returns = run_first_episodes(self._env, act, row_seeds).returns  # type: ignore[arg-type]
        return returns.view(len(agents), K).mean(1)

    def close(self) -> None:
        """Frees the environments."""
        self._env.close()
