# %% [markdown]
# # Training
#
# After this tutorial you can train PPO, evaluate a policy on other parameters, use your own network, and resume a run.
#
# ## Settings
#
# Settings are a frozen dataclass. The bundled environments have tuned settings; the arguments given here override them, here
# the return at which to stop.

# %%
import math
import tempfile
from pathlib import Path

import gymnasium
import torch
from torch import nn

import gpuvec
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.evaluation.evaluate import evaluate, run_episodes
from gpuvec.learners.evaluation.players import at_random, policy
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.runs.checkpoint import load, save

POLE = "gpuvec/CartPole-v1"
device = gymnasium.make_vec(POLE, num_envs=1).device
args = tuned(POLE, device, target_return=475.0)
print(args.resolved(device))

# %% [markdown]
# Invalid values are refused when the settings are created:

# %%
try:
    PPOArgs(gamma=1.5)
except ValueError as error:
    print(error)
else:
    raise AssertionError("a discount factor above 1 was taken")

# %% [markdown]
# ## Train
#
# With a target the policy is evaluated about 32 times during the training: 32 environments that the training does not use play
# an episode each, with actions that are drawn, and `eval_return` is their mean return. The training ends when it is at the
# target. It is the same training with `evaluate_every=10`, without a target, and without evaluations.
#
# `train` calls `on_iteration` on the host after every iteration, with the learner and the metrics: use it for progress bars,
# loggers or checkpoints. If it returns True, the training ends. A GPU waits for it in every iteration. With
# `exact_at=lambda iteration: False` the GPU computes the next iteration meanwhile, and `learner` is one iteration ahead of the
# metrics.


# %%
def show(learner, metrics):
    value = metrics["eval_return"]  # nan in iterations without an evaluation
    if not math.isnan(value):
        print(f"{metrics['steps']:>9,.0f} steps  mean return {value:5.1f}  {'=' * round(value / 10)}")


result = train(args, show)

# %% [markdown]
# `return` and `last_return` are those of the training's own episodes, which were played while the policy changed; the steps
# until they reach a target grow with the number of environments. To measure the final policy, evaluate it: each of 100
# environments plays its first episode with the most likely actions. (Taking the first episodes that *end* would favour short
# ones.)

# %%
trained = evaluate(result.network, POLE, seed=5, device=device)
chance = run_episodes(POLE, at_random(), seed=5, device=device).returns
print(f"trained {trained.mean():.1f}, by chance {chance.mean():.1f}, of 500")
assert trained.mean() > 450 > 50 > chance.mean()

# %% [markdown]
# ## Other parameters
#
# The policy was trained with one gravity. Environments have parameters per row, so one evaluation covers four planets:

# %%
planets = {"Moon": 1.6, "Mars": 3.7, "Earth": 9.8, "Jupiter": 24.8}
each = 50
params = {"per_env": ("gravity",), "gravity": [g for g in planets.values() for _ in range(each)]}
returns = run_episodes(POLE, policy(result.network), episodes=4 * each, seed=6, device=device, params=params).returns
for planet, mean in zip(planets, returns.view(4, each).mean(1).tolist(), strict=True):
    print(f"{planet:8} {mean:5.1f}  {'=' * round(mean / 10)}")
assert returns.view(4, each).mean(1)[2] > 450

# %% [markdown]
# Train with other seeds to see the spread; `params={"gravity": 24.8}` in the settings trains with Jupiter's gravity.
#
# ## Your own network
#
# A network is any module with two methods, `policy(obs)` for the logits and `value(obs)`. Here the value function has a hidden
# layer, and the policy is reduced to one weight per feature: push right if the weighted sum is positive. [Networks, losses and
# algorithms of your own](../guides/own_algorithms.md) also work on the command line.


# %%
class Readable(nn.Module):
    def __init__(self, observation, action):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(observation.shape[0]))
        self.critic = nn.Sequential(nn.Linear(observation.shape[0], 64), nn.Tanh(), nn.Linear(64, 1))

    def policy(self, obs):
        push = obs @ self.weights
        return torch.stack([-push, push], dim=-1)

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


simple = train(
    PPOArgs(env=POLE, device=device, num_envs=128, num_iterations=48, num_minibatches=8, learning_rate=2e-2), body=Readable
)
worth = evaluate(simple.network, POLE, seed=5, device=device).mean()
weights = simple.network.body.weights.tolist()
for name, weight in zip(("place", "speed", "angle", "angular velocity"), weights, strict=True):
    print(f"{name:17} {weight:6.2f}")
print(f"mean return {worth:.1f}")
assert worth > 400
assert weights[2] > 0 < weights[3]

# %% [markdown]
# Four numbers balance the pole: push in the direction in which it leans, and more so in the direction in which it falls.
#
# ## Stop and resume
#
# A checkpoint contains networks, optimiser, environments, random streams and counters. A run resumed from it gives, bit for
# bit, the results of an uninterrupted run. Compare six iterations in one run, with a checkpoint after the third:

# %%
short = PPOArgs(env=POLE, device=device, num_envs=32, num_iterations=6, seed=9)
folder = Path(tempfile.mkdtemp())


def keep_third(learner, metrics):
    if learner.iteration == 3:
        print("saved", save(folder, learner.state_dict()).name)


whole = train(short, keep_third)
resumed = train(short, checkpoint=load(folder))

assert [metrics["iteration"] for metrics in resumed.history] == [4, 5, 6]
for name, tensor in whole.network.state_dict().items():
    assert torch.equal(tensor, resumed.network.state_dict()[name]), name
print("all parameters are the same, to the last bit")

# %% [markdown]
# Checkpoints contain tensors, numbers and strings, and are loaded with `weights_only=True`: a file from another person cannot
# run code.
#
# ## From a shell
#
# ```console
# gpuvec train --env gpuvec/CartPole-v1 --seed 1 --log tensorboard
# gpuvec resume runs/<run>
# gpuvec eval runs/<run> --episodes 1000
# ```
#
# A run folder contains the settings, the versions of the packages, the metrics as JSON lines, and the last two checkpoints.
# Ctrl-C ends a training after the current iteration and writes a checkpoint.
#
# **Next:** [two policies in one game](own_game.py), or [more environments and more agents](scaling.py).
