"""A learner: policies that act together in one environment and learn, each by its own algorithm.

Its stages read and write only tensors that were allocated before. On a GPU each stage is captured in a CUDA graph, so that an
iteration is a few launches. The host reads the metrics once an iteration by an asynchronous copy, for which it may wait one
iteration later.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ALL, args_to_dict
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.buffers.memory_check import require_memory, rollout_bytes
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.graph import CapturedGraph, capture, clone_tensors, copy_into
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.cuda_graphs.settings import ordinary_tensors
from gpuvec.learners.environments import TrainingEnv, critic_space_of_agent, map_roles, spaces_of_agent
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.networks.linear import cached_parameters
from gpuvec.learners.policy import Policy, PolicyContext, Stage
from gpuvec.learners.runs.checkpoint import FORMAT, learning_policies, require_same_policies, require_same_shards
from gpuvec.learners.shards.reduce import Reduce, Shard
from gpuvec.learners.stage_times import CudaClock, HostClock, StageTimer, stage_name

PolicyFactory = Callable[[PolicyContext], Policy]
Opponent = Callable[..., Tensor]
"""Returns actions (E, A, ...) for observations (E, A, ...), with action masks also for the mask, and for a `generator`.

It plays one agent in each second environment of a training with one policy of all agents and one shard. The policy learns
from what it does for the other agents there, and plays all agents elsewhere. A CUDA graph must be able to capture the function,
so it draws from the generator alone.
"""


class Learner:
    """Policies that learn in an environment.

    Args:
        args: the settings of the training, which are equal for all policies.
        env: the environment.
        policies: {role: function that makes its policy}, or {"all": ...} for one policy of all agents.
        shard: the part of the training to which the environment belongs; None for all of it.
        opponent: as in `train`.

    Raises:
        ValueError: an opponent where there are several policies, one agent, or roles with spaces of their own.
        OutOfMemoryError: the rollout, or what a policy stores, does not fit into the memory that is free.
    """

    def __init__(
        self,
        args: TrainingArgs,
        env: TrainingEnv,
        policies: Mapping[str, PolicyFactory],
        shard: Shard | None = None,
        opponent: Opponent | None = None,
    ) -> None:
        self.args, self.env, self.iteration, self.shard = args, env, 0, shard or Shard()
        self.reduce = Reduce(self.shard.count)
        """Adds numbers of all shards of the training."""
        self.seconds = 0.0  # of training
        subject = f"a rollout of {args.num_steps:,} steps of {env.num_envs:,} environments"
        require_memory(args.device, rollout_bytes(env, args.num_steps), subject)
        self.rollout = EnvRollout(env, args.num_steps, args.device)
        num_agents, action_space = self.rollout.num_agents, env.single_action_space
        self.agents = {role: AgentSubset(None if role == ALL else env.roles[role], num_agents, role) for role in policies}
        self.policies = {role: make_policy(self._context(role)) for role, make_policy in policies.items()}
        self.action = map_roles(self._zero_actions, action_space)
        """The actions of all agents, (E, ...) or (E, A, ...), or {role: (E, n, ...)} if roles have spaces of their own."""
        self._prepare_report()
        self.rollout.reset(args.seed, self.shard.index * env.num_envs)
        if self.shard.count == 1:
            for policy in self.policies.values():
                policy.begin()
        self.opponent, self._is_opponent = opponent, None if opponent is None else self._opponent_rows()
        has_one_player = ALL in self.policies and opponent is None
        self._fused_rollout = self.policies[ALL].fused_rollout(self.rollout) if has_one_player else None
        self.on_action: Callable[[Any], None] | None = None
        """Called with the actions of each step before the environments take it, outside of fused rollouts; for recordings."""
        self._graphs: dict[Stage, CapturedGraph] | None = None
        self.stage_timer = StageTimer(HostClock() if args.device == "cpu" else CudaClock(args.device))

    def _zero_actions(self, space: gym.Space[Any]) -> Tensor:
        dtype = torch.float32 if space.dtype is not None and space.dtype.kind == "f" else torch.int64
        return torch.zeros((self.env.num_envs, *(space.shape or ())), dtype=dtype, device=self.args.device)

    def _context(self, role: str) -> PolicyContext:
        observation, action = spaces_of_agent(self.env, role)
        critic_space = critic_space_of_agent(self.env)
        return PolicyContext(observation, action, self.rollout, self.agents[role], role, critic_space, self.shard)

    def _prepare_report(self) -> None:
        """Allocates the tensor that has the metrics and fault rows of all policies, and then the metrics of the environment."""
        of_policies = (
            name if role == ALL else f"{role}/{name}" for role, policy in self.policies.items() for name in policy.metric_names
        )
        self.metric_names = (*of_policies, *(f"{ENV_METRICS}/{name}" for name in self.rollout.metrics))
        """The names of the metrics; those of the policy of a role begin with the role, and the environment's with "metrics"."""
        sizes = [len(policy.metric_names) + len(policy.guard.fault_rows) for policy in self.policies.values()]
        sizes.append(len(self.rollout.metrics))
        report = torch.zeros(sum(sizes), dtype=torch.float64, device=self.args.device)
        *parts, self.env_metrics = report.split(sizes)
        """The metrics of the environment in the last iteration, (M,) float64, on the device."""
        for policy, part in zip(self.policies.values(), parts, strict=True):
            policy.report_into(part)
        self._readout = Readout(report)
        self._read_iterations: deque[int] = deque()  # of the reads that are pending

    def _opponent_rows(self) -> Tensor:
        """Returns, (E, A) bool, which agents an opponent plays: one in each second environment, each agent equally often."""
        num_agents = self.rollout.num_agents
        if ALL not in self.policies or num_agents is None or isinstance(self.action, dict):
            raise ValueError("an opponent plays some agents of one policy that all agents share: train one policy for all.")
        envs = torch.arange(self.env.num_envs, device=self.args.device).unsqueeze(1)
        agents = torch.arange(num_agents, device=self.args.device)
        return (envs % 2 == 0) & (envs // 2 % num_agents == agents)

    @property
    def policy(self) -> Any:
        """The policy of all agents, if there is one for all."""
        return self.policies[ALL]

    @torch.no_grad()
    def collect(self) -> None:
        """Runs T steps of each environment of this process."""
        for learner in self.local_shards:
            learner.run_steps()
        if self.rollout.metrics:
            sums = self.reduce.sum([learner.rollout.metric_sums() for learner in self.local_shards])
            self.env_metrics.copy_(sums[:-1] / sums[-1])

    def run_steps(self) -> None:
        """Runs T steps of each environment of this shard."""
        with cached_parameters(*(policy.network for policy in self.policies.values())):
            if self._fused_rollout is not None:
                self._fused_rollout()
            else:
                self.rollout.begin_rollout()
                for t in range(self.args.num_steps):
                    action = self.act(t)
                    if self.on_action is not None:
                        self.on_action(action)
                    self.rollout.step(t, action)
                if self._is_opponent is not None:
                    self.rollout.mask.logical_and_(~self._is_opponent)
                self.rollout.update_rows()
            for policy in self.policies.values():
                policy.finish_rollout()

    def act(self, t: int) -> Any:
        """Returns the actions of all agents in step `t` of the rollout, (E, ...) or (E, A, ...), or {role: (E, n, ...)}."""
        self.rollout.update_views(t)
        episode_start = self.rollout.episode_start[t]
        if ALL in self.policies:
            action = self.policies[ALL].act(t, episode_start).view_as(self.action)
            if self.opponent is None or self._is_opponent is None:
                return action
            rollout, generator = self.rollout, self.policies[ALL].generator
            inputs = [rollout.obs[t], *([] if rollout.action_mask is None else [rollout.action_mask[t]])]
            is_opponent = self._is_opponent.view(*self._is_opponent.shape, *[1] * (action.dim() - 2))
            return torch.where(is_opponent, self.opponent(*inputs, generator=generator).to(action.dtype), action)
        for role, policy in self.policies.items():
            if isinstance(self.action, dict):
                self.action[role].copy_(policy.act(t, episode_start).view_as(self.action[role]))
            else:
                self.agents[role].scatter(self.action, policy.act(t, episode_start))
        return self.action

    def capture(self) -> None:
        """Captures each stage as a CUDA graph; the state of learner and environments is restored afterwards."""
        learners = self.local_shards
        saved = [Learner.state_dict(learner) for learner in learners]
        policies = [policy for learner in learners for policy in learner.policies.values()]
        generators = [policy.generator for policy in policies]
        networks = {policy.network for policy in policies if policy.network is not None}
        parameters = [p for network in networks for p in network.parameters()]

        def kernel_version() -> int:
            return sum(int(learner.env.unwrapped.kernel_version) for learner in learners)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # Inductor's report of an optimisation
            stages = [*self.all_stages(), *([self._whole_iteration] if self.single_graph else [])]
            self._graphs = {stage: capture(stage, self.args.device, generators, kernel_version, parameters) for stage in stages}
        if self.single_graph:
            # No event can be between the stages of one graph, so their own graphs are timed before the state is restored.
            timed_stages = [(stage_name(stage), self._captured(stage)) for stage in self.all_stages()]
            self.stage_timer.measure(timed_stages, partial(torch.cuda.synchronize, self.args.device))
        for learner, state in zip(learners, saved, strict=True):
            learner.load_shard(state)

    def release_graphs(self) -> None:
        """Frees the graphs of `capture`, if there are any; stages are functions again afterwards."""
        graphs, self._graphs = self._graphs or {}, None
        for graph in graphs.values():
            graph.release()

    @property
    def local_shards(self) -> Sequence[Learner]:
        """The learners of the shards in this process."""
        return (self,)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of an iteration: functions, or after `capture` their graphs."""
        return tuple(map(self._captured, self.all_stages()))

    def _captured(self, stage: Stage) -> Stage:
        return stage if self._graphs is None else self._graphs[stage]

    def all_stages(self) -> list[Stage]:
        """Returns the stages of an iteration as functions: the rollout, and those of each policy."""
        return [self.collect, *(stage for policy in self.policies.values() for stage in policy.stages)]

    @property
    def has_fused_rollout(self) -> bool:
        """Whether one kernel runs the steps of a rollout."""
        return self._fused_rollout is not None

    @property
    def single_graph(self) -> bool:
        """Whether each iteration runs all stages, so that one graph holds them."""
        return len(self.policies) == 1 and all(policy.single_graph for policy in self.policies.values())

    def _whole_iteration(self) -> None:
        for stage in self.all_stages():
            stage()

    @ordinary_tensors()
    def iterate(self) -> None:
        """Runs one iteration, on a GPU asynchronously."""
        if self.single_graph:
            self.policy.begin_update(self.iteration)
            self._captured(self._whole_iteration)()
        else:
            self.stage_timer.begin()
            self.stage_timer.run(stage_name(self.collect), self._captured(self.collect))
            for policy in self.policies.values():
                for stage in policy.begin_update(self.iteration):
                    self.stage_timer.run(stage_name(stage), self._captured(stage))
        self.iteration += 1

    def read(self) -> dict[str, float]:
        """Waits for the last iteration and returns its metrics; reads that were started before are finished first.

        Raises:
            NonFiniteError: a number in the iteration is not finite.
        """
        while self.pending_reads:
            self.finish_read()
        self.start_read()
        return self.finish_read()

    @property
    def pending_reads(self) -> int:
        """The number of reads that were started and not finished, at most two."""
        return self._readout.pending

    def start_read(self) -> None:
        """Starts to read the metrics of the last iteration, asynchronously: the next one may be launched meanwhile."""
        self._readout.start()
        self._read_iterations.append(self.iteration)

    def finish_read(self) -> dict[str, float]:
        """Waits for the oldest read that was started, and returns its metrics; no other method synchronises.

        Raises:
            NonFiniteError: a number in the iteration of that read is not finite.
        """
        report, iteration = self._readout.take(), self._read_iterations.popleft()
        metrics: list[float] = []
        for role, policy in self.policies.items():
            sizes = len(policy.metric_names), len(policy.guard.fault_rows)
            values, fault_rows, report = report.split([*sizes, len(report) - sum(sizes)])
            agents, role_name = self.agents[role].per_env, "" if role == ALL else role
            policy.guard.raise_fault(fault_rows.view(torch.int64).tolist(), iteration, self.args.env, agents, role_name)
            metrics += values.tolist()
        metrics += report.tolist()
        return dict(zip(self.metric_names, metrics, strict=True))

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        policies = {role: policy.state_tensors() for role, policy in self.policies.items()}
        return {**self.rollout.state_tensors(), "policies": policies}

    def state_dict(self) -> dict[str, Any]:
        """Returns a checkpoint: copies of tensors, numbers and strings, from which training continues bit for bit."""
        generators = {role: policy.generator.get_state() for role, policy in self.policies.items()}
        args = {role: args_to_dict(policy.args) for role, policy in learning_policies(self.policies).items()}
        return {
            **clone_tensors(self.state_tensors()), "generators": generators, "env": self.env.state_dict(), "args": args,
            "iteration": self.iteration, "seconds": self.seconds, "format": FORMAT,
        }  # fmt: skip

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the state in which `state_dict` returned `checkpoint`.

        Raises:
            StateError: a checkpoint of another environment, of other policies, settings or shards.
        """
        require_same_shards(checkpoint, self.shard.count)
        self.load_shard(checkpoint)

    def load_shard(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the state of this shard in which `Learner.state_dict` returned `checkpoint`.

        Raises:
            StateError: a checkpoint of another environment, of other policies or settings.
        """
        require_same_policies(checkpoint, self.policies)
        generators = {role: torch.Generator(policy.generator.device) for role, policy in self.policies.items()}
        try:
            for role, generator in generators.items():
                generator.set_state(checkpoint["generators"][role].cpu())
        except RuntimeError as error:
            raise StateError(f"this checkpoint has no state of a random generator: {error}") from error
        tensors = self.state_tensors()
        copy_into(tensors, {name: checkpoint.get(name, {}) for name in tensors})
        for role, policy in self.policies.items():
            policy.generator.set_state(checkpoint["generators"][role].cpu())
        self.env.load_state_dict(checkpoint["env"])
        self.iteration, self.seconds = checkpoint["iteration"], checkpoint["seconds"]
