"""The start of a training: it imports no module that it does not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SLOW = ("sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "tensorboard", "rich")
TRAIN = """
import importlib, sys
from gpuvec.learners.config.training_config import DDPGArgs
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.training import train

common = {"device": "cpu", "num_envs": 4, "num_steps": 4, "hidden": (8,)}
for args in (
    PPOArgs(env="gpuvec/CartPole-v1", total_steps=32, target_kl=0.1, **common),
    PPOArgs(env="gpuvec/CartPole-v1", total_steps=32, activation="relu", shared=True, normalize=True, weight_init="xavier",
            **common),
    DDPGArgs(env="gpuvec/Pendulum-v1", total_steps=64, buffer_size=64, batch_size=8, learning_starts=16, **common),
):
    train(args)
print(" ".join(name for name in %r if name in sys.modules))
"""


def test_training_does_not_import_the_compiler_of_torch() -> None:
    """`torch.optim` and `torch.nn.utils.skip_init` import torch's compiler and sympy, which takes seconds."""
    run = subprocess.run([sys.executable, "-c", TRAIN % (SLOW,)], capture_output=True, text=True, check=False, env=os.environ)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
