# %% [markdown]
# # Resets, pools and logs
#
# An episode ends, another begins, and somewhere in between lie most of the bugs of reinforcement learning code. This tutorial
# shows who resets what and when, begins episodes where *you* want them to begin, and reads what happened in them. The
# environment is MountainCar: a car too weak for the hill that it should climb.

# %%
import gymnasium
import numpy as np
import torch
from PIL import Image

import gpuvec
from gpuvec.vector.wrappers import RecordEpisodeStatistics

CAR = "gpuvec/MountainCar-v0"

# %% [markdown]
# ## Seeds
#
# `reset(seed=s)` gives row `k` the random numbers of the pair `(s, k)`. They do not depend on how many rows there are, so an
# experiment with four rows is the beginning of the one with a thousand.

# %%
few = gymnasium.make_vec(CAR, num_envs=4).reset(seed=3)[0]
many = gymnasium.make_vec(CAR, num_envs=1000).reset(seed=3)[0]
assert (many[:4] == few).all()
assert many[:, 0].unique().numel() > 900  # and rows differ from each other

# %% [markdown]
# A list of seeds gives each row a stream of its own, whatever its place:

# %%
listed = gymnasium.make_vec(CAR, num_envs=3).reset(seed=[11, 22, 11])[0]
assert (listed[0] == listed[2]).all()
assert (listed[0] != listed[1]).any()

# %% [markdown]
# ## Three ways to begin anew
#
# Gymnasium knows three modes of automatic reset. To see them at work, put a car just below the flag and at full speed, so
# that its episode ends in the first step, and look at what the next ones return. MountainCar's reward is -1 for each step.

# %%
for mode in ("NextStep", "SameStep", "Disabled"):
    envs = gymnasium.make_vec(CAR, num_envs=1, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.set_state({"x": [0.45], "v": [0.07]})
    told = []
    for _ in range(3):
        obs, reward, terminated, _, infos = envs.step(torch.ones(1, dtype=torch.int64, device=envs.device))
        told.append(f"at {obs[0, 0]:5.2f} reward {reward.item():2.0f}{' end' if terminated else '    '}")
    print(f"{mode:9}", " | ".join(told), f"| final_obs at {infos['final_obs'][0, 0]:.2f}" if "final_obs" in infos else "|")
    envs.close()

# %% [markdown]
# - **NextStep**, the default as in Gymnasium: the step that ends an episode shows its last observation. The step after it
#   ignores the action, gives no reward and shows a new start. Such a step is no experience; a learner has to leave it out.
# - **SameStep**: every step is experience. The observation after the end is that of the new episode, and the old one's last
#   is in `infos["final_obs"]`. Our learners use this mode.
# - **Disabled**: nothing begins by itself. A row that is over stays as it is and gives no reward until you reset it.
#
# ## Some rows, and starts of your choice
#
# `reset` takes a mask of rows; the others go on as if nothing had happened. Environments name parameters that may be given
# for one reset, here the bounds between which the car starts.

# %%
envs = gymnasium.make_vec(CAR, num_envs=1000)
before, _ = envs.reset(seed=0)
mask = torch.arange(1000, device=envs.device) < 10
after, _ = envs.reset(options={"reset_mask": mask, "low": 0.3, "high": 0.4})
assert (after[10:] == before[10:]).all()
assert ((after[:10, 0] >= 0.3) & (after[:10, 0] < 0.4)).all()

# %% [markdown]
# `get_state` and `set_state` read and write the physical state itself, and `state_dict` all that the next step depends on,
# random numbers and times included. What is loaded goes on bit for bit:

# %%
saved = envs.state_dict()


def a_hundred_steps():
    generator = torch.Generator(envs.device).manual_seed(5)
    for _ in range(100):
        obs, *_ = envs.step(torch.randint(3, (1000,), generator=generator, device=envs.device))
    return obs


once = a_hundred_steps()
envs.load_state_dict(saved)
assert (a_hundred_steps() == once).all()

# %% [markdown]
# ## A pool of starts
#
# Within an episode's 200 steps chance does not get the car out of the valley, so an agent that explores by chance never sees
# the goal. A *reset pool* is a set of states of which every new episode draws one. With starts closer and closer to the goal,
# the way back from it can be learned piece by piece. How near must a start be for chance to succeed?
#
# The wrapper `RecordEpisodeStatistics` counts returns and lengths on the device, and keeps the last episodes until someone
# asks.

# %%
envs = RecordEpisodeStatistics(gymnasium.make_vec(CAR, num_envs=1000), ring=1000)


def share_that_arrives():
    envs.reset(seed=0)
    generator = torch.Generator(envs.device).manual_seed(1)
    for _ in range(200):
        envs.step(torch.randint(3, (1000,), generator=generator, device=envs.device))
    return (envs.statistics().returns > -200).mean()


shares = {"usual starts": share_that_arrives()}
for speed in (0.02, 0.03, 0.04, 0.05):
    climbing = np.linspace(0.0, 0.2, 100, dtype=np.float32)  # places on the slope below the flag, which is at 0.5
    envs.unwrapped.set_reset_pool({"x": climbing, "v": np.full(100, speed, np.float32)})
    shares[f"climbing at {speed}"] = share_that_arrives()

for name, share in shares.items():
    print(f"{name:16} {share:6.1%}  {'=' * round(40 * float(share))}")
assert shares["usual starts"] < 0.01
assert shares["climbing at 0.05"] > 0.9

# %% [markdown]
# Fields that a pool does not hold are drawn as in any other reset, and `set_reset_pool(None)` takes it away. An `.npz` file
# will do in place of the dictionary.
#
# ## Reading a log
#
# Statistics say how an episode ended, not why. `fetch_episode` plays until chosen rows have ended an episode and hands over
# every state, action and reward as NumPy arrays. The policy here pushes in the direction in which the car rolls, which is all
# that the puzzle asks for.

# %%
envs.close()
envs = gymnasium.make_vec(CAR, num_envs=4, render_mode="rgb_array")


def swing(obs):
    return torch.where(obs[:, 1] < 0.0, 0, 2)


(episode,) = gpuvec.fetch_episode(envs, swing, rows=[3], seed=0)
position, velocity, steps = episode.states["x"], episode.states["v"], len(episode.rewards)
print(f"row 3 arrived: {episode.terminated}, after {steps} steps, with a return of {episode.rewards.sum():.0f}")
for t in range(0, steps + 1, 8):
    place = round(40 * float(position[t] + 1.2) / 1.8)
    print(f"{t:4}  {' ' * place}{'<' if velocity[t] < 0 else '>'}")
assert episode.terminated
assert position[-1] >= 0.5

# %% [markdown]
# To the right, to the left, to the right: the swings widen until the car is over the edge. States can be put back into an
# environment, so what was logged can be drawn afterwards. `render` draws only the rows that it is asked for.

# %%
moments = np.linspace(0, steps, 4).astype(int)
envs.reset(seed=0)
for name, values in episode.states.items():
    envs.set_state({name: torch.as_tensor(values[moments], device=envs.device)})
strip = np.concatenate(envs.render(rows=range(4)), axis=1)
envs.close()
Image.fromarray(strip).resize((strip.shape[1] // 3, strip.shape[0] // 3))

# %% [markdown]
# **Next:** [an environment of your own](own_environment.py).
