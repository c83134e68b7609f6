"""Trainings in PyTorch Lightning: the bits of `train`, callbacks, loggers, checkpoints, processes, and refused settings."""

from __future__ import annotations

import csv
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning", reason="needs PyTorch Lightning: extra `lightning`")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from tests.learners.test_shards import differences
from tests.support.process_trainings import PPO, SHARDS, TRAININGS, numbers_of

from gpuvec.errors import CheckpointError, DeviceError, MissingExtraError, StateError
from gpuvec.learners.lightning import LearnerModule, lightning_checkpoint, require_supported, training_device
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import train

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # Lightning's use of torch 2.13
    # Lightning supposes that a checkpoint should have the weights before the step; that of a learner has the state after it.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # tests continue in another folder
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
]
ROOT = Path(__file__).resolve().parents[2]


def make_trainer(folder: Path, **settings: Any) -> Trainer:
    """Returns a Trainer without output, which runs on a CPU until the module ends."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"accelerator": "cpu", "max_epochs": -1, "log_every_n_steps": 1, "default_root_dir": folder}
    return Trainer(**{**quiet, **defaults, **settings})


def fit(folder: Path, args: Any = PPO, ckpt_path: Path | None = None, **settings: Any) -> LearnerModule:
    """Trains in epochs of four iterations, and returns the module."""
    module = LearnerModule(args, iterations_per_epoch=4)
    make_trainer(folder, **settings).fit(module, ckpt_path=ckpt_path, weights_only=True)
    return module


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The numbers of an ordinary training."""
    return numbers_of(train(PPO))


# ---- the numbers of an ordinary training


@pytest.mark.parametrize("name", TRAININGS)
def test_lightning_has_the_bits_of_train(name: str, tmp_path: Path) -> None:
    module = fit(tmp_path, TRAININGS[name])
    assert differences(numbers_of(module.result), numbers_of(train(TRAININGS[name]))) == []
    role, *_ = module.result.networks
    assert module.networks[role] is module.result.networks[role]
    assert module.trainer.global_step == len(module.result.history)
    module.trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert differences(lightning_checkpoint(tmp_path / "end.ckpt"), module.result.checkpoint) == []


@pytest.mark.parametrize("iteration", [3, 4], ids=["within an epoch", "at the end of an epoch"])
def test_a_checkpoint_continues_bit_for_bit(iteration: int, tmp_path: Path, plain: dict[str, Any]) -> None:
    def settings(folder: str) -> dict[str, Any]:
        saving = ModelCheckpoint(dirpath=tmp_path / folder, filename="{step}", every_n_train_steps=iteration)
        return {"enable_checkpointing": True, "callbacks": [saving]}

    fit(tmp_path, max_steps=iteration, **settings("saved"))
    path = tmp_path / "saved" / f"step={iteration}.ckpt"
    continued = fit(tmp_path, ckpt_path=path, **settings("continued"))
    assert [int(metrics["iteration"]) for metrics in continued.result.history] == list(range(iteration + 1, 7))
    assert differences(numbers_of(continued.result), {**plain, "history": plain["history"][iteration:]}) == []
    in_train = train(PPO, checkpoint=lightning_checkpoint(path))
    assert differences(numbers_of(in_train)["checkpoint"], plain["checkpoint"]) == []


def test_processes_of_lightning_have_the_bits_of_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.lightning_processes", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert process.returncode == 0, process.stderr[-4000:]
    expected = numbers_of(train(PPO, shards=SHARDS))
    for rank in range(2):
        numbers = torch.load(tmp_path / f"numbers-{rank}.pt", weights_only=True)
        assert differences(numbers["history"], expected["history"][:4]) == [], rank
    # The run continues in one process.
    saving = ModelCheckpoint(dirpath=tmp_path / "other")
    module = LearnerModule(PPO, iterations_per_epoch=4, shards=SHARDS)
    trainer = make_trainer(tmp_path, enable_checkpointing=True, callbacks=[saving])
    trainer.fit(module, ckpt_path=tmp_path / "step=4.ckpt", weights_only=True)
    assert differences(numbers_of(module.result), {**expected, "history": expected["history"][4:]}) == []


