# %% [markdown]
# # Scaling up on one GPU
#
# How many environments should you take? As many as the machine is not bored by. This tutorial measures where that is, what an
# environment weighs, and what many agents cost. All figures below are those of the machine that built this page; on a GPU the
# same cells take larger sizes. What one H200 does is on the page [Benchmarks](../benchmarks.md).

# %%
import time

import gymnasium
import torch

import gpuvec

on_gpu = torch.cuda.is_available()
POLE, GRID = "gpuvec/CartPole-v1", "gpuvec/TagGridWorld-v0"

# %% [markdown]
# ## A fair clock
#
# A GPU works behind the host's back: `step` returns when the kernel is in the queue, not when it is done. So a clock is read
# only when the device is idle, and what is compiled or captured is left out. On a GPU the host would also be the slowest
# part: to launch a kernel takes it some microseconds, in which a kernel can step a hundred thousand environments. A CUDA
# graph holds many launches and replays them by one.


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
# With a ring of output buffers, so that memory is not what we measure:

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
# At first a step takes the same time however many environments there are: more of them are free. From some size on the
# machine is full, and twice as many take twice as long. The bend is where to train.
#
# More environments change nothing for those that were there before. Row `k` draws by its own key, so the first rows of a
# large batch do what the small batch did:


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
# ## Many steps at once
#
# If actions need no network, the host can be left out altogether: `rollout` plays all steps by one kernel. How much does
# Python cost on this machine, with 64 environments?

# %%
envs = gymnasium.make_vec(POLE, num_envs=64, autoreset_mode="SameStep", buffers=2)
actions = torch.zeros((256, 64), dtype=torch.int64, device=envs.device)
envs.reset(seed=0)


def by_steps():
    for t in range(256):
        envs.step(actions[t])


one_by_one, at_once = seconds(by_steps), seconds(lambda: envs.rollout(256, policy=actions))
print(f"256 steps one by one: {1e3 * one_by_one:.2f} ms, by one kernel: {1e3 * at_once:.2f} ms")
assert at_once < one_by_one
envs.close()

# %% [markdown]
# ## What an environment weighs
#
# An environment is what the next step depends on, and `state_dict` holds just that. So the weight of a million can be known
# from two small batches, as the difference is without what all of them share:


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
# In a game of `A` agents in which everybody sees everybody, observations grow as the square of `A`. Spaces tell without a
# step:

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
# So what does it cost to see everybody? The same 200 agents, once with everything in view and once with what matters to them:

# %%
agent_rates = {}
num_envs = 500 if on_gpu else 20
for full in (True, False):
    envs = gymnasium.make_vec(GRID, num_envs=num_envs, num_taggers=199, use_full_observation=full, buffers=2)
    actions = torch.randint(5, (num_envs, 200), device=envs.device)
    agent_rates[full] = 200 * steps_per_second(envs, actions, steps=8)
    print(f"{'everybody' if full else 'the nearest':12} {agent_rates[full] / 1e6:9.2f} M agent steps/s")
    envs.close()

assert agent_rates[False] > 1.5 * agent_rates[True]

# %% [markdown]
# A crowd that observes less is played faster and learned more easily. Decide what agents see before you decide on a larger
# machine.
#
# ## How far it goes
#
# - Steps per second are not learning. Beyond some size more environments give a learner more of the same, and what helps is
#   to learn from them more often or for longer. `gpuvec train` starts from sizes that were [tuned](../tuned.md).
# - What does not fit raises `OutOfMemoryError`, which says how much was asked for and how much there is: see
#   [Troubleshooting](../troubleshooting.md).
# - `gpuvec bench` measures all this with more care, on [the terms of the records](../benchmarks.md).
