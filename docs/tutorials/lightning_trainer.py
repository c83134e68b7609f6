# %% [markdown]
# # Train with PyTorch Lightning
#
# After this tutorial you can train with a Lightning `Trainer`, use its callbacks, loggers and checkpoints, and continue a run.
# It needs `pip install ".[train,lightning]"` in the checkout.
#
# ## Fit
#
# `LearnerModule` is a LightningModule. Its training step is an iteration of the learner: a rollout of all environments,
# estimates of advantages, and the update. `Trainer(max_epochs=-1)` trains to the end of the settings.

# %%
import csv
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import gpuvec
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.lightning import LearnerModule, lightning_checkpoint
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.runs.checkpoint import save

warnings.filterwarnings("ignore", category=FutureWarning)  # of Lightning with the newest PyTorch
POLE = "gpuvec/CartPole-v1"
folder = Path(tempfile.mkdtemp())
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}

short = PPOArgs(env=POLE, num_envs=32, num_iterations=8, seed=9)
module = LearnerModule(short, iterations_per_epoch=4)
trainer = Trainer(max_epochs=-1, logger=False, enable_checkpointing=False, **quiet)
trainer.fit(module)
print(f"{trainer.current_epoch} epochs, {trainer.global_step} iterations")

# %% [markdown]
# The result is that of `train`. The weights are the same to the last bit:

# %%
plain = train(short)
for name, weight in plain.network.cpu().state_dict().items():
    assert torch.equal(weight, module.result.network.state_dict()[name]), name
print("all parameters are the same, to the last bit")

# %% [markdown]
# Lightning moves the network of a module to the CPU when it has finished.
#
# ## Callbacks and loggers
#
# A global step of the Trainer is an iteration, and an epoch is `iterations_per_epoch` of them. Callbacks and loggers get the
# metrics of `train`, such as `last_return`, under the same names. Here the training stops when the mean return is 400, and the
# best policy is kept:


# %%
class Show(Callback):
    def on_train_epoch_end(self, trainer, module):
        value = float(trainer.callback_metrics["last_return"])
        print(f"epoch {trainer.current_epoch:3}  mean return {value:5.1f}  {'=' * round(value / 10)}")


args = PPOArgs(env=POLE, num_envs=128, num_iterations=96, learning_rate=5e-3, seed=1)
module = LearnerModule(args, iterations_per_epoch=8)
best = ModelCheckpoint(dirpath=folder / "best", monitor="last_return", mode="max")
stop = EarlyStopping("last_return", mode="max", stopping_threshold=400.0, patience=100)
logger = CSVLogger(folder)
trainer = Trainer(max_epochs=-1, logger=logger, log_every_n_steps=4, callbacks=[Show(), stop, best], **quiet)
trainer.fit(module)

worth = evaluate(module.result.network, POLE, seed=5, device="cpu").mean()
print(f"mean return of the final policy {worth:.1f}")
assert worth > 300
with (Path(logger.log_dir) / "metrics.csv").open() as file:
    rows = list(csv.DictReader(file))
assert [int(row["step"]) + 1 for row in rows] == [4 * (k + 1) for k in range(len(rows))]

# %% [markdown]
# Loggers get each `log_every_n_steps`-th iteration. On a GPU metrics are read while the next iteration runs, so that the work
# of Lightning is hidden behind that of the GPU. `on_train_batch_end` then sees the metrics of the iteration before, and
# `on_train_epoch_end` those of the last one. With `iterations_per_epoch=1` each iteration is the last one of its epoch.
#
# ## Checkpoints
#
# A checkpoint has the complete state of the learner: networks, optimisers, environments, random streams. Training continues bit
# for bit. `weights_only=True` reads it without executing anything in it.

# %%
keep = ModelCheckpoint(dirpath=folder / "runs", filename="{epoch}", save_top_k=-1)
first = Trainer(max_epochs=1, logger=False, callbacks=[keep], **quiet)
first.fit(LearnerModule(short, iterations_per_epoch=4))

module = LearnerModule(short, iterations_per_epoch=4)
second = Trainer(max_epochs=-1, logger=False, enable_checkpointing=False, **quiet)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the second Trainer has no ModelCheckpoint
    second.fit(module, ckpt_path=folder / "runs" / "epoch=0.ckpt", weights_only=True)
for name, weight in plain.network.state_dict().items():
    assert torch.equal(weight, module.result.network.state_dict()[name]), name
print("continued after", len(plain.history) - len(module.result.history), "iterations")

# %% [markdown]
# `lightning_checkpoint` reads the learner's part of the file. `train` continues from it, and in a folder it is what
# `gpuvec.load_policy`, `gpuvec eval` and `gpuvec export` read:

# %%
checkpoint = lightning_checkpoint(best.best_model_path)
(folder / "policy").mkdir()
save(folder / "policy", checkpoint)
policy = gpuvec.load_policy(folder / "policy")
print(policy.act(torch.zeros(2, 4)))

# %% [markdown]
# With `every_n_train_steps` Lightning warns that the file has the weights after the optimiser's step. That is what a learner
# continues from. `train_time_interval` of `ModelCheckpoint` has no effect, because Lightning ignores it for manual
# optimisation.
#
# ## Several processes
#
# `Trainer(accelerator="gpu", devices=4, max_epochs=-1)` starts four processes, which share the environments as those of
# [`gpuvec train --gpus 4`](../guides/processes.md) do: in 8 shards, so that 1, 2, 4 and 8 processes have the same weights. One
# process has one shard unless you give another number: `LearnerModule(args, shards=8)` gives the weights of `devices=4`.
#
# ## What belongs to the settings
#
# The algorithms have their own optimisers and number formats. Where a Trainer or a subclass asks for others, the module says
# what to do:

# %%
try:
    trainer = Trainer(max_epochs=-1, precision="bf16-mixed", logger=False, enable_checkpointing=False, **quiet)
    trainer.fit(LearnerModule(short))
except ValueError as error:
    print(error)
else:
    raise AssertionError("a precision that the learner does not use was taken")

# %% [markdown]
# | Lightning | gpuvec |
# | --- | --- |
# | `precision="bf16-mixed"` | `PPOArgs(precision="bf16")` |
# | `gradient_clip_val`, `accumulate_grad_batches` | `max_grad_norm`, `num_minibatches` |
# | schedulers, `LearningRateMonitor` | `anneal_lr`, `learning_rate_table` |
# | `strategy="fsdp"`, `"deepspeed"`, `"ddp_spawn"` | `strategy="ddp"`, which `devices=N` takes |
# | dataloaders | `env`, `num_envs`, `num_steps` |
#
# **Next:** [more environments and more agents](scaling.py), or [several processes and GPUs](../guides/processes.md).
