"""The loop of a training: iterations until there were enough steps, or until the target is reached and confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import torch

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.algorithms import ALL, policy_class, policy_factory
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.environments import TrainingEnv, has_role_spaces, is_multi_agent, make_env
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.learner import Learner, PolicyFactory
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.opponents import Frozen, FrozenPolicy, Scripted, ScriptedPolicy
from gpuvec.learners.policy import Policy, PolicyContext
from gpuvec.learners.seeds import CONFIRMATION, stream_seed
from gpuvec.learners.shards.join import join_processes
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.sharded_learner import ShardedLearner
from gpuvec.learners.shards.sharding import divide
from gpuvec.learners.shards.torchrun import process_device
from gpuvec.learners.wait_reports import OnPhase, phase

ITERATIONS_TO_CONFIRM = 8  # between two evaluations that may confirm the target
SHARED_SETTINGS = (
    "env", "params", "backend", "seed", "device", "num_envs", "num_steps", "total_steps", "target_return", "threads"
)  # fmt: skip
"""Settings that are equal for all policies of a training."""

PolicyConfig = TrainingArgs | Frozen | Scripted
"""The settings of a policy that learns, whose class determines the algorithm, or a policy that does not learn."""
PolicyConfigs = Mapping[str, PolicyConfig]
"""{role: policy}."""
Bodies = Body | Mapping[str, Body] | None
"""The function that makes the network of each policy, or {role: function}."""
OnIteration = Callable[[Learner, dict[str, float]], None]
"""Called with the learner and the metrics of an iteration."""


class Result(NamedTuple):
    """The result of `train`."""

    policies: dict[str, PolicyConfig]  # resolved; {"all": ...} for one that all agents share
    networks: dict[str, Any]  # {role: `players.PolicyNetwork`} of those that have one
    history: list[dict[str, float]]  # the metrics of each iteration
    checkpoint: dict[str, Any]

    @property
    def args(self) -> TrainingArgs:
        """The settings of the one policy."""
        (args,) = self.policies.values()
        assert isinstance(args, TrainingArgs)
        return args

    @property
    def network(self) -> Any:
        """The network of the one policy."""
        (network,) = self.networks.values()
        return network


def train(
    args: TrainingArgs | PolicyConfigs,
    on_iteration: OnIteration | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    body: Bodies = None,
    on_phase: OnPhase | None = None,
    exact_at: Callable[[int], bool] | None = None,
    shards: int | None = None,
    deterministic_shards: bool = True,
) -> Result:
    """Trains until `args.total_steps`, or until `args.target_return` is reached.

    On a GPU the metrics of an iteration are read while the next one runs, unless `target_return` is set or `exact_at` requires
    the state after that iteration. The results are the same.

    Processes that torchrun started train together, each with a part of the environments, and each returns the result.

    Args:
        args: the settings, whose class determines the algorithm; for several policies {role: settings, or an opponent}.
        on_iteration: called with the learner and the metrics of each iteration, in their order.
        checkpoint: the state to continue from, of the same environment, algorithms and networks; other settings may differ.
        body: makes the network, see `networks.actor_critic`, and for DDPG `networks.deterministic`; None for the default. With
            several policies {role: body}.
        on_phase: called with a text, such as "compiling gpuvec/CartPole-v1", when the training begins to wait, and with "" when
            the wait ends.
        exact_at: called with k after iteration k was launched; returns whether `on_iteration` must get the learner in the state
            after that iteration, for example for a checkpoint. Otherwise the learner may be one iteration ahead of the metrics,
            and `learner.iteration` is metrics["iteration"] + 1. By default each iteration is exact if there is an
            `on_iteration`.
        shards: the number of parts of the environments that are computed by themselves. The results are equal bit for bit for
            any number of processes that divides it. None for 8 with torchrun, and for 1 without.
        deterministic_shards: whether the parts are added in a fixed order. Otherwise each process has one part, and the order
            is that of the library, which is faster with large networks.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a body, a device or a checkpoint that do not fit.
        ProcessesError, LostProcessError: processes that do not fit together, or that ended.
        OutOfMemoryError: the environment, or what the learner stores, does not fit into the memory that is free.
        NonFiniteError: a number in an iteration is not finite; `on_iteration` is not called for it.
    """
    configs = args if isinstance(args, Mapping) else {ALL: args}
    setting = shared_settings(configs).device
    with join_processes(setting) as joined, ExitStack() as stack:
        device = process_device(setting)
        configs = {role: each.resolved(device) if isinstance(each, TrainingArgs) else each for role, each in configs.items()}
        processes, num_shards = divide(configs, shards, deterministic_shards, joined)
        shared = shared_settings(configs)
        stack.enter_context(torch_settings(device, shared.threads))
        with phase(on_phase, f"compiling {shared.env}"):
            envs = [stack.enter_context(env) for env in _make_training_envs(shared, num_shards, processes)]
            make = partial(make_learner, configs, envs[0], body)
            learner = make() if num_shards == 1 else _make_sharded_learner(configs, envs, body, processes)
            if checkpoint is not None:
                learner.load_state_dict(checkpoint)
        history = _iterate(shared, learner, Iterations(shared, learner, on_iteration, exact_at, processes), on_phase)
        return _make_result(configs, learner, history)


def _make_result(configs: dict[str, PolicyConfig], learner: Learner, history: list[dict[str, float]]) -> Result:
    """Returns the result of a training that has ended."""
    networks = {role: policy.network for role, policy in learner.policies.items() if policy.network is not None}
    for network in networks.values():
        # The parameters of fused kernels are views that are not contiguous.
        for p in network.parameters():
            p.data = p.data.contiguous()
    return Result(configs, networks, history, learner.state_dict())


def _iterate(args: TrainingArgs, learner: Learner, iterations: Iterations, on_phase: OnPhase | None) -> list[dict[str, float]]:
    """Captures the stages on a GPU, iterates to the end of the training, and returns the metrics of each iteration."""
    if args.device != "cpu":
        with phase(on_phase, "capturing CUDA graphs"):
            learner.capture()
    elif learner.iteration < args.iterations:
        # A CPU's kernels are compiled at their first use.
        with phase(on_phase, f"compiling {args.env}"):
            learner.iterate()
        iterations.read()
    return iterations.run()


def _make_training_envs(args: TrainingArgs, num_shards: int, processes: Processes) -> Iterator[closing[TrainingEnv]]:
    """Yields the environment of each shard of this process."""
    for _ in range(num_shards // processes.size):
        yield closing(make_training_env(args, (args.num_envs or 1) // num_shards))


def make_training_env(args: TrainingArgs, num_envs: int) -> TrainingEnv:
    """Returns an environment that `train` steps.

    Args:
        args: the settings, resolved.
        num_envs: E, of a shard.
    """
    return make_env(
        args.env, num_envs, args.params,
        device=args.device, output="torch", autoreset_mode="SameStep", buffers=1, backend=args.backend,
    )  # fmt: skip


class Iterations:
    """The iterations of a training, and their reports.

    Args:
        args: the settings, resolved.
        learner: the learner.
        on_iteration, exact_at: as in `train`.
        processes: the processes of the training; None for this one alone.
    """

    def __init__(
        self,
        args: TrainingArgs,
        learner: Learner,
        on_iteration: OnIteration | None,
        exact_at: Callable[[int], bool] | None,
        processes: Processes | None = None,
    ) -> None:
        self._processes = processes or Processes()
        self.args, self.learner, self.on_iteration = args, learner, on_iteration
        self.exact_at = exact_at or (lambda iteration: on_iteration is not None)
        self.history: list[dict[str, float]] = []
        self.is_solved = False
        self._device = parse_device(args.device)
        self._last_read_time = time.perf_counter()
        self._reads_late = reads_late(args.device) and args.target_return is None

    def run(self) -> list[dict[str, float]]:
        """Iterates until the end of the training, and returns the metrics of each iteration."""
        while self.learner.iteration < self.args.iterations and not self.is_solved:
            self.learner.iterate()
            self.read()
        return self.history

    def read(self) -> None:
        """Starts to read the iteration that was launched last, and reports those whose reads are finished.

        These are the one before it, and the iteration itself if it is the last one or has to be exact.
        """
        self.learner.start_read()
        launched = self.learner.iteration
        is_exact = not self._reads_late or launched >= self.args.iterations or self.exact_at(launched)
        while self.learner.pending_reads > (0 if is_exact else 1):
            self._report(self.learner.finish_read())

    def _report(self, metrics: dict[str, float]) -> None:
        args, learner = self.args, self.learner
        now, iteration = time.perf_counter(), learner.iteration - learner.pending_reads
        seconds, self._last_read_time = now - self._last_read_time, now
        learner.seconds += seconds
        progress = {"iteration": iteration, "steps": iteration * args.steps_per_iteration, "seconds": learner.seconds}
        progress |= {"steps_per_second": args.steps_per_iteration / seconds, "gpu_memory": float(self._reserved_bytes())}
        self.history.append({**progress, **metrics})
        target = args.target_return
        if target is not None and metrics["last_return"] >= target and iteration >= learner.next_confirmation:
            self.is_solved = self._processes.decide(lambda: self._evaluated_return() >= target)
            learner.next_confirmation = iteration + ITERATIONS_TO_CONFIRM
        if self.on_iteration is not None:
            self.on_iteration(learner, self.history[-1])

    def _evaluated_return(self) -> float:
        """Returns the mean return of the present policy, since the episodes of a rollout began under older policies."""
        args = self.args
        seed = stream_seed(args.seed, CONFIRMATION)
        returns = evaluate(self.learner.policy.network, args.env, seed=seed, device=args.device, params=args.params)
        return float(returns.mean())

    def _reserved_bytes(self) -> int:
        """Returns the bytes of the GPU that this process has reserved for arrays."""
        device = self._device
        return 0 if device.kind == "cpu" else torch.cuda.memory_reserved(device.ordinal) + device.pooled_bytes()


def reads_late(device: str) -> bool:
    """Returns whether metrics are read while the next iteration runs; on a CPU iterations are synchronous.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    return device != "cpu"


