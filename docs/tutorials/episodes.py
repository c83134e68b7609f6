# %% [markdown]
# # Resets, pools and logs
#
# After this tutorial you can seed rows, choose the autoreset mode, reset chosen rows from chosen states, and record what
# happens in an episode. The environment is MountainCar: a car that is too weak for the hill that it has to climb.

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
# `reset(seed=s)` gives row `k` the random numbers of the pair `(s, k)`. They do not depend on the number of rows, so an
# experiment with four rows is the first part of one with a thousand.

# %%
few = gymnasium.make_vec(CAR, num_envs=4).reset(seed=3)[0]
many = gymnasium.make_vec(CAR, num_envs=1000).reset(seed=3)[0]
assert (many[:4] == few).all()
assert many[:, 0].unique().numel() > 900  # and rows differ from each other

# %% [markdown]
# A list of seeds gives each row its own stream, independent of its position:

# %%
listed = gymnasium.make_vec(CAR, num_envs=3).reset(seed=[11, 22, 11])[0]
assert (listed[0] == listed[2]).all()
assert (listed[0] != listed[1]).any()

# %% [markdown]
# ## Three autoreset modes
#
# Gymnasium has three autoreset modes. To compare them, put a car just below the flag at full speed, so that its episode ends in
# the first step, and look at the next steps. MountainCar's reward is -1 per step.

# %%
for mode in ("NextStep", "SameStep", "Disabled"):
    envs = gymnasium.make_vec(CAR, num_envs=1, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.set_state({"x": [0.45], "v": [0.07]})
    steps = []
    for _ in range(3):
        obs, reward, terminated, _, infos = envs.step(torch.ones(1, dtype=torch.int64, device=envs.device))
        steps.append(f"at {obs[0, 0]:5.2f} reward {reward.item():2.0f}{' end' if terminated else '    '}")
    print(f"{mode:9}", " | ".join(steps), f"| final_obs at {infos['final_obs'][0, 0]:.2f}" if "final_obs" in infos else "|")
    envs.close()

# %% [markdown]
# - **NextStep**, the default as in Gymnasium: the step that ends an episode returns its last observation. The next step
#   ignores the action, gives reward 0 and returns a new start. A learner has to leave this step out.
# - **SameStep**: every step is a transition. The observation after the end is the start of the new episode, and the last
#   observation is in `infos["final_obs"]`. The bundled learners use this mode.
# - **Disabled**: nothing is reset automatically. A row that has ended does not change and gives reward 0 until you reset it.
#
# ## Reset chosen rows
#
# `reset` takes a mask of rows; the other rows continue unchanged. Environments name parameters that may be given for one
# reset, here the bounds between which the car starts.

# %%
envs = gymnasium.make_vec(CAR, num_envs=1000)
before, _ = envs.reset(seed=0)
mask = torch.arange(1000, device=envs.device) < 10
after, _ = envs.reset(options={"reset_mask": mask, "low": 0.3, "high": 0.4})
assert (after[10:] == before[10:]).all()
assert ((after[:10, 0] >= 0.3) & (after[:10, 0] < 0.4)).all()

# %% [markdown]
# `get_state` and `set_state` read and write the physical state, and `state_dict` everything that the next step depends on,
# random streams and times included. A loaded state continues bit for bit:

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
# ## Reset pools
#
# Within 200 steps random actions do not get the car out of the valley, so an agent that explores at random never reaches the
# goal. A *reset pool* is a set of states from which every new episode draws one. With starts ever further from the goal, the
# way to it can be learned in pieces. How near must a start be for random actions to succeed?
#
# The wrapper `RecordEpisodeStatistics` computes returns and lengths on the device and stores those of the last episodes.

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
# Fields that a pool does not contain are drawn as in any other reset, and `set_reset_pool(None)` removes the pool. The path of
# an `.npz` file may be given instead of the dictionary.
#
# ## Record an episode
#
# `fetch_episode` steps until an episode of the chosen rows has ended and returns every state, action and reward as NumPy
# arrays. The policy pushes in the direction in which the car moves, which solves the task.

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
# The car swings to the right, to the left, to the right, further each time, until it is over the edge. Recorded states can be
# written back into an environment and drawn. `render` draws only the rows that are indexed.

# %%
moments = np.linspace(0, steps, 4).astype(int)
envs.reset(seed=0)
for name, values in episode.states.items():
    envs.set_state({name: torch.as_tensor(values[moments], device=envs.device)})
strip = np.concatenate(envs.render(rows=range(4)), axis=1)
envs.close()
Image.fromarray(strip).resize((strip.shape[1] // 3, strip.shape[0] // 3))

# %% [markdown]
# **Next:** [write an environment](own_environment.py).
