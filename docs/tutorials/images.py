# %% [markdown]
# # Images as observations
#
# After this tutorial you have written an environment whose agent observes an image, and trained a convolutional network in it.
#
# A kernel writes the pixels, each by a function call of its own. So an image is a grid of features, as in Breakout and
# ConnectFour. gpuvec has no cameras and no textures: `draw` makes pictures for people, on the host, and no agent observes them.
#
# ## Pixels
#
# Declare a Box of shape (C, H, W), uint8 or float32. `observe` then gets the cell as its first argument, (row, column), and
# returns the C channels of that pixel. Here an agent catches a ball that falls.

# %%
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import gpuvec
from gpuvec import Key, SingleAgentEnv, randint
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.ppo import PPOArgs, train

ROWS, COLUMNS = 8, 6


class State(NamedTuple):
    ball_y: int
    ball_x: int
    paddle_x: int


class Params(NamedTuple):
    pass


def reset(key: Key, p: Params) -> State:
    return State(0, randint(key, 0, 0, COLUMNS), randint(key, 1, 0, COLUMNS))


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    paddle_x = min(max(s.paddle_x + action - 1, 0), COLUMNS - 1)
    y = s.ball_y + 1
    has_landed = y == ROWS - 1
    reward = 0.0
    if has_landed:
        reward = 1.0 if paddle_x == s.ball_x else -1.0
    return State(y, s.ball_x, paddle_x), reward, has_landed


def observe(cell: tuple[int, int], s: State, p: Params) -> tuple[bool, bool]:
    y, x = cell
    return y == s.ball_y and x == s.ball_x, y == ROWS - 1 and x == s.paddle_x


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0, 1, (2, ROWS, COLUMNS), np.uint8), Discrete(3)


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces)
gpuvec.register("my/Catch-v0", ENV)

envs = gymnasium.make_vec("my/Catch-v0", num_envs=1024)
obs, _ = envs.reset(seed=0)
device = str(envs.device)
print(tuple(obs.shape), obs.dtype)
for row in 2 * obs[0, 1] + obs[0, 0]:
    print("".join(".o="[pixel] for pixel in row))
assert obs.dtype == torch.uint8
envs.close()

# %% [markdown]
# In an environment with many agents a role has images by `Observation`, see [Tables, fields for pairs, and action
# masks](constants_and_pairs.py) and [Write an environment with many agents](own_game.py).
#
# ## The default network
#
# For images PPO and A2C take a convolution of 16 filters of 3 x 3 with a ReLU, and the layers of `hidden` behind it. Policy
# and value function share them. Pixels are divided by 255 if the largest value of the space is 255, and otherwise not scaled.
# Rollouts store uint8 as uint8, a quarter of the memory of float32. Images need at least 3 rows and columns. `normalize=True`
# is for float32 observations alone.

# %%
args = PPOArgs(env="my/Catch-v0", device=device, num_envs=128, num_steps=32, num_minibatches=8, num_iterations=25, hidden=(64,))
result = train(args)
caught = evaluate(result.network, args.env, seed=1, device=device).mean()
print(f"{type(result.network.body).__name__}: mean return {caught:.2f} of 1")
assert caught > 0.6

# %% [markdown]
# On a GPU kernels of gpuvec compute the convolution of small images. The fused kernels of PPO are for perceptrons, so the rest
# of such a training runs in PyTorch's operations, as one CUDA graph.
#
# ## Your own network
#
# `body` is called with the spaces of one agent, and returns a module with `policy(obs)` and `value(obs)`. Observations arrive
# as the environment has them, uint8 of shape (..., C, H, W). `both(obs)` is optional and saves computing shared layers twice.
# [Networks of your own](../guides/own_algorithms.md) says more.


# %%
class TwoConvolutions(nn.Module):
    def __init__(self, observation, action):
        super().__init__()
        channels, height, width = observation.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * height * width, 64), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(64, int(action.n)), nn.Linear(64, 1)

    def both(self, obs):
        hidden = self.layers(obs.reshape(-1, *obs.shape[-3:]).float()).view(*obs.shape[:-3], -1)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def policy(self, obs):
        return self.both(obs)[0]

    def value(self, obs):
        return self.both(obs)[1]


own = train(args, body=TwoConvolutions)
caught = evaluate(own.network, args.env, seed=1, device=device).mean()
print(f"{type(own.network.body).__name__}: mean return {caught:.2f} of 1")
assert caught > 0.6

# %% [markdown]
# **Next:** [training](training.py).
