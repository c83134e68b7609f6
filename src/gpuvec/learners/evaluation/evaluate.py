"""Episodes of a policy or a player without learning, also between the iterations of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.engine.backends.device import parse_device
from gpuvec.episode import STEP_LIMIT, make_endless_error
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ALL, args_from_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import current_device, ordinary_tensors
from gpuvec.learners.environments import AgentSpaces, TrainingEnv, find_agent_spaces, is_multi_agent, make_env
from gpuvec.learners.evaluation.players import Act, Draws, Player, PolicyNetwork, by_role, policy, role_seed
from gpuvec.learners.metric_names import EVAL_LENGTH, EVAL_RETURN
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.networks.linear import cached_parameters
from gpuvec.learners.networks.named_network import make_network
from gpuvec.learners.policy_files.policy_file import require_tensors, tensor_type
from gpuvec.learners.runs.checkpoint import learning_policies, require_network_size
from gpuvec.learners.runs.trusted_code import require_imported
from gpuvec.learners.seeds import INTERMEDIATE_EVALUATION, stream_seed

if TYPE_CHECKING:
    from gpuvec.learners.policy import Policy

# Checking whether all episodes are over synchronises with a GPU, which costs more than a few steps.
STEPS_BETWEEN_CHECKS = 32


class EpisodeResults(NamedTuple):
    """The results of E episodes; tensors on the CPU."""

    returns: Tensor  # (E,) float64, undiscounted; with many agents (E, A), from their first action until they terminated
    lengths: Tensor  # shape of returns, int64: the number of steps whose rewards count in the return
    terminated: Tensor  # (E,) bool: whether the episode was terminated; with many agents (E, A): whether the agent was
    roles: Mapping[str, Any]  # {role: its agents, as an index of the axis A}
    metrics: Mapping[str, Tensor] = MappingProxyType({})  # {name: (E,) float32}, the environment's own metrics


@ordinary_tensors()
def run_episodes(
    env: str,
    player: Player,
    *,
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    params: Mapping[str, Any] | None = None,
) -> EpisodeResults:
    """Runs the first episode of each of `episodes` environments.

    The results of the episodes that end first would be those of short episodes.

    Args:
        env: id of a gpuvec environment.
        player: acts; with many agents, for all of them.
        episodes: number of episodes.
        seed: of the environments.
        device: "auto", "cpu", "cuda" or "cuda:1".
        params: the environment's own parameters.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    device = str(parse_device(device))
    with (
        current_device(device),
        closing(make_env(env, episodes, params or {}, device=device, output="torch", buffers=1)) as envs,
    ):
        return run_first_episodes(envs, player(envs), seed)


