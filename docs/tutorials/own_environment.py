# %% [markdown]
# # Write an environment
#
# After this tutorial you have written an environment with one agent, checked it, played it with a scripted policy, trained PPO
# on it, and looked at an episode.
#
# A boat cannot sail straight into the wind. It sails at an angle, first with the wind from one side and then from the other:
# it *tacks*. Each turn through the wind costs speed, the banks of the river are near, and the wind shifts.
#
# ## State and parameters
#
# Both are NamedTuples. `float` means float32 and `int` means int32. Time, truncation, autoreset, seeds and statistics are
# handled by the engine.

# %%
import math
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

import gpuvec
from gpuvec import Canvas, Key, SingleAgentEnv, normal, sincos, uniform, wrap


class State(NamedTuple):
    x: float  # across the river, from the middle [m]
    y: float  # upwind [m]
    heading: float  # from straight upwind, positive to the right [rad]
    speed: float  # [m/s]
    wind: float  # where it comes from today, from straight upwind [rad]


class Params(NamedTuple):
    half_width: float = 50.0  # of the river [m]
    top: float = 5.0  # speed across the wind [m/s]
    no_go: float = math.radians(40.0)  # closer to the wind no sail pulls [rad]
    rudder: float = math.radians(15.0)  # turn in a step [rad]
    response: float = 0.2  # how much of the missing speed is picked up in a step
    shift: float = 0.05  # of the wind in a step [rad]
    dt: float = 1.0  # [s]


# %% [markdown]
# ## Functions
#
# An environment has four functions. `reset` draws the first state of an episode. `step` returns the next state, the reward and
# whether the episode is terminated. `observe` returns the observation, and `spaces` the spaces for Gymnasium.
#
# Random numbers are functions of a key and a number that you choose, a different one for each draw. The same key and number
# give the same value on every device, so a run can be repeated.


# %%
def reset(key: Key, p: Params) -> State:
    x = uniform(key, 0, -0.5 * p.half_width, 0.5 * p.half_width)
    return State(x, 0.0, uniform(key, 1, -1.0, 1.0), 0.5 * p.top, 0.0)


def pull(angle: float, p: Params) -> float:
    """The speed that the sails give at an angle to the wind."""
    sin, _ = sincos(angle)
    return p.top * abs(sin) if abs(angle) > p.no_go else 0.0


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    heading = wrap(s.heading + p.rudder * np.float32(action - 1))  # 0 to the left, 1 straight on, 2 to the right
    wind = 0.9 * s.wind + p.shift * normal(key, 0)
    speed = s.speed + p.response * (pull(wrap(heading - wind), p) - s.speed)
    sin, cos = sincos(heading)
    x, y = s.x + p.dt * speed * sin, s.y + p.dt * speed * cos
    return State(x, y, heading, speed, wind), (y - s.y) / (p.top * p.dt), abs(x) > p.half_width


def observe(s: State, p: Params) -> tuple[float, float, float, float, float, float]:
    sin, cos = sincos(s.heading)
    across, towards = sincos(s.heading - s.wind)
    return s.x / p.half_width, s.speed / p.top, sin, cos, across, towards


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (6,), np.float32), Discrete(3)


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=200)
gpuvec.register("my/Sail-v0", ENV)

# %% [markdown]
# This is the whole file. Saved as `sail.py`, it can be used as `gymnasium.make_vec("sail:my/Sail-v0", num_envs=...)`.
#
# In a notebook, edit the cell and run it again: the new registration replaces the functions, the limit of steps and the
# threshold. Environments that exist keep what they were made with.
#
# ## Call the functions in Python
#
# The functions are plain Python functions. Called directly, they work in a debugger and may contain `print`; a compiled
# environment refuses `print` and names the line. Hold 45 degrees to a steady wind:

# %%
steady = Params(shift=0.0)
s = State(x=0.0, y=0.0, heading=math.radians(45), speed=2.5, wind=0.0)
for t in range(20):
    s, reward, aground = step(s, 1, Key(0, 0, 0, 0, t), steady)
    if t % 4 == 3:
        print(f"after {t + 1:2} s  x {s.x:5.1f} m  y {s.y:5.1f} m  {s.speed:.2f} m/s  reward {reward:.3f}")

assert not aground
assert abs(reward - 0.5) < 0.01

# %% [markdown]
# The reward is 0.5. At an angle `a` to the wind a boat gains `sin a cos a`, half of `sin 2a`, of its top speed, which is
# largest at 45 degrees. No policy can do better than a half on average, or 100 in an episode of 200 steps, except for
# favourable shifts of the wind.
#
# ## Check it
#
# `check_env` compiles the functions, checks the type of every value, plays to the end of episodes, and replays states of them
# in plain Python, where it checks every index, integer division, shift and random draw.