def make_learner(args: TrainingArgs | PolicyConfigs, env: TrainingEnv, body: Bodies = None) -> Learner:
    """Returns the learner that `train` iterates.

    Args:
        args: the settings, resolved; for several policies {role: settings, or an opponent}.
        env: the environment, in SAME_STEP mode with torch output.
        body: as in `train`.

    Raises:
        ValueError: policies, or bodies, that do not fit the environment or each other.
    """
    configs = args if isinstance(args, Mapping) else {ALL: args}
    return Learner(shared_settings(configs), env, _policy_factories(configs, env, body))


def _make_sharded_learner(
    configs: PolicyConfigs, envs: Sequence[TrainingEnv], body: Bodies, processes: Processes
) -> ShardedLearner:
    """Returns the learner that `train` iterates if there are several shards; `envs` are those of this process."""
    return ShardedLearner(shared_settings(configs), envs, _policy_factories(configs, envs[0], body), processes)


def _policy_factories(configs: PolicyConfigs, env: TrainingEnv, body: Bodies) -> dict[str, PolicyFactory]:
    """Returns the function that makes the policy of each role, after checks that they fit the environment and each other."""
    bodies = body if isinstance(body, Mapping) else {} if body is None else dict.fromkeys(configs, body)
    for role in bodies:
        if not isinstance(configs.get(role), TrainingArgs):
            raise ValueError(
                f"there is a body for {role}, but no settings of an algorithm: only a policy that learns takes one."
            )
    require_roles(configs, env)
    shared = shared_settings(configs)
    return {role: make_policy(config, shared, bodies.get(role)) for role, config in configs.items()}


