"""Checks of the settings of a Lightning `Trainer` that a learner would otherwise ignore or break."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, LearningRateMonitor, StochasticWeightAveraging
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import DeviceError
from gpuvec.learners.lightning.iteration_steps import EpochIterations, IterationOptimizer

REFUSED_CALLBACKS = (BatchSizeFinder, LearningRateFinder, LearningRateMonitor, StochasticWeightAveraging)


def require_supported(module: Any, trainer: Any) -> None:
    """Checks the settings of a module and a trainer that are known before the optimisers are made.

    Args:
        module: the LightningModule.
        trainer: the Trainer.

    Raises:
        ValueError: a setting that a learner does not support. The message says what to do.
    """
    if module.automatic_optimization:
        raise ValueError(
            "automatic_optimization is True, and the algorithms of gpuvec compute their gradients themselves: leave it False."
        )
    strategy = trainer.strategy
    # A subclass, such as DeepSpeed's, divides the model or its optimiser.
    if type(strategy) not in (SingleDeviceStrategy, DDPStrategy):
        raise ValueError(
            f"the strategy is {type(strategy).__name__}, and a learner has all of its network in each process: give "
            "Trainer(strategy='auto') or 'ddp'."
        )
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise ValueError(
            "the strategy starts its processes by spawn or fork, which lose the learner: give strategy='ddp', or start the "
            "processes with torchrun."
        )
    if type(trainer.precision_plugin) is not Precision:
        raise ValueError(
            f"the Trainer's precision is {trainer.precision}, and that of a learner is one of its settings: give "
            "Trainer(precision='32-true'), and PPOArgs(precision='bf16') for bfloat16."
        )
    for callback in trainer.callbacks:
        if isinstance(callback, REFUSED_CALLBACKS):
            raise ValueError(
                f"the callback {type(callback).__name__} reads or sets what a learner does not have in Lightning's optimiser: "
                "learning rates and batch sizes are settings, such as learning_rate_table."
            )


def require_own_steps(trainer: Any) -> None:
    """Checks that data and optimiser are those of the learner's module.

    Args:
        trainer: the Trainer, which has made its optimisers.

    Raises:
        ValueError: they are others. The message says what to do.
    """
    optimizers = trainer.optimizers
    if [type(optimizer) for optimizer in optimizers] != [IterationOptimizer] or trainer.lr_scheduler_configs:
        names = [type(each).__name__ for each in (*optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs))]
        raise ValueError(
            f"configure_optimizers returned {', '.join(names) or 'nothing'}: the algorithms have optimisers of their own, "
            "whose settings are those of the learner, so do not override it."
        )


def require_own_data(trainer: Any) -> None:
    """Checks that the trainer got no data of its user.

    Args:
        trainer: the Trainer, which has set up its data.

    Raises:
        ValueError: it has other data.
    """
    if not isinstance(trainer.train_dataloader, EpochIterations):
        raise ValueError("a learner takes its samples from its environments: leave out train_dataloaders and the datamodule.")


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
