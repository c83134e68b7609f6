"""PPO of RLlib's new API learns CartPole in one vector environment per runner."""
# /// script
# dependencies = ["ray[rllib]==2.60.0", "gymnasium==1.2.2"]
#
# [tool.client]
# title = "RLlib, new API"
# lines = 1
# change = '`env_runners(gym_env_vectorize_mode="vector_entry_point")`; the environment is "gpuvec:gpuvec/CartPole-v1"'
# ///

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # a local cluster needs no token

import ray
from learning import SEED, report
from ray.rllib.algorithms.ppo import PPOConfig

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
config = (
    PPOConfig()
    .environment("gpuvec:gpuvec/CartPole-v1", env_config={"device": "cpu", "output": "numpy"})
    .env_runners(num_env_runners=0, num_envs_per_env_runner=16, gym_env_vectorize_mode="vector_entry_point")
    .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=8, lr=1e-3)
    .debugging(seed=SEED)
)
algorithm = config.build_algo()
envs = algorithm.env_runner.env.unwrapped
assert type(envs).__module__.startswith("gpuvec."), envs
returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(15)]
algorithm.stop()
ray.shutdown()
assert returns[-1] > 3 * returns[0], returns
report("PPO on CartPole", returns[0], returns[-1], f"after {15 * 2048:,} steps")
