"""skrl's `wrap_env` wraps a vector environment, and its PPO learns CartPole in it."""
# /// script
# dependencies = ["skrl==2.1.1"]
#
# [tool.client]
# title = "skrl"
# lines = 0
# change = "`wrap_env(envs)`"
# ///

import gymnasium
import numpy as np
import torch
from learning import SEED, report
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

import gpuvec  # noqa: F401  # registers its environments

E, T, STEPS = 16, 64, 2500


def network(outputs):
    """Returns a network with two hidden layers and that number of `outputs`."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Policy(CategoricalMixin, Model):
    """The policy, with a logit for each action."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.network = network(2)

    def compute(self, inputs, role=""):
        """Returns the logits of the observations in `inputs`; `role` is skrl's name of the model."""
        return self.network(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """The value function."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.network = network(1)

    def compute(self, inputs, role=""):
        """Returns the values of the observations in `inputs`; `role` is skrl's name of the model."""
        return self.network(inputs["observations"]), {}


set_seed(SEED)
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, device="cpu", output="numpy", autoreset_mode="SameStep")
env = wrap_env(envs)
assert env.num_envs == E
spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
agent = PPO(
    models={"policy": Policy(**spaces), "value": Value(**spaces)},
    memory=RandomMemory(memory_size=T, num_envs=E, device="cpu"),
    cfg={
        "rollouts": T,
        "learning_epochs": 8,
        "mini_batches": 4,
        "learning_rate": 1e-3,
        "experiment": {"directory": "runs", "write_interval": 0, "checkpoint_interval": 0},
    },
    **spaces,
)
lengths, running = [], np.zeros(E)
step = envs.step


def step_and_count(actions):
    """Takes a step with `actions`, (E,), and records the lengths of the episodes that end in it."""
    obs, reward, terminated, truncated, infos = step(actions)
    running[:] += 1
    ended = terminated | truncated
    lengths.extend(running[ended])
    running[ended] = 0
    return obs, reward, terminated, truncated, infos


envs.step = step_and_count
trainer = SequentialTrainer(env=env, agents=agent, cfg={"timesteps": STEPS, "headless": True, "disable_progressbar": True})
trainer.train()
before, after = np.mean(lengths[:50]), np.mean(lengths[-50:])
assert after > 3 * before, (before, after)
assert torch.isfinite(torch.cat([p.flatten() for p in agent.policy.parameters()])).all()
report("PPO on CartPole", before, after, f"after {E * STEPS:,} steps")
