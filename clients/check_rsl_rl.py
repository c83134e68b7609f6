"""The `OnPolicyRunner` of rsl_rl learns Pendulum on tensors, through the `VecEnv` of this file (docs/guides/rsl_rl.md)."""
# /// script
# dependencies = ["rsl-rl-lib==5.5.1"]
#
# [tool.client]
# title = "rsl_rl"
# change = "a class of its interface `VecEnv` around the environment; continuous actions only"
# ///

import inspect

import gymnasium
import torch
from learning import SEED, report
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

import gpuvec  # noqa: F401  # registers its environments
from gpuvec.vector.wrappers import ClipAction, RecordEpisodeStatistics

E, T, ITERATIONS = 64, 64, 60


class RslRlVecEnv(VecEnv):
    """A gpuvec environment of one agent with continuous actions, with tensors as output, in SameStep mode."""

    def __init__(self, envs, max_episode_length):
        self.envs, self.device, self.cfg = envs, envs.unwrapped.device, {}
        self.num_envs, self.num_actions = envs.num_envs, envs.single_action_space.shape[0]
        self.max_episode_length = max_episode_length
        self.obs, _ = envs.reset(seed=SEED)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self.returns = []

    def get_observations(self):
        """Returns the observations of the next step. The runner keeps them, and gpuvec writes them again in a later step."""
        return TensorDict({"policy": self.obs.clone()}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions):
        """Returns observations, rewards, (E,), dones, (E,), and which of them are truncations, with actions (E, K)."""
        self.obs, rewards, terminated, truncated, infos = self.envs.step(actions)
        dones = terminated | truncated
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf + 1)
        if "episode" in infos:
            self.returns += infos["episode"]["r"][infos["_episode"]].tolist()
        return self.get_observations(), rewards.clone(), dones.long(), {"time_outs": truncated & ~terminated}


mlp = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
config = {
    "num_steps_per_env": T,
    "save_interval": 1000,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "algorithm": {
        "class_name": "PPO",
        "gamma": 0.9,
        "lam": 0.95,
        "learning_rate": 1e-3,
        "schedule": "fixed",
        "num_learning_epochs": 10,
        "num_mini_batches": 8,
        "entropy_coef": 0.0,
    },
    "actor": {**mlp, "distribution_cfg": {"class_name": "GaussianDistribution"}},
    "critic": mlp,
}
torch.manual_seed(SEED)
envs = gymnasium.make_vec("gpuvec/Pendulum-v1", num_envs=E, device="cpu", output="torch", autoreset_mode="SameStep")
env = RslRlVecEnv(RecordEpisodeStatistics(ClipAction(envs)), max_episode_length=200)
OnPolicyRunner(env, config, device="cpu").learn(ITERATIONS)
before, after = (sum(part) / E for part in (env.returns[:E], env.returns[-E:]))
assert after > before + 500, (before, after)

# The runner collects under torch.inference_mode; the same environment can be used outside of it.
obs, _ = envs.reset(seed=SEED)
assert not obs.is_inference()
obs.mul_(1.0)
envs.step(torch.zeros(E, 1))
envs.close()
lines = [line for line in inspect.getsource(RslRlVecEnv).splitlines() if line.strip() and '"""' not in line]
print(f"lines: {len(lines)}")
report("PPO on Pendulum", before, after, f"after {E * T * ITERATIONS:,} steps")
