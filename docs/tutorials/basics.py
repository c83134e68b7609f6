# %% [markdown]
# # Environments and their buffers
#
# After this tutorial you can create a vector environment, step it, find the last observation of an episode, choose who owns the
# arrays, and give every row its own parameters.
#
# A vector environment is one object with thousands of environments, one per row. One kernel steps all rows, and the arrays
# that you receive are the memory that it wrote. Everything runs on a GPU and on a CPU; `device="auto"`, the default, selects
# a GPU if there is one.

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
# `reset` and `step` are [Gymnasium's](https://gymnasium.farama.org/api/vector/). All arrays that they return are on the
# environment's device: nothing is copied to the host, and `step` does not wait for the kernel to finish.

# %%
obs, infos = envs.reset(seed=0)
actions = torch.randint(2, (4096,), device=envs.device)
obs, reward, terminated, truncated, infos = envs.step(actions)

for name, array in {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}.items():
    print(f"{name:10}  {tuple(array.shape)!s:10}  {array.dtype}  {array.device}")

assert str(obs.device) == envs.device

# %% [markdown]
# ## The end of an episode
#
# In `"SameStep"` mode a row whose episode ends starts the next one within the same step. `obs` then shows the new start, and
# the last observation of the old episode is in `infos["final_obs"]`. Bootstrapping from `obs` is one of the commonest errors
# in reinforcement learning. The two differ:

# %%
while not terminated.any():
    obs, reward, terminated, truncated, infos = envs.step(torch.randint(2, (4096,), device=envs.device))

row = int(terminated.nonzero()[0])
print("row", row, "starts again at the angle", obs[row, 2].item(), "and fell at", infos["final_obs"][row, 2].item())

twelve_degrees = 12 * torch.pi / 180
fell, start = infos["final_obs"][terminated], obs[terminated]
assert ((fell[:, 2].abs() > twelve_degrees) | (fell[:, 0].abs() > 2.4)).all()
assert (start.abs() <= 0.05).all()

# %% [markdown]
# ## New arrays in every step
#
# Each step writes to new memory, so you may hold its results for as long as you like. This list is a recording of eight steps:

# %%
recording = []
for _ in range(8):
    obs, *_ = envs.step(torch.randint(2, (4096,), device=envs.device))
    recording.append(obs)

assert len({array.data_ptr() for array in recording}) == 8

# %% [markdown]
# New arrays are views of larger allocations, which costs a few microseconds per step. There are two alternatives. `buffers=2`
# creates a ring of two sets: every other step writes to the same memory, so an array is valid until the step after next.

# %%
ring = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4096, autoreset_mode="SameStep", buffers=2)
ring.reset(seed=0)
places = [ring.step(torch.zeros(4096, dtype=torch.int64, device=ring.device))[0].data_ptr() for _ in range(6)]
assert places[0] == places[2] == places[4] != places[1] == places[3] == places[5]
ring.close()

# %% [markdown]
# `out=` names the memory. A learner lets the kernel write directly into row `t` of its storage, without copies:

# %%
T = 16
storage = torch.zeros((T, 4096, 4), device=envs.device)
rewards = torch.zeros((T, 4096), device=envs.device)
for t in range(T):
    envs.step(torch.randint(2, (4096,), device=envs.device), out={"obs": storage[t], "reward": rewards[t]})

assert (rewards == 1).all()
assert storage.isfinite().all() and (storage.abs().sum(dim=-1) > 0).all()

# %% [markdown]
# ## The same memory in several libraries
#
# Arrays are exchanged by [DLPack](https://dmlc.github.io/dlpack/latest/), the protocol by which array libraries share memory.
# The result is not a copy: a change through one name is visible through the other.

# %%
obs, *_ = envs.step(torch.randint(2, (4096,), device=envs.device))
shared = torch.from_dlpack(obs)  # as cupy.from_dlpack, jax.dlpack.from_dlpack or, on a CPU, numpy.from_dlpack would
shared[0] = 42.0
assert (obs[0] == 42.0).all()
assert shared.data_ptr() == obs.data_ptr()

# %% [markdown]
# Writing to `obs` does not change the environment, because the outputs are not the state. `get_state` returns a copy of the
# state.

# %%
state = envs.get_state()
print({name: tuple(array.shape) for name, array in state.items()})
assert (state["x"][0] != 42.0).all()
envs.close()

# %% [markdown]
# ## Parameters per row
#
# Parameters are arguments of `make_vec`. A parameter named in `per_env` is stored for every row, so a thousand rows can have
# the Moon's gravity and others Jupiter's, in the same kernel. How long does a pole stand when the cart is pushed at random?

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
# The stronger the gravity, the sooner the pole falls; on the Moon the random pushes bring it down as well. To evaluate a
# trained policy on another planet, create the environment with another `gravity`.
#
# **Next:** [sampling actions](sampling.py), or [the end of an episode](episodes.py).
