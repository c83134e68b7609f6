"""Evaluations of the policies of a training, between its iterations, in environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import run_first_episodes
from gpuvec.learners.evaluation.players import Act, Draws, by_role, role_seed
from gpuvec.learners.metric_names import EVAL_LENGTH, EVAL_RETURN
from gpuvec.learners.networks.linear import cached_parameters
from gpuvec.learners.policy import Policy
from gpuvec.learners.runs.checkpoint import learning_policies
from gpuvec.learners.seeds import INTERMEDIATE_EVALUATION, stream_seed


class Evaluator:
    """Evaluates the present policies of a learner, as often as it is called. Nothing of the training changes.

    Environments and players are made once. An evaluation is the first episode of each environment, with actions that are drawn
    as in training. The environments and the actions have random numbers that no training uses, and that depend on the seed and
    on the iteration alone, so that a training that is continued has the same evaluations.

    On a GPU all operations are on the current stream, so that they read the parameters that the last iteration wrote there. The
    host waits for the end of the episodes.

    Args:
        args: the settings of the training, resolved.
        policies: {role: policy}, or {"all": ...} for one policy of all agents.
        opponent: plays one agent in each environment, each agent equally often, whose returns do not count; as in
            `training.train`, where it plays in each second environment. None for none.

    Raises:
        OutOfMemoryError: the environments do not fit into the memory that is free.
    """

    def __init__(
        self, args: TrainingArgs, policies: Mapping[str, Policy], opponent: Callable[..., Tensor] | None = None
    ) -> None:
        self._args, self._policies, self._draws = args, policies, Draws(args.device)
        self._envs = make_env(
            args.env, args.evaluate_episodes, args.evaluate_params,
            device=args.device, output="torch", buffers=1, backend=args.backend,
        )  # fmt: skip
        seed = stream_seed(args.seed, INTERMEDIATE_EVALUATION)
        players = {role: policy.player(role_seed(seed, role), self._draws) for role, policy in policies.items()}
        self._act = (players[ALL] if ALL in players else by_role(players))(self._envs)
        self._generator = self._draws.generator(seed)  # of the opponent
        self._counted: Tensor | None = None  # (E, A) bool on the CPU: agents of the policy beside an opponent
        if opponent is not None:
            self._act = self._act_beside(opponent, self._act)

    def _act_beside(self, opponent: Callable[..., Tensor], act: Act) -> Act:
        """Returns a function that acts by `opponent` for one agent in each environment, and by `act` for the others."""
        num_agents = self._envs.unwrapped.num_agents
        is_opponent = torch.arange(num_agents) == torch.arange(self._envs.num_envs).unsqueeze(1) % num_agents
        self._counted, is_opponent = ~is_opponent, is_opponent.to(self._envs.device)

        def act_beside(*inputs: Tensor) -> Tensor:
            actions = act(*inputs)
            mask = is_opponent.view(*is_opponent.shape, *[1] * (actions.dim() - 2))
            return torch.where(mask, opponent(*inputs, generator=self._generator).to(actions.dtype), actions)

        return act_beside

    def evaluate(self, iteration: int) -> dict[str, float]:
        """Returns the metrics of an evaluation after `iteration`, named as in `evaluation_metric_names`.

        Raises:
            GpuvecError: an episode took more than 100,000 steps.
        """
        self._draws.begin(iteration)
        seed = stream_seed(self._args.seed, INTERMEDIATE_EVALUATION, index=iteration)
        with cached_parameters(*(policy.network for policy in self._policies.values())):
            results = run_first_episodes(self._envs, self._act, seed)
        counted = ... if self._counted is None else self._counted
        means = [
            float(values[counted if role == ALL else (slice(None), results.roles[role])].double().mean())
            for role in learning_policies(self._policies)
            for values in (results.returns, results.lengths)
        ]
        return dict(zip(evaluation_metric_names(self._policies), means, strict=True))

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()


def evaluation_metric_names(policies: Mapping[str, Policy]) -> list[str]:
    """Returns the names of the metrics of an evaluation: those of the policy of a role begin with the role.

    Args:
        policies: {role: policy}; those that do not learn have no metrics.
    """
    names = EVAL_RETURN, EVAL_LENGTH
    return [name if role == ALL else f"{role}/{name}" for role in learning_policies(policies) for name in names]
