# %% [markdown]
# # Training
#
# `gpuvec.learners` has PPO, A2C and DDPG, each in a file that reads like its paper. This tutorial trains PPO on CartPole,
# sends what it learned to other planets, replaces its network by one that you can read, and stops a run in the middle to see
# whether it goes on as if nothing had happened.
#
# ## Settings
#
# Settings are a frozen dataclass. The bundled environments come with tuned ones; what you give goes over them, here the
# return at which to stop.

# %%
import tempfile
from pathlib import Path

import gymnasium
import torch
from torch import nn

import gpuvec
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.evaluation.evaluate import evaluate, play
from gpuvec.learners.evaluation.players import at_random, policy
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.runs.checkpoint import load, save

POLE = "gpuvec/CartPole-v1"
device = gymnasium.make_vec(POLE, num_envs=1).device
args = tuned(POLE, device, target_return=475.0)
print(args.resolved(device))

# %% [markdown]
# A value that cannot be is refused when the settings are made, not an hour later:

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
# `train` calls `on_iteration` after every iteration with the learner and the metrics, on the host. That is the place for a
# progress bar, a logger, or a checkpoint. A GPU waits for it after each iteration; with `exact_at=lambda iteration: False` it
# computes the next iteration meanwhile, and `learner` is then one iteration ahead of the metrics.


# %%
def show(learner, metrics):
    if learner.iteration % 8 == 0:
        value = metrics["last_return"]
        print(f"{metrics['steps']:>9,.0f} steps  mean return {value:5.1f}  {'=' * round(value / 10)}")


result = train(args, show)

# %% [markdown]
# `last_return` is the mean, over all environments, of the last episode that ended in each. Those episodes were played under
# policies that still changed, with actions that were drawn. What the last policy is worth, an evaluation tells: each of 100
# environments plays its first episode with the likeliest actions. (The first to *end* would more often be short ones.)

# %%
trained = evaluate(result.network, POLE, seed=5, device=device)
chance = play(POLE, at_random(), seed=5, device=device).returns
print(f"trained {trained.mean():.1f}, by chance {chance.mean():.1f}, of 500")
assert trained.mean() > 450 > 50 > chance.mean()

# %% [markdown]
# ## Elsewhere
#
# The policy has seen one gravity. Environments take a parameter per row, so one evaluation asks it about four planets:

# %%
planets = {"Moon": 1.6, "Mars": 3.7, "Earth": 9.8, "Jupiter": 24.8}
each = 50
params = {"per_env": ("gravity",), "gravity": [g for g in planets.values() for _ in range(each)]}
returns = play(POLE, policy(result.network), episodes=4 * each, seed=6, device=device, params=params).returns
for planet, mean in zip(planets, returns.view(4, each).mean(1).tolist(), strict=True):
    print(f"{planet:8} {mean:5.1f}  {'=' * round(mean / 10)}")
assert returns.view(4, each).mean(1)[2] > 450

# %% [markdown]
# Was that luck? Train with other seeds and see; `params={"gravity": 24.8}` in the settings trains on Jupiter.
#
# ## A network that can be read
#
# A network of your own is any module with two methods, `policy(obs)` for the logits and `value(obs)`. How simple may it be?
# Here the value function keeps its hidden layer, and the policy is down to one weight for each number that it sees: push
# right if their sum is positive.


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
# Four numbers balance the pole. They say: push to where it leans, and more so to where it falls.
#
# ## Stop and go on
#
# A checkpoint holds networks, optimiser, environments, their random numbers, and the time. A run that goes on from one is,
# bit for bit, the run that was never stopped. Let us not believe it. Six iterations in one go, with a checkpoint after the
# third:

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
# Checkpoints are plain tensors, numbers and strings, and are read with `weights_only=True`: a file from someone else cannot
# run code here.
#
# ## The same from a shell
#
# ```console
# gpuvec train --env gpuvec/CartPole-v1 --seed 1 --log tensorboard
# gpuvec resume runs/<run>
# gpuvec eval runs/<run> --episodes 1000
# ```
#
# A run folder holds the settings, the versions of all that matters, the metrics as JSON lines, and the last two checkpoints.
# Ctrl-C ends a training after the running iteration, and leaves a checkpoint to go on from.
#
# **Next:** [two policies in one game](own_game.py), or [more environments and more agents](scaling.py).