@pytest.mark.gpu
def test_a_gpu_has_the_bits_of_train(gpu: str, tmp_path: Path) -> None:
    """Metrics are read one iteration late, and graphs of the fused kernels survive that Lightning moves the module."""
    args = PPOArgs(num_envs=4096, num_iterations=7, device="cuda:0", normalize=True)
    expected = train(args)
    history, weights = numbers_of(expected)["history"], expected.network.cpu().state_dict()
    # Lightning warns if there are files where checkpoints shall be saved, such as those of the logger.
    for folder, path, first in (("saved", None, 0), ("continued", tmp_path / "saved" / "step=3.ckpt", 3)):
        saving = ModelCheckpoint(dirpath=tmp_path / folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
        logger = CSVLogger(tmp_path / "logs", name=folder)
        settings = {"accelerator": "gpu", "devices": 1, "enable_checkpointing": True, "callbacks": [saving]}
        module = fit(tmp_path, args, ckpt_path=path, logger=logger, log_every_n_steps=2, **settings)
        assert differences(numbers_of(module.result)["history"], history[first:]) == []
        assert differences(dict(module.result.network.state_dict()), dict(weights)) == []
        with (Path(logger.log_dir) / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        logged = [iteration for iteration in (2, 4, 6, 7) if iteration > first]
        assert [float(row["entropy"]) for row in rows] == [history[iteration - 1]["entropy"] for iteration in logged]


# ---- loggers and callbacks


def test_loggers_and_callbacks_get_the_metrics_of_each_iteration(tmp_path: Path, plain: dict[str, Any]) -> None:
    class Keep(Callback):
        """Keeps what callbacks see after each iteration and each epoch."""

        entropies: list[float]
        epoch_ends: list[int]

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.entropies, self.epoch_ends = [], []

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            self.entropies.append(float(trainer.callback_metrics["entropy"]))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.epoch_ends.append(int(trainer.callback_metrics["iteration"]))

    keep, logger = Keep(), CSVLogger(tmp_path)
    module = fit(tmp_path, logger=logger, callbacks=[keep], log_every_n_steps=2)
    entropies = [metrics["entropy"] for metrics in plain["history"]]
    assert keep.entropies == entropies
    assert keep.epoch_ends == [4, 6]
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["entropy"]) for row in rows] == entropies[1::2]
    assert [int(row["step"]) for row in rows] == [1, 3, 5]
    assert module.hparams["num_minibatches"] == PPO.num_minibatches
    assert module.hparams["algorithm"] == "ppo"


def test_early_stopping_ends_the_training_after_an_epoch(tmp_path: Path) -> None:
    stop = EarlyStopping("last_return", mode="max", stopping_threshold=0.0)
    assert len(fit(tmp_path, callbacks=[stop]).result.history) == 4


def test_a_target_return_ends_the_training(tmp_path: Path) -> None:
    args = replace(PPO, target_return=1.0)
    assert len(fit(tmp_path, args).result.history) == len(train(args).history) < PPO.num_iterations


def test_an_exception_leaves_a_checkpoint(tmp_path: Path, plain: dict[str, Any]) -> None:
    class Fail(Callback):
        """Fails after the second iteration."""

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 2:
                raise OSError("the disk is full")

    saving = ModelCheckpoint(dirpath=tmp_path, save_on_exception=True)
    with pytest.raises(OSError, match="the disk is full"):
        fit(tmp_path, enable_checkpointing=True, callbacks=[Fail(), saving])
    (path,) = tmp_path.glob("*.ckpt")
    continued = train(PPO, checkpoint=lightning_checkpoint(path))
    assert differences(numbers_of(continued)["checkpoint"], plain["checkpoint"]) == []


# ---- bad input


class WithTwoOptimizers(LearnerModule):
    """A module whose user wants optimisers of their own."""

    def configure_optimizers(self) -> Any:
        parameters = list(self.networks.parameters())
        return [torch.optim.SGD(parameters, 0.1), torch.optim.SGD(parameters, 0.1)]


