"""A training in two processes that Lightning starts: `python -m tests.support.lightning_processes FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.support.process_trainings import PPO, SHARDS, numbers_of

from gpuvec.learners.lightning import LearnerModule


def main(folder: Path) -> None:
    """Trains with the weights of a training of one process, and saves numbers and a checkpoint."""
    module = LearnerModule(PPO, iterations_per_epoch=4, shards=SHARDS)
    settings = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saving = ModelCheckpoint(dirpath=folder, filename="{step}")
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=1, callbacks=[saving], **settings)
    trainer.fit(module)
    torch.save(numbers_of(module.result), folder / f"numbers-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
