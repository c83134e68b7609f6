# %% [markdown]
# # Environments and their buffers
#
# A vector environment of gpuvec is one object whose rows are thousands of environments. One kernel steps them all, and what
# it writes *is* what you get. This tutorial makes one, follows an array from the kernel to your code and back, and ends on
# four planets.
#
# Everything here runs on a GPU and on a CPU alike; `device="auto"`, the default, takes a GPU if there is one.

# %%
import gymnasium
import torch

import gpuvec

torch.manual_seed(0)
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4096, autoreset_mode="SameStep")
print(envs.device)
print(envs.single_observation_space)
print(envs.single_action_space)

# %% [markdown]
# ## One step
#
# `reset` and `step` are [Gymnasium's](https://gymnasium.farama.org/api/vector/). All that they return lies on the
# environment's device: no number has been copied to the host, and `step` has not waited for the kernel to finish.

# %%
obs, infos = envs.reset(seed=0)
actions = torch.randint(2, (4096,), device=envs.device)
obs, reward, terminated, truncated, infos = envs.step(actions)

for name, array in {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}.items():
    print(f"{name:10}  {tuple(array.shape)!s:10}  {array.dtype}  {array.device}")

assert str(obs.device) == envs.device

# %% [markdown]
# ## Where an episode ends
#
# In the mode `"SameStep"` a row whose episode ends begins the next one within the same step. So `obs` already shows the new
# start there, and what the old episode saw last is in `infos["final_obs"]`. Bootstrapping from `obs` instead is one of the
# commonest errors in reinforcement learning: let us see that the two differ.

# %%
while not terminated.any():
    obs, reward, terminated, truncated, infos = envs.step(torch.randint(2, (4096,), device=envs.device))

row = int(terminated.nonzero()[0])
print("row", row, "starts anew at the angle", obs[row, 2].item(), "and fell at", infos["final_obs"][row, 2].item())

twelve_degrees = 12 * torch.pi / 180
fell, start = infos["final_obs"][terminated], obs[terminated]
assert ((fell[:, 2].abs() > twelve_degrees) | (fell[:, 0].abs() > 2.4)).all()
assert (start.abs() <= 0.05).all()

# %% [markdown]
# ## New arrays in every step
#
# You may keep what a step returned for as long as you like. Each step writes to memory of its own, so this list is a
# recording, not eight names of one buffer:

# %%
recording = []
for _ in range(8):
    obs, *_ = envs.step(torch.randint(2, (4096,), device=envs.device))
    recording.append(obs)

assert len({array.data_ptr() for array in recording}) == 8

# %% [markdown]
# New arrays come from large pieces of memory that are cut up in advance, which costs a few microseconds of a step. Who counts
# these has two other choices. `buffers=2` makes a ring: every other step writes to the same place, and whoever keeps more
# than that reads the future.

# %%
ring = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4096, autoreset_mode="SameStep", buffers=2)
ring.reset(seed=0)
places = [ring.step(torch.zeros(4096, dtype=torch.int64, device=ring.device))[0].data_ptr() for _ in range(6)]
assert places[0] == places[2] == places[4] != places[1] == places[3] == places[5]
ring.close()

# %% [markdown]
# And `out=` names the place. A learner lets the kernel write straight into its storage, the row of time step `t`, and nothing
# is ever copied together:

# %%
T = 16
storage = torch.zeros((T, 4096, 4), device=envs.device)
rewards = torch.zeros((T, 4096), device=envs.device)
for t in range(T):
    envs.step(torch.randint(2, (4096,), device=envs.device), out={"obs": storage[t], "reward": rewards[t]})

assert (rewards == 1).all()
assert storage.isfinite().all() and (storage.abs().sum(dim=-1) > 0).all()

# %% [markdown]
# ## The same memory under other names
#
# Arrays leave and enter by [DLPack](https://dmlc.github.io/dlpack/latest/), the protocol by which array libraries hand each
# other memory. What comes out of another library's door is not a copy: a change made through one name shows under the other.

# %%
obs, *_ = envs.step(torch.randint(2, (4096,), device=envs.device))
shared = torch.from_dlpack(obs)  # as cupy.from_dlpack, jax.dlpack.from_dlpack or, on a CPU, numpy.from_dlpack would
shared[0] = 42.0
assert (obs[0] == 42.0).all()
assert shared.data_ptr() == obs.data_ptr()

# %% [markdown]
# That `obs` was written to harms no environment, because outputs are not the state: this is kept apart, and `get_state`
# copies it out.

# %%
state = envs.get_state()
print({name: tuple(array.shape) for name, array in state.items()})
assert (state["x"][0] != 42.0).all()
envs.close()

# %% [markdown]
# ## Four planets at once
#
# Parameters are keywords of `make_vec`. One that is named in `per_env` is stored for every row, so a thousand rows can be on
# the Moon while others are on Jupiter, in the same kernel. How long does a pole stand when the cart is pushed at random?

# %%
planets = {"Moon": 1.6, "Mars": 3.7, "Earth": 9.8, "Jupiter": 24.8}  # m/s^2
each = 1024
gravity = [g for g in planets.values() for _ in range(each)]
envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4 * each, per_env=("gravity",), gravity=gravity)
envs.reset(seed=0)

generator = torch.Generator(envs.device).manual_seed(0)
length = torch.zeros(4 * each, device=envs.device)
standing = torch.ones(4 * each, dtype=torch.bool, device=envs.device)
while standing.any():
    actions = torch.randint(2, (4 * each,), generator=generator, device=envs.device)
    _, _, terminated, truncated, _ = envs.step(actions)
    length += standing
    standing &= ~(terminated | truncated)

lasted = dict(zip(planets, length.view(4, each).mean(dim=1).tolist(), strict=True))
for planet, steps in lasted.items():
    print(f"{planet:8} {steps:5.1f} steps  {'=' * round(steps)}")

assert list(lasted.values()) == sorted(lasted.values(), reverse=True)
envs.close()

# %% [markdown]
# The stronger the pull, the sooner it falls; but on the Moon, too, it is the pushes that bring it down. Whether a trained
# policy still balances elsewhere is a question of one line: make the environment with another `gravity`.
#
# **Next:** [where actions come from](sampling.py), or [what happens at the end of an episode](episodes.py).
