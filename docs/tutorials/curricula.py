# %% [markdown]
# # Curricula and domain randomisation
#
# After this tutorial you can give each row its own parameters, draw parameters in each episode, and make a task harder while a
# policy learns.
#
# | you want | use |
# | --- | --- |
# | another value in each row | `per_env=(name,)`, and `set_attr` to change the values |
# | another value in each episode | a field of the state that `reset` draws |
# | a harder task after some iterations | `train(..., checkpoint=...)` with other `params` |
# | a harder task for rows that succeed | your own loop around a learner, with `per_env` |
# | easier first states | parameters of `reset`, or [a reset pool](episodes.py) |
#
# ## A value for each row
#
# Parameters are constants of the compiled kernels. Those in `per_env` are stored in an array with one value for each row, so
# another value compiles nothing:

# %%
import dataclasses
from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import Key, SingleAgentEnv, normal, uniform
from gpuvec.learners.evaluation.evaluate import evaluate, run_episodes
from gpuvec.learners.evaluation.players import policy
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.training import make_learner

E = 512
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, per_env=("pole_mass",), pole_mass=np.linspace(0.05, 0.5, E))
device = str(envs.device)
version = envs.kernel_version
envs.reset(seed=0)
envs.set_attr("pole_mass", np.linspace(0.1, 1.0, E))
assert envs.kernel_version == version
print(f"row 0: {envs.params_of_row(0).pole_mass:.2f} kg, row {E - 1}: {envs.params_of_row(E - 1).pole_mass:.2f} kg")
envs.close()

# %% [markdown]
# Parameters that shape spaces or tables, such as the number of agents, cannot differ between rows.
#
# ## A value for each episode
#
# `train` and `gpuvec train` take one value of a parameter for all rows. To train over a range, declare the bounds as
# parameters, draw the value in `reset`, and keep it in the state. The policy does not observe it here, so it has to act well
# for all of them. Add it to `observe` if the real system measures it, or to `critic_observation`, which only the value
# function observes.


# %%
class State(NamedTuple):
    height: float  # [m]
    speed: float  # [m/s]
    gravity: float  # [m/s^2], of this episode


class Params(NamedTuple):
    gravity_low: float = 9.8  # [m/s^2]
    gravity_high: float = 9.8  # [m/s^2]
    thrust: float = 20.0  # [m/s^2]
    dt: float = 0.05  # [s]


def reset(key: Key, p: Params) -> State:
    return State(uniform(key, 0, -1.0, 1.0), 0.0, uniform(key, 1, p.gravity_low, p.gravity_high))


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    thrust = p.thrust if action == 1 else 0.0
    speed = s.speed + p.dt * (thrust - s.gravity + 0.5 * normal(key, 0))
    height = s.height + p.dt * speed
    return State(height, speed, s.gravity), 1.0 - abs(height) / 5.0, abs(height) > 5.0


def observe(s: State, p: Params) -> tuple[float, float]:
    return s.height, s.speed


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)


HOVER = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=200)
gpuvec.register("my/RandomHover-v0", HOVER)

# %% [markdown]
# Evaluations use the environment's own parameters, not those of the training. So a training over a range is still measured on
# the real task. `evaluate_params` chooses others.

# %%
settings = PPOArgs(env="my/RandomHover-v0", device=device, num_envs=128, num_steps=32, num_minibatches=8, num_iterations=20)
wide = train(dataclasses.replace(settings, params={"gravity_low": 5.0, "gravity_high": 18.0}))
for gravity in (5.0, 9.8, 18.0):
    fixed = {"gravity_low": gravity, "gravity_high": gravity}
    mean = evaluate(wide.network, settings.env, seed=1, device=device, params=fixed).mean()
    print(f"gravity {gravity:4.1f}: mean return {mean:5.1f} of 200")
    assert mean > 150

# %% [markdown]
# The same in a shell is
#
# ```console
# gpuvec train --env my_package:my/RandomHover-v0 --params gravity_low 5 gravity_high 18
# ```
#
# ## A curriculum in stages
#
# `train(..., checkpoint=...)` continues a training with other settings. Parameters of the environment are among them, if they
# do not change its spaces. In MountainCar the first stage has the whole force of the engine, the second 85 %, and the last
# 70 %. `num_iterations` counts from the beginning of the first stage.

# %%
CAR, WEAK = "gpuvec/MountainCar-v0", {"force": 0.0007}
base = PPOArgs(env=CAR, device=device, num_envs=64, num_steps=64, num_minibatches=8, anneal_lr=False, normalize=True)
stages = {15: {}, 20: {"force": 0.00085}, 25: WEAK}  # iterations from the beginning: parameters
checkpoint = None
for iterations, params in stages.items():
    result = train(dataclasses.replace(base, params=params, num_iterations=iterations), checkpoint=checkpoint)
    checkpoint = result.checkpoint
    first, last = (result.history[k]["iteration"] for k in (0, -1))
    print(f"iterations {first} to {last} with {params or 'the whole force'}")
assert first == 21
mean = evaluate(result.network, CAR, seed=5, device=device, params=WEAK).mean()
print(f"mean return with 70 % of the force {mean:.1f}")

# %% [markdown]
# Whether stages help depends on the task. Compare them with a training at once of as many steps, with five seeds or more.
#
# Moments of Adam, random streams and the environments' states continue from stage to stage, and episodes that run at the
# change end under the new parameters. With `run_folder=`, give each stage its own folder.
#
# On a GPU the stages of an iteration are CUDA graphs of compiled kernels. A `set_attr` for all rows, or a new reset pool, in
# `on_iteration` compiles kernels again, and the next iteration raises {class}`~gpuvec.errors.StaleGraphError`. On a CPU it
# works. Write a curriculum in stages, or with `per_env`, and it works on both.
#
# ## A curriculum for each row
#
# {func}`~gpuvec.learners.training.make_learner` returns the learner that `train` iterates, in an environment of yours. Values
# in `per_env` are data, so they may change between iterations on a GPU, too. Here each row has its own gravity, which grows
# while the policy keeps the pole up.

# %%
POLE, rows = "gpuvec/CartPole-v1", 128
args = PPOArgs(env=POLE, device=device, num_envs=rows, num_steps=32, num_minibatches=8, num_iterations=30).resolved(device)
gravity = np.full(rows, 9.8)
envs = gymnasium.make_vec(
    POLE, num_envs=rows, device=device, autoreset_mode="SameStep", buffers=1, per_env=("gravity",), gravity=gravity
)
learner = make_learner(args, envs)
if device != "cpu":
    learner.capture()
for _ in range(args.num_iterations):
    learner.iterate()
    if learner.read()["return"] > 60.0:  # nan while no episode has ended
        gravity = np.minimum(gravity * np.linspace(1.0, 1.2, rows), 24.8)
        envs.set_attr("gravity", gravity)
print(f"gravity of the rows: {gravity.min():.1f} to {gravity.max():.1f}")
assert gravity.min() == 9.8 < gravity.max()

# %% [markdown]
# The gravity of each row grows at its own speed, and the first row keeps the easy task, so that the policy does not forget it.
# This loop writes no run folder; `learner.state_dict()` is a checkpoint.

# %%
network = learner.policy.network
for value in (9.8, 24.8):
    mean = run_episodes(POLE, policy(network), seed=5, device=device, params={"gravity": value}).returns.mean()
    print(f"gravity {value:4.1f}: mean return {mean:.1f}")
    assert mean > 100
learner.release_graphs()
envs.close()

# %% [markdown]
# **Next:** [scaling up on one GPU](scaling.py).