def shared_settings(configs: PolicyConfigs) -> TrainingArgs:
    """Returns the settings of one policy that learns, after a check that the `SHARED_SETTINGS` of the others are equal.

    Args:
        configs: {role: policy}.

    Raises:
        TypeError: a value is not a policy.
        ValueError: no policy learns, or settings differ.
    """
    for role, config in configs.items():
        if not isinstance(config, TrainingArgs | Frozen | Scripted):
            raise TypeError(
                f"the policy of {role} is a {type(config).__name__}; it must be the settings of an algorithm, or Frozen(...) "
                "or Scripted(...), one for each role: {role: policy}."
            )
    learning = [(role, config) for role, config in configs.items() if isinstance(config, TrainingArgs)]
    if not learning:
        raise ValueError(
            f"no policy learns: of {', '.join(configs) or 'no roles'} at least one must have the settings of an algorithm."
        )
    first_role, first = learning[0]
    for role, args in learning[1:]:
        for name in SHARED_SETTINGS:
            if getattr(args, name) != getattr(first, name):
                values = f"{getattr(first, name)!r} for {first_role} and {getattr(args, name)!r} for {role}"
                raise ValueError(f"all policies of a training must have the same {name}: it is {values}.")
    if len(configs) > 1 and first.target_return is not None:
        raise ValueError("target_return is for one policy; with several give total_steps.")
    return first


def require_roles(configs: PolicyConfigs, env: TrainingEnv) -> None:
    """Raises ValueError unless `configs` has one policy for all agents of `env`, or one for each role."""
    if set(configs) == {ALL} and has_role_spaces(env):
        policies = ", ".join(f"{role!r}: ..." for role in env.roles)
        raise ValueError(
            "the roles of this environment have spaces of their own, so one policy cannot act for all: give one for each, "
            f"{{{policies}}}."
        )
    if set(configs) == {ALL}:
        return
    roles = env.roles if is_multi_agent(env) else {}
    if set(configs) != set(roles):
        raise ValueError(
            f"there are policies for {', '.join(configs)}; the environment has {', '.join(roles) or 'no roles'}: give one for "
            "each, or one alone for all."
        )


def make_policy(config: PolicyConfig, shared: TrainingArgs, body: Body | None) -> PolicyFactory:
    """Returns the function that makes a policy for a context.

    Args:
        config: the policy.
        shared: the settings of the training, resolved.
        body: makes the network of a policy that learns; None for the default.
    """
    if isinstance(config, Frozen):
        return partial(FrozenPolicy, config, shared)
    if isinstance(config, Scripted):
        return partial(ScriptedPolicy, config, shared)

    def make_learning_policy(context: PolicyContext) -> Policy:
        spaces = context.observation_space, context.action_space
        network = policy_class(config).make_network(config, *spaces, body, context.role, context.critic_space)
        policy: Policy = policy_factory(config)(config, context, network)
        return policy

    return make_learning_policy
