"""A LightningModule that trains by a learner of gpuvec; it needs the extra `lightning`::

    from lightning.pytorch import Trainer
    from gpuvec.learners.lightning import LearnerModule

    module = LearnerModule(PPOArgs(env="gpuvec/CartPole-v1"))
    Trainer(max_epochs=-1).fit(module)
    module.result.network

A training step is an iteration of the learner: a rollout of all environments, estimates, and the update of the algorithm.
Lightning runs its callbacks, loggers and checkpoints around it, and starts the processes of `devices=N`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import CheckpointError, DeviceError, LostProcessError, MissingExtraError, StateError, install_command
from gpuvec.learners.algorithms import ALL, args_to_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.iterations import Iterations
from gpuvec.learners.learner import Learner
from gpuvec.learners.policy_configs import Bodies, PolicyConfigs, resolve_configs, shared_settings
from gpuvec.learners.runs.checkpoint import learning_policies, load_tensors, require_shards
from gpuvec.learners.shards.join import join_default_group
from gpuvec.learners.shards.process_group import Processes, divide
from gpuvec.learners.shards.torchrun import DEFAULT_SHARDS, Sharding
from gpuvec.learners.training import Result, make_result, open_learner

try:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, LearningRateMonitor, StochasticWeightAveraging
    from lightning.pytorch.plugins import Precision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
except ModuleNotFoundError as error:
    raise MissingExtraError(f"this needs PyTorch Lightning ({error}): {install_command('lightning')}") from error

CHECKPOINT_KEY = "gpuvec"
"""The entry of a Lightning checkpoint that has the checkpoint of the learner."""
REFUSED_CALLBACKS = (BatchSizeFinder, LearningRateFinder, LearningRateMonitor, StochasticWeightAveraging)


@dataclass(eq=False)
class EpochIterations:
    """The data of an epoch: the number of each iteration in it. The samples themselves come from the environments.

    Its state is empty, because Lightning counts how much of an epoch is done when it resumes one.
    """

    length: int

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing with the `state` of an epoch, which is empty."""


class IterationOptimizer(optim.Optimizer):
    """An optimiser whose step is an iteration of a learner, so that Lightning counts iterations as steps.

    The optimisers of the policies are in the learner, and so is their state.
    """

    def __init__(self, learner: Learner) -> None:
        policies = learning_policies(learner.policies).values()
        groups = [{"params": list(policy.network.parameters())} for policy in policies if policy.network is not None]
        super().__init__(groups, {})
        self._learner = learner

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Calls the function `closure`, in which Lightning calls its hooks, and runs an iteration; returns its result."""
        result = None if closure is None else closure()
        self._learner.iterate()
        return result

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing with `state_dict`, which is empty."""