@ordinary_tensors()
@torch.no_grad()
def run_first_episodes(envs: TrainingEnv, act: Act, seed: int | Sequence[int]) -> EpisodeResults:
    """Resets environments that exist, and runs the first episode of each of their E rows. They can be used again afterwards.

    Args:
        envs: the environments, with torch output; on a GPU theirs must be the current device.
        act: acts in them, as a `Player` returns it. Its rows may be those of several policies.
        seed: of the environments: one for all rows, or E of them, one for each row.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    obs, info = envs.reset(seed=seed)
    has_agents, device = is_multi_agent(envs), envs.device
    shape = (envs.num_envs, envs.unwrapped.num_agents) if has_agents else (envs.num_envs,)
    returns = torch.zeros(shape, dtype=torch.float64, device=device)
    lengths = torch.zeros(shape, dtype=torch.int64, device=device)
    was_terminated = torch.zeros(shape, dtype=torch.bool, device=device)
    in_episode = torch.zeros_like(was_terminated)  # agents that act, or wait after an action
    metrics = {name: torch.zeros(envs.num_envs, device=device) for name in envs.unwrapped.metric_names}
    running = torch.ones((envs.num_envs, 1) if has_agents else shape, dtype=torch.bool, device=device)
    for step in range(STEP_LIMIT):
        if step % STEPS_BETWEEN_CHECKS == 0 and not running.any():
            roles = {role: agents.cpu() if isinstance(agents, Tensor) else agents for role, agents in envs.roles.items()}
            results = returns.cpu(), lengths.cpu(), was_terminated.cpu(), roles
            return EpisodeResults(*results, {name: values.cpu() for name, values in metrics.items()})
        obs, reward, terminated, truncated, info = envs.step(
            act(obs, info["action_mask"]) if "action_mask" in info else act(obs)
        )
        if has_agents:
            in_episode |= info["agent_mask"]
        is_counted = running & in_episode if has_agents else running
        returns += reward.where(is_counted, 0.0)
        lengths += is_counted
        was_terminated |= running & (info["agent_terminated"] if has_agents else terminated)
        if has_agents:
            in_episode &= ~info["agent_terminated"]
        for name, values in metrics.items():  # Those of the last step of an episode are complete.
            values.copy_(info["metrics"][name].where(running.view(-1), values))
        running &= ~(terminated | truncated).view_as(running)
    raise make_endless_error(int(running.sum()), envs.num_envs)


def evaluate(
    network: PolicyNetwork,
    env: str,
    *,
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    greedy: bool = True,
    params: Mapping[str, Any] | None = None,
) -> Tensor:
    """Returns the undiscounted returns of `episodes` episodes, float64 on the CPU: (episodes,), with many agents (episodes, A).

    Args:
        network: the policy of all agents, on `device`.
        env: id of a gpuvec environment.
        episodes: number of episodes.
        seed: of the environments, and of the actions unless `greedy`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        greedy: take the likeliest action instead of drawing one.
        params: the environment's own parameters.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    player = policy(network, greedy=greedy, seed=seed)
    return run_episodes(env, player, episodes=episodes, seed=seed, device=device, params=params).returns


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
        if opponent is None:
            return
        act: Act = self._act
        num_agents = self._envs.unwrapped.num_agents
        is_opponent = torch.arange(num_agents) == torch.arange(self._envs.num_envs).unsqueeze(1) % num_agents
        self._counted, is_opponent = ~is_opponent, is_opponent.to(self._envs.device)

        def act_beside(*inputs: Tensor) -> Tensor:
            actions = act(*inputs)
            mask = is_opponent.view(*is_opponent.shape, *[1] * (actions.dim() - 2))
            return torch.where(mask, opponent(*inputs, generator=self._generator).to(actions.dtype), actions)

        self._act = act_beside

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


@ordinary_tensors()
def load_policy(
    checkpoint: Mapping[str, Any], device: str, body: Body | None = None, role: str | None = None
) -> tuple[TrainingArgs, Any]:
    """Returns the settings of a policy in a checkpoint, and its network, a `PolicyNetwork` on `device`.

    Args:
        checkpoint: the result of `checkpoint.load`, or of `read_policy_file`.
        device: "cpu" or "cuda:<index>".
        body: the function that made the network; None for that of the settings.
        role: the role of the policy; None if there is only one.

    Raises:
        StateError: no policy of that role learned, or parameters of another network.
        CheckpointError: the environment is in a module that is not imported, or the settings describe a larger network.
    """
    role = trained_role(checkpoint, role)
    require_imported(checkpoint["args"])
    args = args_from_dict(checkpoint["args"][role])
    spaces = find_agent_spaces(args.env, args.params, device, role)
    return args, make_trained_network(args, spaces, checkpoint["policies"][role]["network"], body).to(device)


def make_trained_network(
    args: TrainingArgs, spaces: AgentSpaces, tensors: Mapping[str, Tensor], body: Body | None = None
) -> Any:
    """Returns the network of a policy, a `PolicyNetwork` on the CPU, with the numbers in a file.

    Args:
        args: the settings.
        spaces: of one agent.
        tensors: {name: tensor} of the network in the file.
        body: the function that made the network; None for that of the settings.

    Raises:
        StateError: parameters of another network, or a class of it that is not found.
        ValueError: a network that the settings name does not fit the spaces.
        CheckpointError: the settings describe a larger network, or name one of a module that is not imported.
    """
    if body is None:
        require_network_size(args, tensors)
    network = make_network(args, *spaces[:2], body, critic_space=spaces.critic_observation)
    require_tensors(tensors, {name: tensor_type(tensor) for name, tensor in network.state_dict().items()})
    network.load_state_dict(tensors)
    return network


def trained_role(checkpoint: Mapping[str, Any], role: str | None = None) -> str:
    """Returns the role of a policy in a checkpoint, that of its only one if `role` is None.

    Args:
        checkpoint: the result of `checkpoint.load`.
        role: the role; None if there is only one policy that learned.

    Raises:
        StateError: no policy of that role learned.
    """
    trained = checkpoint["args"]
    role = next(iter(trained)) if role is None and len(trained) == 1 else role
    if role not in trained:
        raise StateError(f"the checkpoint has policies for {', '.join(trained)}: name one of these roles, not {role!r}.")
    return str(role)
