"""PPO of AgileRL learns CartPole in a vector environment, and its method `test` evaluates it there."""
# /// script
# dependencies = ["agilerl==2.58.0", "pettingzoo==1.26.1", "tensordict==0.13.0", "peft==0.21.2"]
#
# [tool.client]
# title = "AgileRL"
# lines = 0
# change = '`output="numpy"`'
# ///

import gymnasium
import numpy as np
import torch
from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from learning import SEED, report

import gpuvec  # noqa: F401  # registers its environments

E = 16
torch.manual_seed(SEED)
np.random.seed(SEED)  # noqa: NPY002  # AgileRL uses this generator
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, device="cpu", output="numpy", autoreset_mode="SameStep")
agent = PPO(
    envs.single_observation_space,
    envs.single_action_space,
    num_envs=E,
    learn_step=64 * E,
    batch_size=256,
    lr=1e-3,
    update_epochs=6,
    device="cpu",
)
state, means = {}, []
for _ in range(30):
    scores, *last = collect_rollouts(agent, envs, **state)
    state = dict(zip(("last_obs", "last_done", "last_scores", "last_info"), last, strict=True))
    agent.learn()
    means.append(float(np.mean(scores)) if scores else float("nan"))
assert means[-1] > 3 * means[0], means
test_return = agent.test(envs, max_steps=200, loop=1)
assert test_return > 2 * means[0], (test_return, means)
envs.close()
report("PPO on CartPole", means[0], means[-1], f"after {30 * 64 * E:,} steps")