class LearnerModule(LightningModule):  # type: ignore[misc]  # the type checker does not see the library
    """A training as a LightningModule, with manual optimisation.

    `Trainer.fit` gives the same weights as `gpuvec.learners.training.train`. It ends after the iterations of the settings, when
    `target_return` is reached, or when the Trainer stops, whichever is first. Loggers get the metrics of each
    `log_every_n_steps`-th iteration, and callbacks those of all, in `trainer.callback_metrics`. On a GPU these are read while
    the next iteration runs, except in the last one of an epoch: callbacks after other iterations see the metrics of the one
    before. A checkpoint has the complete state of the learner, also of several processes, and continues bit for bit.

    Processes that Lightning or torchrun started train together, as those of `gpuvec train` do.

    Args:
        args: the settings, whose class determines the algorithm; for several policies {role: settings, or an opponent}.
            `device` is that of the Trainer.
        body: makes the network, as in `gpuvec.learners.training.train`.
        iterations_per_epoch: the number of iterations that Lightning counts as an epoch.
        shards: as in `gpuvec.learners.training.train`: None for 8 with several processes, and for 1 without.
        deterministic_shards: as in `gpuvec.learners.training.train`.

    Raises:
        ValueError, TypeError: settings that do not fit together.
    """

    def __init__(
        self,
        args: TrainingArgs | PolicyConfigs,
        body: Bodies = None,
        iterations_per_epoch: int = 16,
        shards: int | None = None,
        deterministic_shards: bool = True,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._configs: PolicyConfigs = args if isinstance(args, Mapping) else {ALL: args}
        self._resolved, self._shared, self._processes = self._configs, shared_settings(self._configs), Processes()
        if iterations_per_epoch < 1:
            raise ValueError(f"iterations_per_epoch must be at least 1, got {iterations_per_epoch}.")
        self._body, self._shards, self._deterministic = body, shards, deterministic_shards
        self.iterations_per_epoch = iterations_per_epoch
        # Names of several policies begin with the role.
        hyperparameters = {
            name if role == ALL else f"{role}/{name}": list(value) if isinstance(value, tuple) else value
            for role, config in self._configs.items()
            if isinstance(config, TrainingArgs)
            for name, value in args_to_dict(config).items()
        }
        self.save_hyperparameters(hyperparameters)
        self._stack = ExitStack()
        self._learner: Learner | None = None
        self._iterations: Iterations | None = None
        self._result: Result | None = None

    @property
    def learner(self) -> Learner:
        """The learner, from `setup` to the end of `Trainer.fit`.

        Raises:
            StateError: there is none now.
        """
        if self._learner is None:
            raise StateError(
                "this module has no learner outside of Trainer.fit: to continue from a checkpoint, give "
                "Trainer.fit(module, ckpt_path=...); `lightning_checkpoint(path)` reads one."
            )
        return self._learner

    @property
    def result(self) -> Result:
        """The result of the last `Trainer.fit`, as `train` returns it. Lightning has moved the networks to the CPU.

        Raises:
            StateError: there was none, or it failed.
        """
        if self._result is None:
            raise StateError("this module has no result yet: it is there when Trainer.fit has ended.")
        return self._result

    def setup(self, stage: str) -> None:
        """Makes the environments and the learner.

        Args:
            stage: what the Trainer runs; the learner is made for "fit".

        Raises:
            ValueError, TypeError, DeviceError: settings that do not fit, or of the Trainer that a learner does not support.
            ProcessesError, LostProcessError: processes that do not fit together, or that ended.
            OutOfMemoryError: the environment, or what the learner stores, does not fit into the memory that is free.
        """
        self.teardown(stage)
        if stage != "fit":
            return
        trainer = self.trainer
        require_supported(self, trainer)
        device = training_device(shared_settings(self._configs).device, trainer.strategy.root_device)
        resolved = resolve_configs(self._configs, device)
        self._resolved, self._shared = resolved, shared_settings(resolved)
        with ExitStack() as stack, self._torch_settings():
            joined = stack.enter_context(join_default_group(device)) if trainer.world_size > 1 else Processes()
            default = 1 if joined.size == 1 else DEFAULT_SHARDS if self._deterministic else joined.size
            shards = default if self._shards is None else self._shards
            self._processes, num_shards = divide(resolved, Sharding(shards, self._deterministic), 0, joined)
            self._learner = stack.enter_context(open_learner(resolved, self._body, num_shards, self._processes))
            self._stack = stack.pop_all()
        policies = learning_policies(self._learner.policies)
        # Lightning moves, counts and saves the networks as parts of the module; the learner has the same objects.
        self.networks = nn.ModuleDict({role: policy.network for role, policy in policies.items() if policy.network is not None})
        self._result = None

    def train_dataloader(self) -> EpochIterations:
        """Returns the numbers of the iterations of an epoch."""
        return EpochIterations(self.iterations_per_epoch)

    def configure_optimizers(self) -> IterationOptimizer:
        """Returns the optimiser whose step is an iteration."""
        return IterationOptimizer(self.learner)

    def on_fit_start(self) -> None:
        """Checks that the optimiser is that of `configure_optimizers`.

        Raises:
            ValueError: there are others.
        """
        optimizers, schedulers = self.trainer.optimizers, [each.scheduler for each in self.trainer.lr_scheduler_configs]
        if [type(optimizer) for optimizer in optimizers] != [IterationOptimizer] or schedulers:
            names = ", ".join(type(each).__name__ for each in (*optimizers, *schedulers))
            raise ValueError(
                f"configure_optimizers returned {names or 'nothing'}: the algorithms have optimisers of their own, whose "
                "settings are those of the learner, so do not override it."
            )

    def on_train_start(self) -> None:
        """Captures the stages of the learner in CUDA graphs, if it is on a GPU.

        Raises:
            ValueError: the Trainer got data.
            StateError: the Trainer has counted other steps than the learner, because it was used before.
        """
        if not isinstance(self.trainer.train_dataloader, EpochIterations):
            raise ValueError(
                "a learner takes its samples from its environments: leave out train_dataloaders and the datamodule."
            )
        learner = self.learner
        if self.trainer.global_step != learner.iteration:
            raise StateError(
                f"the Trainer has counted {self.trainer.global_step} steps and the learner {learner.iteration} iterations: "
                "give a new Trainer, or Trainer.fit(module, ckpt_path=...) to continue."
            )
        with self._torch_settings():
            if self._shared.device != "cpu":
                learner.capture()
            self._iterations = Iterations(self._shared, learner, self._publish, self._is_exact, self._processes)
        self._stack.callback(self._iterations.close)
        self._stop_at_end()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Runs an iteration of the learner, and passes on the metrics that are read.

        Args:
            batch: the number of the iteration in the epoch.
            batch_idx: the same.

        Raises:
            NonFiniteError: a number is not finite, in this iteration or, on a GPU, in the one before it.
            LostProcessError: another process ended.
        """
        try:
            with self._torch_settings():
                self.optimizers().step()
                self._running.read()
        except LostProcessError:
            self._processes.groups.abort()
            raise
        self._stop_at_end()

    def on_train_end(self) -> None:
        """Reads the metrics that are not read yet, and makes the result."""
        self._running.report_pending()
        self._result = make_result(dict(self._resolved), self.learner, self._running)

    def teardown(self, stage: str) -> None:
        """Closes the environments. After an exception Lightning does not call this; the next `Trainer.fit` closes them then.

        Args:
            stage: what the Trainer has run.
        """
        self._learner = self._iterations = None
        self._stack.close()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the state of the learner; all processes call it.

        Args:
            checkpoint: what Lightning saves.

        Raises:
            NonFiniteError: a number in the last iteration is not finite.
            LostProcessError: another process ended.
        """
        if self._iterations is not None:
            self._iterations.report_pending()
        has_ended = self._learner is None and self._result is not None  # `Trainer.fit`
        checkpoint[CHECKPOINT_KEY] = self.result.checkpoint if has_ended else self.learner.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the learner.

        Args:
            checkpoint: what Lightning has loaded.

        Raises:
            CheckpointError: it is not the checkpoint of a learner.
            StateError: it is of another environment, or of other policies, settings or shards.
        """
        self.learner.load_state_dict(_learner_checkpoint(checkpoint))

    def _torch_settings(self) -> AbstractContextManager[None]:
        """PyTorch's settings for the learner, which are not those of the user's callbacks."""
        return torch_settings(self._shared.device, self._shared.threads)

    @property
    def _running(self) -> Iterations:
        assert self._iterations is not None, "the Trainer calls `on_train_start` first"
        return self._iterations

    def _is_exact(self, iteration: int) -> bool:
        """Returns whether callbacks need the metrics of `iteration` before the next one, so that the host waits for it."""
        return bool(self.trainer.is_last_batch or iteration == self.trainer.max_steps)

    def _publish(self, learner: Learner, metrics: dict[str, float]) -> None:
        """Passes the finite metrics of an iteration to loggers, callbacks and the progress bar, as `LearningRateMonitor` does.

        `LightningModule.log` would take longer for them than a GPU for an iteration, and log them in the step in which they are
        read.
        """
        trainer, iteration = self.trainer, int(metrics["iteration"])
        values = {name: value for name, value in metrics.items() if math.isfinite(value)}
        trainer.callback_metrics.update({name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})
        shown = {name: value for name, value in values.items() if name.rpartition("/")[2] in ("last_return", "eval_return")}
        trainer.progress_bar_metrics.update(shown)
        interval = trainer.log_every_n_steps
        if not interval or (iteration % interval and iteration < self._shared.iterations):
            return
        trainer.logged_metrics.update(values)
        for logger in trainer.loggers:
            # Lightning counts the steps of loggers from 0.
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=iteration - 1)
            logger.save()

    def _stop_at_end(self) -> None:
        """Stops the Trainer after the last iteration, or when the target is reached."""
        if self.learner.iteration >= self._shared.iterations or self._running.is_solved:
            self.trainer.should_stop = True


def lightning_checkpoint(path: Path | str) -> dict[str, Any]:
    """Reads the learner's checkpoint from a checkpoint file of Lightning. Nothing in the file is executed.

    `train` continues from it, and `gpuvec.learners.runs.checkpoint.save` writes it to a folder, from which `gpuvec.load_policy`
    and the command line read the policy.

    Args:
        path: the path of the file, which `Trainer` wrote while it trained a `LearnerModule`.

    Returns:
        The checkpoint as `Learner.state_dict` returned it, with tensors on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a checkpoint of a learner, or is damaged.
    """
    with Path(path).open("rb") as file:
        try:
            return _learner_checkpoint(load_tensors(file))
        except CheckpointError as error:
            raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error


def _learner_checkpoint(checkpoint: Any) -> dict[str, Any]:
    """The checkpoint of the learner in what Lightning has loaded, after a check of its content."""
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise CheckpointError("Lightning wrote it for another module: it contains no learner of gpuvec.")
    return require_shards(checkpoint[CHECKPOINT_KEY])


def require_supported(module: Any, trainer: Any) -> None:
    """Checks the settings of a module and a trainer that a learner would otherwise ignore or break.

    Args:
        module: the LightningModule.
        trainer: the Trainer, which need not have made its optimisers.

    Raises:
        ValueError: a setting that a learner does not support. The message says what to do.
    """
    strategy = trainer.strategy
    refused = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, REFUSED_CALLBACKS)]
    has_known_strategy = type(strategy) in (SingleDeviceStrategy, DDPStrategy)  # subclasses, such as DeepSpeed's, divide models
    problems = [
        (module.automatic_optimization, "automatic_optimization is True, and the algorithms of gpuvec compute their gradients "
         "themselves: leave it False."),
        (not has_known_strategy, f"the strategy is {type(strategy).__name__}, and a learner has all of its network in each "
         "process: give Trainer(strategy='auto') or 'ddp'."),
        (isinstance(strategy.launcher, _MultiProcessingLauncher), "the strategy starts its processes by spawn or fork, which "
         "lose the learner: give strategy='ddp', or start the processes with torchrun."),
        (type(trainer.precision_plugin) is not Precision, f"the Trainer's precision is {trainer.precision}, and that of a "
         "learner is one of its settings: give Trainer(precision='32-true'), and PPOArgs(precision='bf16') for bfloat16."),
        (refused, f"the callback {', '.join(refused)} reads or sets what a learner does not have in Lightning's optimiser: "
         "learning rates and batch sizes are settings, such as learning_rate_table."),
    ]  # fmt: skip
    for is_refused, problem in problems:
        if is_refused:
            raise ValueError(problem)


def training_device(setting: str, root_device: torch.device) -> str:
    """Returns the device of this process, "cpu" or "cuda:<index>", which the trainer determines.

    Args:
        setting: of the learner: "auto", "cpu", "cuda" or "cuda:1".
        root_device: the device of the trainer's strategy.

    Raises:
        DeviceError: a device that gpuvec does not have, or one that contradicts the setting.
    """
    if root_device.type not in ("cpu", "cuda"):
        raise DeviceError(f"the Trainer's accelerator is {root_device.type}: give Trainer(accelerator='gpu') or 'cpu'.")
    if setting not in ("auto", root_device.type, str(root_device)):
        raise DeviceError(
            f"the learner's device is {setting}, and the Trainer's is {root_device}: leave device='auto' and choose it by "
            "Trainer(accelerator=..., devices=...)."
        )
    return str(parse_device(str(root_device)))
