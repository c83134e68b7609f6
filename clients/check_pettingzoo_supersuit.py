"""PettingZoo's tests pass on TagContinuous, and SuperSuit makes a vector environment of independent copies of it."""
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
    """Returns the game."""
    return gpuvec.parallel_env("gpuvec/TagContinuous-v0", **TAG)


parallel_api_test(make(), num_cycles=200)
parallel_seed_test(make, num_cycles=100)
try:
    parallel_api_test(gpuvec.parallel_env("gpuvec/Predators-v0"), num_cycles=30)
except AssertionError as error:
    assert "agent cannot be revived once dead" in str(error), error  # noqa: PT017  # no test of pytest
else:
    raise AssertionError("births pass PettingZoo's test: the page says that they do not")

padded = supersuit.black_death_v3(make())  # inactive agents stay, with observations and rewards of 0
rows = supersuit.pettingzoo_env_to_vec_env_v1(padded)
envs = supersuit.concat_vec_envs_v1(rows, COPIES, num_cpus=0, base_class="gymnasium")
agents = len(make().possible_agents)
assert envs.num_envs == COPIES * agents
obs, _ = envs.reset(seed=3)
assert not np.array_equal(obs[:agents], obs[agents:]), "the copies have the same first observations"

# The first copy must be equal to a separate game with the same seed, whatever the actions of the second copy are.
game = make()
names = game.possible_agents
game_obs, _ = game.reset(seed=3)
np.testing.assert_array_equal(obs[:agents], [game_obs[name] for name in names])
rng = np.random.default_rng(0)
space = envs.action_space
for _ in range(25):
    actions = rng.integers(0, space.nvec if hasattr(space, "nvec") else space.n, (envs.num_envs, *(space.shape or ())))
    obs, rewards, *_ = envs.step(actions)
    if len(game.agents) < agents:
        break
    game_obs, game_rewards, *_ = game.step({name: actions[names.index(name)] for name in game.agents})
    for name in game.agents:
        np.testing.assert_array_equal(obs[names.index(name)], game_obs[name])
        assert rewards[names.index(name)] == np.float32(game_rewards[name])
envs.close()
print(f"evidence: `parallel_api_test`, `parallel_seed_test`; `concat_vec_envs_v1` of {COPIES} games, each as if it were alone")
