"""PettingZoo's tests pass on TagContinuous; SuperSuit turns it into a vector environment of independent copies."""
# /// script
# dependencies = ["supersuit==3.11.0", "pettingzoo==1.27.0"]
#
# [tool.client]
# title = "PettingZoo with SuperSuit"
# lines = 0
# change = '`gpuvec.parallel_env("gpuvec/TagContinuous-v0")`'
# ///

import numpy as np
import supersuit
from pettingzoo.test import parallel_api_test, parallel_seed_test

import gpuvec

TAG = {"num_taggers": 1, "num_runners": 3, "max_episode_steps": 30}
COPIES = 2


def make():
    """The game."""
    return gpuvec.parallel_env("gpuvec/TagContinuous-v0", **TAG)


parallel_api_test(make(), num_cycles=200)
parallel_seed_test(make, num_cycles=100)

padded = supersuit.black_death_v3(make())  # agents that left stay, with observations and rewards of 0
rows = supersuit.pettingzoo_env_to_vec_env_v1(padded)
envs = supersuit.concat_vec_envs_v1(rows, COPIES, num_cpus=0, base_class="gymnasium")
agents = len(make().possible_agents)
assert envs.num_envs == COPIES * agents
obs, _ = envs.reset(seed=3)
assert not np.array_equal(obs[:agents], obs[agents:]), "the copies begin alike"

# The first copy must play as a game of its own does, whatever the second is given.
known = make()
names = known.possible_agents
first, _ = known.reset(seed=3)
np.testing.assert_array_equal(obs[:agents], [first[name] for name in names])
rng = np.random.default_rng(0)
space = envs.action_space
for _ in range(25):
    actions = rng.integers(0, space.nvec if hasattr(space, "nvec") else space.n, (envs.num_envs, *(space.shape or ())))
    obs, rewards, *_ = envs.step(actions)
    alive = list(known.agents)
    if len(alive) < agents:
        break
    found, reward, *_ = known.step({name: actions[names.index(name)] for name in alive})
    for name in known.agents:
        np.testing.assert_array_equal(obs[names.index(name)], found[name])
        assert rewards[names.index(name)] == np.float32(reward[name])
envs.close()
print(f"evidence: `parallel_api_test`, `parallel_seed_test`; `concat_vec_envs_v1` of {COPIES} games, each as if it were alone")