class WithScheduler(LearnerModule):
    """A module whose user wants a scheduler of their own."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.param_groups[0]["lr"] = 0.1
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.mark.parametrize("module_class", [WithTwoOptimizers, WithScheduler])
def test_other_optimizers_are_refused(module_class: type[LearnerModule], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"configure_optimizers returned .*(SGD, SGD|StepLR): the algorithms have optimisers"):
        make_trainer(tmp_path).fit(module_class(PPO))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "bf16-mixed"}, "the Trainer's precision is bf16-mixed, and that of a learner is one of its settings"),
        ({"precision": "64-true"}, "the Trainer's precision is 64-true"),
        ({"gradient_clip_val": 0.5}, "gradient clipping is not supported for manual optimization"),
        ({"accumulate_grad_batches": 2}, "gradient accumulation is not supported for manual optimization"),
        ({"callbacks": [LearningRateMonitor()], "logger": True}, "the callback LearningRateMonitor reads or sets"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_settings_that_a_learner_ignores_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=message):
        make_trainer(tmp_path, **settings).fit(LearnerModule(PPO))


@pytest.mark.parametrize(
    ("make_strategy", "message"),
    [
        (FSDPStrategy, "the strategy is FSDPStrategy, and a learner has all of its network in each process"),
        (
            lambda: Trainer(accelerator="cpu", devices=2, strategy="ddp_spawn").strategy,
            "by spawn or fork, which lose the learner",
        ),
    ],
    ids=["fsdp", "spawn"],
)
def test_other_strategies_are_refused(make_strategy: Callable[[], Any], message: str) -> None:
    trainer = SimpleNamespace(strategy=make_strategy(), precision_plugin=Precision(), precision="32-true", callbacks=[])
    with pytest.raises(ValueError, match=message):
        require_supported(LearnerModule(PPO), trainer)


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy(), DDPStrategy()], ids=["single", "ddp"])
def test_automatic_optimization_is_refused(strategy: Any) -> None:
    module = LearnerModule(PPO)
    trainer = SimpleNamespace(strategy=strategy, precision_plugin=Precision(), precision="32-true", callbacks=[])
    require_supported(module, trainer)
    module.automatic_optimization = True
    with pytest.raises(ValueError, match="automatic_optimization is True"):
        require_supported(module, trainer)


def test_the_trainer_determines_the_device() -> None:
    assert training_device("auto", torch.device("cpu")) == "cpu"
    with pytest.raises(DeviceError, match=r"the learner's device is cuda, and the Trainer's is cpu: leave device='auto'"):
        training_device("cuda", torch.device("cpu"))
    with pytest.raises(DeviceError, match="accelerator is mps"):
        training_device("auto", torch.device("mps"))


def test_other_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a learner takes its samples from its environments"):
        make_trainer(tmp_path).fit(LearnerModule(PPO), train_dataloaders=[1, 2])


def test_a_used_trainer_needs_a_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(LearnerModule(PPO, iterations_per_epoch=1))
    trainer.fit_loop.max_epochs = 2
    with pytest.raises(StateError, match="the Trainer has counted 1 steps and the learner 0 iterations"):
        trainer.fit(LearnerModule(PPO, iterations_per_epoch=1))


def test_settings_are_checked_when_the_module_is_made() -> None:
    with pytest.raises(ValueError, match="iterations_per_epoch must be at least 1, got 0"):
        LearnerModule(PPO, iterations_per_epoch=0)
    with pytest.raises(ValueError, match="no policy learns"):
        LearnerModule({})
    with pytest.raises(StateError, match="no result yet"):
        _ = LearnerModule(PPO).result
    with pytest.raises(StateError, match=r"no learner outside of Trainer\.fit"):
        _ = LearnerModule(PPO).learner


def test_checkpoints_of_other_modules_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(
        CheckpointError, match=r"other.ckpt cannot be read as a checkpoint: Lightning wrote it for another module"
    ):
        lightning_checkpoint(tmp_path / "other.ckpt")
    torch.save({"gpuvec": {"format": 1}}, tmp_path / "old.ckpt")
    with pytest.raises(CheckpointError, match=r"old.ckpt cannot be read as a checkpoint: it has the format 1"):
        lightning_checkpoint(tmp_path / "old.ckpt")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "gpuvec.learners.lightning")
    with pytest.raises(MissingExtraError, match=r'this needs PyTorch Lightning .*pip install .*\[lightning\]"'):
        runpy.run_module("gpuvec.learners.lightning")
    assert issubclass(LearnerModule, LightningModule)
