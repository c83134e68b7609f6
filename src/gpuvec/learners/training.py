"""The function that trains: it makes environments and learner, iterates, and returns what was learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium.vector import AutoresetMode

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import ordinary_tensors, torch_settings
from gpuvec.learners.environments import TrainingEnv, make_env
from gpuvec.learners.iterations import Ending, Iterations, OnIteration
from gpuvec.learners.learner import Learner, Opponent
from gpuvec.learners.own_loss import Metrics
from gpuvec.learners.policy_configs import (
    Bodies,
    Losses,
    PolicyConfig,
    PolicyConfigs,
    policy_factories,
    resolve_configs,
    shared_settings,
    with_network_names,
)
from gpuvec.learners.runs.records import CHECKPOINT_EVERY
from gpuvec.learners.runs.run_writer import record_run
from gpuvec.learners.shards.join import join_processes
from gpuvec.learners.shards.process_group import Processes, divide
from gpuvec.learners.shards.sharded_learner import ShardedLearner
from gpuvec.learners.shards.torchrun import Sharding, Sync, process_device
from gpuvec.learners.wait_reports import OnPhase, phase

ExactAt = Callable[[int], bool]
"""Called with k after iteration k was launched; returns whether `on_iteration` must get the learner in the state after it."""


class Result(NamedTuple):
    """The result of `train`."""

    policies: dict[str, PolicyConfig]  # resolved; {"all": ...} for one that all agents share
    networks: dict[str, Any]  # {role: `players.PolicyNetwork`} of those that have one
    history: list[dict[str, float]]  # the metrics of each iteration
    checkpoint: dict[str, Any]  # of the last iteration; a training that was stopped continues from it
    ended_by: Ending

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
    exact_at: ExactAt | None = None,
    shards: int | None = None,
    deterministic_shards: bool = True,
    sync: Sync = "gradient",
    opponent: Opponent | None = None,
    run_folder: Path | str | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    loss: Losses = None,
    metrics: Metrics | None = None,
) -> Result:
    """Trains until `args.total_steps`, until an evaluation reaches `args.target_return`, or until `on_iteration` returns True.

    After every `args.evaluate_every` iterations an evaluation, which changes nothing of the training and is not in `seconds`,
    gives the metrics `eval_return` and `eval_length`, which are nan in other iterations, see `evaluation.evaluate.Evaluator`.

    On a GPU the metrics of an iteration are read while the next one runs, unless it is evaluated or `exact_at` requires the
    state after it. Tensors that are created meanwhile, also by `body` and `on_iteration`, are float32 by default. Processes
    that torchrun started train together, each with a part of the environments, and each returns the result.

    Args:
        args: the settings, whose class determines the algorithm; for several policies {role: settings, or an opponent}.
        on_iteration: called with the learner and the metrics of each iteration, in their order. If it returns True, the
            training ends, as `ended_by` says; an iteration that was launched before is finished and reported. Of several
            processes the first one decides, at the next iteration of which `exact_at` is true.
        checkpoint: the state to continue from, of the same environment, algorithms and networks; other settings may differ.
        body: makes the network, see `networks.actor_critic` and, for DDPG, `networks.deterministic`; or {role: body}.
        on_phase: called with a text, such as "compiling gpuvec/CartPole-v1", when a wait begins, and "" when it ends.
        exact_at: called with k after iteration k was launched; returns whether `on_iteration` must get the learner in the state
            after it, and not one iteration ahead of the metrics. By default always if there is an `on_iteration`.
        shards: the number of parts of the environments that are computed by themselves. The results are equal bit for bit for
            any number of processes that divides it. None for 8 with torchrun, and for 1 without.
        deterministic_shards: whether parts are added in a fixed order; otherwise each process has one, which may be faster.
        sync: as in `Sharding`: what processes exchange, gradients in each update or means of copies after each iteration.
        opponent: plays one agent in each second environment, such as `players.win_or_block`, see `learner.Opponent`.
        run_folder: the folder to write, as `gpuvec train` does; None for none. A run in it continues, with the same settings,
            from its own newest checkpoint, and from `checkpoint` only while it has none.
        checkpoint_every: iterations between two checkpoints in it. SIGINT or SIGTERM ends the training after one more.
        loss, metrics: of the user, or {role: loss} and {name: metric}, see `own_loss`; they use no fused kernels.

    Raises:
        ValueError, TypeError, DeviceError, StateError, RuntimeError: settings, a body, a loss, a device, a checkpoint, a mode.
        ProcessesError, LostProcessError: processes that do not fit together, or that ended.
        OutOfMemoryError: the environment, or what the learner stores, does not fit into the memory that is free.
        NonFiniteError: a number in an iteration is not finite; `on_iteration` is not called for it.
    """
    configs, sharding = args if isinstance(args, Mapping) else {ALL: args}, Sharding(shards, deterministic_shards, sync)
    setting = shared_settings(configs).device
    with join_processes(setting) as joined:
        resolved = with_network_names(resolve_configs(configs, process_device(setting)), body)
        run = partial(_run, resolved, sharding, joined, on_phase, body, opponent, loss, metrics)
        if run_folder is None:
            return run(on_iteration, exact_at, checkpoint)
        objects = {"opponent": opponent, "loss": loss, "metrics": metrics or None}
        with record_run(
            Path(run_folder), resolved, objects, checkpoint, checkpoint_every, sharding, joined
        ) as (recorder, begun):  # fmt: skip

            def record(learner: Learner, metrics: dict[str, float]) -> bool | None:
                if (folder := recorder.open()) is not None:
                    folder.log(metrics)
                wants_stop = None if on_iteration is None else on_iteration(learner, metrics)
                recorder.save_if_due(learner, metrics)
                return wants_stop

            def is_exact(iteration: int) -> bool:
                is_due = recorder.is_checkpoint_due(iteration)  # all processes call it
                return is_due or (on_iteration is not None if exact_at is None else exact_at(iteration))

            result = run(record, is_exact, begun)
            if recorder.run is not None:
                end = {"iteration": result.checkpoint["iteration"], "ended_by": result.ended_by}
                recorder.save_last(result.checkpoint).finish(end)
            return result


def _run(
    configs: dict[str, PolicyConfig],
    sharding: Sharding,
    joined: Processes,
    on_phase: OnPhase | None,
    body: Bodies,
    opponent: Opponent | None,
    loss: Losses,
    metrics: Metrics | None,
    on_iteration: OnIteration | None,
    exact_at: ExactAt | None,
    checkpoint: Mapping[str, Any] | None,
) -> Result:
    """Trains, as `train` says, without a run folder."""
    processes, num_shards = divide(configs, sharding, 0 if checkpoint is None else checkpoint["iteration"], joined)
    shared = shared_settings(configs)
    with ExitStack() as stack:
        stack.enter_context(torch_settings(shared.device, shared.threads))
        with phase(on_phase, f"compiling {shared.env}"):
            learner = stack.enter_context(
                open_learner(configs, body, num_shards, processes, sharding.sync, opponent, loss, metrics)
            )
            if checkpoint is not None:
                learner.load_state_dict(checkpoint)
            iterations = stack.enter_context(closing(Iterations(shared, learner, on_iteration, exact_at, processes)))
        if shared.device != "cpu":
            with phase(on_phase, "capturing CUDA graphs"):
                learner.capture()
        elif learner.iteration < shared.iterations:
            # A CPU's kernels are compiled at their first use.
            with phase(on_phase, f"compiling the first iteration of {shared.env}"):
                learner.iterate()
            iterations.read()
        iterations.run()
        return make_result(configs, learner, iterations)


def make_result(configs: dict[str, PolicyConfig], learner: Learner, iterations: Iterations) -> Result:
    """Returns the result of a training that has ended.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        learner: the learner, which does not iterate again.
        iterations: its iterations.
    """
    networks = {role: policy.network for role, policy in learner.policies.items() if policy.network is not None}
    for network in networks.values():
        # The parameters of fused kernels are views that are not contiguous.
        for p in network.parameters():
            p.data = p.data.contiguous()
    return Result(configs, networks, iterations.history, learner.state_dict(), iterations.ended_by)


@contextmanager
def open_learner(
    configs: PolicyConfigs,
    body: Bodies = None,
    num_shards: int = 1,
    processes: Processes | None = None,
    sync: Sync = "gradient",
    opponent: Opponent | None = None,
    loss: Losses = None,
    metrics: Metrics | None = None,
) -> Iterator[Learner]:
    """Makes the environments of the shards of this process, and the learner that `train` iterates.

    At the end of the block the environments are closed and the graphs of the learner are freed.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        body: as in `train`.
        num_shards: the number of shards of all processes.
        processes: the processes of the training; None for this one alone.
        sync, opponent, loss, metrics: as in `train`.

    Yields:
        The learner.

    Raises:
        ValueError: policies, or bodies, that do not fit the environment or each other.
        OutOfMemoryError: the environment, or what the learner stores, does not fit into the memory that is free.
        LostProcessError: another process ended.
    """
    args, processes = shared_settings(configs), processes or Processes()
    if opponent is not None and num_shards > 1:
        raise ValueError(f"an opponent plays in trainings with one shard, not {num_shards}: pass shards=1.")
    with ExitStack() as stack:
        envs = [
            stack.enter_context(closing(make_training_env(args, (args.num_envs or 1) // num_shards)))
            for _ in range(num_shards // processes.size)
        ]
        factories = policy_factories(configs, envs[0], body, loss, metrics)
        if num_shards == 1:
            learner = Learner(args, envs[0], factories, opponent=opponent)
        else:
            learner = ShardedLearner(args, envs, factories, processes, sync)
        # NCCL closes a process group only when no graph contains its exchanges.
        stack.callback(learner.release_graphs)
        yield learner


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


@ordinary_tensors()
def make_learner(args: TrainingArgs | PolicyConfigs, env: TrainingEnv, body: Bodies = None) -> Learner:
    """Returns the learner of a training with one shard.

    Args:
        args: the settings, resolved; for several policies {role: settings, or an opponent}.
        env: the environment, in SAME_STEP mode with torch output.
        body: as in `train`.

    Raises:
        ValueError: policies, or bodies, that do not fit the environment or each other, or an environment in another mode.
    """
    kind = env.unwrapped.autoreset_mode.value, env.unwrapped.output
    if kind != (AutoresetMode.SAME_STEP.value, "torch"):
        raise ValueError(
            "a learner takes an environment with autoreset_mode='SameStep' and output='torch'; this one has "
            f"{kind[0]!r} and {kind[1]!r}: make it with these."
        )
    configs = args if isinstance(args, Mapping) else {ALL: args}
    return Learner(shared_settings(configs), env, policy_factories(configs, env, body))
