# %% [markdown]
# # Scaling up on one GPU
#
# After this tutorial you can find the number of environments that fills a machine, the memory that an environment takes, and
# the cost of many agents.
#
# The figures are those of the machine that built this page. On a GPU the same cells use larger sizes; figures of an H200 are on
# the page [Benchmarks](../benchmarks.md).

# %%
import time

import gymnasium
import torch

import gpuvec

on_gpu = torch.cuda.is_available()
POLE, GRID = "gpuvec/CartPole-v1", "gpuvec/TagGridWorld-v0"

# %% [markdown]
# ## Measure time
#
# A GPU works asynchronously: `step` returns when the kernel is in the queue. Read the clock only when the device is idle, and
# leave out compilation and capture. Launches take the host several microseconds, in which a kernel steps a hundred thousand
# environments, so on a GPU the launches are captured in a CUDA graph and replayed together.


# %%
def seconds(work, repeat=3):
    """Of one call of `work`, the best of some."""

    def idle():
        if on_gpu:
            torch.cuda.synchronize()

    work()
    took = []
    for _ in range(repeat):
        idle()
        began = time.perf_counter()
        work()
        idle()
        took.append(time.perf_counter() - began)
    return min(took)


def steps_per_second(envs, actions, steps=32):
    """Of environments that are stepped with the same actions again and again; in a graph where there is a GPU."""
    envs.reset(seed=0)

    def play():
        for _ in range(steps):
            envs.step(actions)

    play()
    if on_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            play()
        play = graph.replay
    return envs.num_envs * steps / seconds(play)


# %% [markdown]
# ## More environments
#
# With a ring of output buffers, memory use does not grow:

# %%
rates = {}
for num_envs in (1, 64, 4096, 262_144, 1_048_576) if on_gpu else (1, 16, 256, 4096, 65_536):
    envs = gymnasium.make_vec(POLE, num_envs=num_envs, autoreset_mode="SameStep", buffers=2)
    actions = torch.arange(num_envs, device=envs.device) % 2
    rates[num_envs] = steps_per_second(envs, actions)
    print(f"{num_envs:9,} environments  {rates[num_envs] / 1e6:10.2f} M steps/s")
    envs.close()

sizes = list(rates)
assert rates[sizes[2]] > 20 * rates[1]

# %% [markdown]
# Up to some number of environments the time of a step is constant. Beyond it the machine is full, and twice the number takes
# twice the time. Train near this number.
#
# More environments do not change the existing ones. Row `k` has its own key, so the first rows of a large batch compute the
# same as a small batch:


# %%
def after_fifty_steps(num_envs):
    envs = gymnasium.make_vec(POLE, num_envs=num_envs, autoreset_mode="SameStep")
    envs.reset(seed=3)
    for t in range(50):
        obs, *_ = envs.step((torch.arange(num_envs, device=envs.device) + t) % 3 % 2)
    envs.close()
    return obs


assert torch.equal(after_fifty_steps(16), after_fifty_steps(5000)[:16])

# %% [markdown]
# ## Many steps in one kernel
#
# If the actions need no network, `rollout` runs all steps in one kernel, without the host. This shows the cost of Python with
# 64 environments:

# %%
envs = gymnasium.make_vec(POLE, num_envs=64, autoreset_mode="SameStep", buffers=2)
actions = torch.zeros((256, 64), dtype=torch.int64, device=envs.device)
envs.reset(seed=0)


def by_steps():
    for t in range(256):
        envs.step(actions[t])


one_by_one, at_once = seconds(by_steps), seconds(lambda: envs.rollout(256, policy=actions))
print(f"256 steps one by one: {1e3 * one_by_one:.2f} ms, by one kernel: {1e3 * at_once:.2f} ms")
envs.close()

# %% [markdown]
# ## Memory per environment
#
# `state_dict` holds everything that the next step depends on. The difference between two small batches gives the memory per
# environment, without what all environments share:


# %%
def weight(num_envs):
    envs = gymnasium.make_vec(POLE, num_envs=num_envs, autoreset_mode="SameStep")
    envs.reset(seed=0)
    kept = sum(array.numel() * array.element_size() for array in envs.state_dict()["buffers"].values())
    observed = envs.step(torch.zeros(num_envs, dtype=torch.int64, device=envs.device))
    outputs = [*observed[:4], observed[4]["final_obs"], observed[4]["_final_obs"]]
    envs.close()
    return kept, sum(array.numel() * array.element_size() for array in outputs)


kept, outputs = (large - small for small, large in zip(weight(1000), weight(2000), strict=True))
print(
    f"state {kept / 1000:.0f} bytes, outputs of a step {outputs / 1000:.0f} bytes; a million: {(kept + outputs) / 1000:.0f} MB"
)
assert kept / 1000 < 64

# %% [markdown]
# ## More agents
#
# If each of `A` agents observes all others, observations grow with the square of `A`. The spaces show it without a step:

# %%
for taggers in (4, 49, 499):
    for full in (True, False):
        envs = gymnasium.make_vec(GRID, num_envs=1, num_taggers=taggers, use_full_observation=full)
        agents, features = envs.single_observation_space.shape
        sight = "sees everybody" if full else "sees the nearest"
        size = 4 * agents * features / 1e3
        print(f"{agents:4} agents, each {sight:16}: {features:5} numbers, {size:9,.1f} kB in each environment")
        envs.close()

# %% [markdown]
# This compares 200 agents that observe all others with 200 agents that observe the nearest ones:

# %%
agent_rates = {}
num_envs = 500 if on_gpu else 20
for full in (True, False):
    envs = gymnasium.make_vec(GRID, num_envs=num_envs, num_taggers=199, use_full_observation=full, buffers=2)
    actions = torch.randint(5, (num_envs, 200), device=envs.device)
    agent_rates[full] = 200 * steps_per_second(envs, actions, steps=8)
    print(f"{'everybody' if full else 'the nearest':12} {agent_rates[full] / 1e6:9.2f} M agent steps/s")
    envs.close()

# %% [markdown]
# Smaller observations make steps faster and learning easier. Decide what agents observe before you choose a larger machine.
#
# ## Limits
#
# - Steps per second are not learning. Beyond some number of environments a learner gains more from updating more often or
#   training longer. `gpuvec train` starts from [tuned](../tuned.md) sizes.
# - What does not fit raises `OutOfMemoryError` with the bytes that are needed and free: see
#   [Troubleshooting](../troubleshooting.md).
# - `gpuvec bench` measures with more care: see [how it is measured](../benchmark_method.md).