# %%
from gpuvec.testing import check_env

for check in check_env(ENV, kernels=False):
    print(f"{'ok  ' if check.ran else 'left'}  {check.name:12}  {check.detail}")

# %% [markdown]
# The last lines name further checks: kernels in Numba's CUDA simulator and, without `kernels=False`, machine code for a GPU,
# which need not be present. Types are checked strictly because float64 is slow on most GPUs. An int combined with a float
# gives a float64, as in this version of the turn:


# %%
def turn(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    heading = wrap(s.heading + p.rudder * (action - 1.0))
    return State(s.x, s.y, heading, s.speed, s.wind), 0.0, False


try:
    check_env(SingleAgentEnv(State, Params(), reset, turn, observe, spaces), kernels=False)
except gpuvec.errors.AuthoringError as error:
    print(str(error).partition("line ")[2])
else:
    raise AssertionError("a float64 went unnoticed")

# %% [markdown]
# ## A scripted policy
#
# The rule of sailors is: hold 45 degrees to the wind, and tack before the bank. A policy is a function of the observations of
# all boats. `run_episodes` plays one episode of each boat.

# %%
from gpuvec.learners.evaluation.evaluate import evaluate, run_episodes
from gpuvec.learners.evaluation.players import at_random


def sailor(envs):
    def act(obs):
        x, _, sin, _, across, towards = obs.unbind(-1)
        goes_right = sin > 0.0
        tacks = torch.where(goes_right, x > 0.7, x < -0.7)
        aim = torch.where(goes_right == tacks, -0.7071, 0.7071)  # the sine of the angle to the wind that we want
        turn = 1 + (across < aim - 0.13).long() - (across > aim + 0.13).long()
        return torch.where(towards < 0.0, torch.where(across > 0.0, 0, 2), turn)  # first of all turn round into the wind

    return act


by_chance, by_rule = (
    run_episodes("my/Sail-v0", player, episodes=512).returns.mean().item() for player in (at_random(), sailor)
)
print(f"by chance {by_chance:6.1f}\nby rule   {by_rule:6.1f}  of 100")
assert by_chance < 15 < 50 < by_rule < 100

# %% [markdown]
# ## Train it
#
# A registered environment can be trained. On a GPU, leave `num_envs` out to train with thousands of boats.

# %%
from gpuvec.learners.ppo import PPOArgs, train

device = "cuda:0" if torch.cuda.is_available() else "cpu"
result = train(
    PPOArgs(
        env="my/Sail-v0", num_envs=64, num_steps=64, num_iterations=40, num_minibatches=8, learning_rate=3e-3, gamma=0.98,
        gae_lambda=0.9, ent_coef=0.003, device=device,
    )
)  # fmt: skip
for metrics in result.history[4::5]:
    print(f"{metrics['steps']:7} steps  return {metrics['last_return']:5.1f}  {'=' * round(metrics['last_return'] / 2)}")

learned = evaluate(result.network, "my/Sail-v0", episodes=512, device=device)
print(f"\nlearned   {learned.mean():6.1f}  of 100")
assert learned.mean() > by_rule

# %% [markdown]
# ## Look at an episode
#
# `fetch_episode` records an episode, state by state, on the host.


# %%
def act(obs):
    return result.network.control(result.network.policy(obs).mode())


envs = gymnasium.make_vec("my/Sail-v0", num_envs=4)
with torch.no_grad():
    episodes = gpuvec.fetch_episode(envs, act, rows=[0, 1, 2, 3], seed=4)
envs.close()


def chart(episode):
    """The river from above, 2 pixels a metre; every 20 s a dot."""
    canvas = Canvas(240, 1000, scale=2.0, origin=(120.0, 20.0))
    for bank in (-60.0, 50.0):
        canvas.polygon([(bank, -20.0), (bank + 10.0, -20.0), (bank + 10.0, 500.0), (bank, 500.0)], (210, 190, 150))
    course = list(zip(episode.states["x"], episode.states["y"], strict=True))
    canvas.line(course, (30, 90, 180), width=3)
    for place in course[::20]:
        canvas.circle(place, 3.0, (200, 60, 40))
    return canvas.array()


for episode in episodes:
    print(f"{episode.states['y'][-1]:.0f} m upwind in {len(episode.rewards)} s")
river = Image.fromarray(np.concatenate([chart(episode) for episode in episodes], axis=1))

tacks = [int((np.diff(np.sign(episode.states["heading"])) != 0).sum()) for episode in episodes]
print("tacks:", tacks)
assert all(2 <= count <= 40 for count in tacks)
river.resize((river.width // 2, river.height // 2))

# %% [markdown]
# The policy tacks from bank to bank, and not too often.
#
# **Next:** [an environment with many agents](own_game.py), or [publish your environment as a package](package.py).
