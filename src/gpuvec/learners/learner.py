"""A learner: policies that play together in one environment and learn, each by its own algorithm.

Its parts read and write only tensors that were there before. On a CPU they run as they stand; on a GPU each is one CUDA graph,
so an iteration is a few launches. The host reads the metrics once an iteration, by a copy that it may take one iteration later.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ALL, algorithm_name, args_to_dict
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.buffers.memory_check import require_memory, rollout_bytes
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.graph import capture
from gpuvec.learners.cuda_graphs.graph_state import clone_tensors, copy_into
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.networks.rectified import unchanging
from gpuvec.learners.policy import Policy, PolicyContext
from gpuvec.learners.runs.checkpoint_schema import FORMAT
from gpuvec.vector.spaces import space_of_one_agent

PolicyFactory = Callable[[PolicyContext], Policy]


class Learner:
    """Policies that learn in `env`, a SAME_STEP vector environment with torch output.

    Args:
        args: the settings of the training, in which all policies agree.
        env: the environment.
        policies: {role: makes its policy for a context}, or {"all": ...} for one that all agents share.

    Raises:
        OutOfMemoryError: the rollout, or what a policy stores, does not fit into the memory that is free.
    """

    def __init__(self, args: TrainingArgs, env: Any, policies: Mapping[str, PolicyFactory]) -> None:
        self.args, self.env, self.iteration = args, env, 0
        self.seconds = 0.0  # of training
        self.confirm = 0  # the iteration from which on an evaluation may confirm the target
        rollout = f"a rollout of {args.num_steps:,} steps of {env.num_envs:,} environments"
        require_memory(args.device, rollout_bytes(env, args.num_steps), rollout)
        self.rollout = EnvRollout(env, args.num_steps, args.device)
        agents, observation, action = self.rollout.agents, env.single_observation_space, env.single_action_space
        sees, does = (observation, action) if agents is None else (space_of_one_agent(observation), space_of_one_agent(action))
        self.agents = {role: AgentSubset(None if role == ALL else env.roles[role], agents) for role in policies}
        self.policies: dict[str, Policy] = {}
        for role, made in policies.items():
            part = self.agents[role]
            self.policies[role] = made(
                PolicyContext(sees, does, self.rollout.rows(part), part.each, self.rollout.truncations, role)
            )
        kind = torch.float32 if action.dtype.kind == "f" else torch.int64
        self.action = torch.zeros((env.num_envs, *action.shape), dtype=kind, device=args.device)  # of all agents
        self._readout = Readout(self._reported())
        self._being_read: deque[int] = deque()  # the iterations whose metrics are being read
        self.rollout.begin(args.seed)
        for policy in self.policies.values():
            policy.begin()
        self._play = self.policies[ALL].player(self.rollout) if ALL in self.policies else None
        self._run: Callable[[Callable[[], None]], Callable[[], None]] = lambda part: part

    @property
    def policy(self) -> Any:
        """That of all agents, where there is one for all."""
        return self.policies[ALL]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the metrics; those of a role's policy begin with the role."""
        return tuple(n if role == ALL else f"{role}/{n}" for role, policy in self.policies.items() for n in policy.names)

    @torch.no_grad()
    def collect(self) -> None:
        """T steps of each environment."""
        with unchanging(*(policy.network for policy in self.policies.values())):
            if self._play is not None:
                self._play()
            else:
                self.rollout.turn()
                for t in range(self.args.num_steps):
                    self.rollout.step(t, self.act(t))
                self.rollout.share()
            for policy in self.policies.values():
                policy.check_rollout_finite()

    def act(self, t: int) -> Tensor:
        """What all agents do in step t."""
        self.rollout.show(t)
        began = self.rollout.began[t]
        if ALL in self.policies:
            return self.policies[ALL].act(t, began).view_as(self.action)
        for role, policy in self.policies.items():
            self.agents[role].put(self.action, policy.act(t, began))
        return self.action

    def capture(self) -> None:
        """Records each part as a CUDA graph; what this runs leaves no trace in the learner or its environments."""
        saved = self.state_dict()
        generators = [policy.generator for policy in self.policies.values()]

        def version() -> int:
            return int(self.env.unwrapped.kernel_version)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # how Inductor tells of a choice it made
            functions = [*self._functions(), *([self._whole] if self._single_graph else [])]
            recorded = {part: capture(part, self.args.device, generators, version) for part in functions}
        self._run = recorded.__getitem__
        self.load_state_dict(saved)

    @property
    def parts(self) -> tuple[Callable[[], None], ...]:
        """What an iteration consists of: functions, or the graphs that were recorded of them."""
        return tuple(map(self._run, self._functions()))

    def _functions(self) -> list[Callable[[], None]]:
        return [self.collect, *(part for policy in self.policies.values() for part in policy.parts)]

    @property
    def _single_graph(self) -> bool:
        """Whether all parts of an iteration follow each other, whatever the iteration, so that one graph holds them."""
        return len(self.policies) == 1 and all(policy.single_graph for policy in self.policies.values())

    def _whole(self) -> None:
        for part in self._functions():
            part()

    def iterate(self) -> None:
        """One iteration; waits for nothing."""
        if self._single_graph:
            self.policy.prepare(self.iteration)
            self._run(self._whole)()
            self.iteration += 1
            return
        self._run(self.collect)()
        for policy in self.policies.values():
            for part in policy.prepare(self.iteration):
                self._run(part)()
        self.iteration += 1

    def _reported(self) -> Tensor:
        """One tensor into which all policies write their metrics and findings."""
        counts = [len(policy.names) + len(policy.guard.fault_rows) for policy in self.policies.values()]
        reported = torch.zeros(sum(counts), dtype=torch.float64, device=self.args.device)
        for policy, place in zip(self.policies.values(), reported.split(counts), strict=True):
            policy.report_into(place)
        return reported

    def read(self) -> dict[str, float]:
        """The metrics of the last iteration, after waiting for it. Reads that were started before are finished first.

        Raises:
            NonFiniteError: the iteration met a number that is not finite.
        """
        while self.reads_waiting:
            self.finish_read()
        self.start_read()
        return self.finish_read()

    @property
    def reads_waiting(self) -> int:
        """How many reads were started and not finished, at most two."""
        return self._readout.waiting

    def start_read(self) -> None:
        """Starts to read the metrics of the last iteration, without waiting for it: the next one may be launched behind."""
        self._readout.start()
        self._being_read.append(self.iteration)

    def finish_read(self) -> dict[str, float]:
        """The metrics of the oldest read that was started; the one place that waits for the device.

        Raises:
            NonFiniteError: the iteration of that read met a number that is not finite.
        """
        numbers, iteration = self._readout.take(), self._being_read.popleft()
        metrics: list[float] = []
        for role, policy in self.policies.items():
            own, found, numbers = numbers.split(
                [n := len(policy.names), k := len(policy.guard.fault_rows), len(numbers) - n - k]
            )
            findings = found.view(torch.int64).tolist()
            policy.guard.raise_fault(findings, iteration, self.args.env, self.agents[role].each, "" if role == ALL else role)
            metrics += own.tolist()
        return dict(zip(self.names, metrics, strict=True))

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        policies = {role: policy.tensors() for role, policy in self.policies.items()}
        return {"obs": self.rollout.obs[-1], "began": self.rollout.began[-1], "policies": policies}

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint: copies of tensors, numbers and strings, from which training goes on as if it had not stopped."""
        generators = {role: policy.generator.get_state() for role, policy in self.policies.items()}
        learning = {role: args_to_dict(p.args) for role, p in self.policies.items() if p.parts}
        return {
            **clone_tensors(self.tensors()), "generators": generators, "env": self.env.state_dict(), "args": learning,
            "iteration": self.iteration, "seconds": self.seconds, "confirm": self.confirm, "format": FORMAT,
        }  # fmt: skip

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called.

        Raises:
            StateError: a checkpoint of another environment, of other policies or settings.
        """
        if saved["policies"].keys() != self.policies.keys():
            found, wanted = ", ".join(saved["policies"]), ", ".join(self.policies)
            raise StateError(f"this checkpoint has policies for {found}, and this training for {wanted}.")
        learning = {role: policy for role, policy in self.policies.items() if policy.parts}
        if saved["args"].keys() != learning.keys():
            found, wanted = ", ".join(saved["args"]), ", ".join(learning)
            raise StateError(f"in this checkpoint {found} learned, and in this training {wanted} would.")
        for role, policy in learning.items():
            own, other = policy.args, saved["args"][role]
            if other["algorithm"] != algorithm_name(own):
                raise StateError(f"this checkpoint is of {other['algorithm']}; it cannot go on with {algorithm_name(own)}.")
            if other["env"] != own.env:
                raise StateError(f"this checkpoint is of {other['env']}; it cannot go on in {own.env}.")
            if saved["generators"][role].shape != policy.generator.get_state().shape:
                raise StateError(f"this checkpoint was written on {other['device']}; it cannot go on on {own.device}.")
        generators = {role: torch.Generator(p.generator.device) for role, p in self.policies.items()}
        try:
            for role, generator in generators.items():
                generator.set_state(saved["generators"][role].cpu())
        except RuntimeError as error:
            raise StateError(f"this checkpoint holds no state of a random generator: {error}") from error
        own_tensors = self.tensors()
        copy_into(own_tensors, {name: saved.get(name, {}) for name in own_tensors})
        for role, policy in self.policies.items():
            policy.generator.set_state(saved["generators"][role].cpu())
        self.env.load_state_dict(saved["env"])
        self.iteration, self.seconds, self.confirm = saved["iteration"], saved["seconds"], saved["confirm"]
