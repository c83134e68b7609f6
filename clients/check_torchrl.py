"""TorchRL's `GymWrapper` passes `check_env_specs`, and a collector returns the transitions of the environment."""
# /// script
# dependencies = ["torchrl==0.14.1"]
#
# [tool.client]
# title = "TorchRL"
# lines = 0
# change = '`GymWrapper(envs)`; `output="numpy"`, `Disabled` (which it prefers) or `SameStep` mode'
# ///

import gymnasium
import torch
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

import gpuvec  # noqa: F401  # registers its environments

E, T = 8, 64


def make(mode, name="CartPole-v1"):
    """Returns the environment `name` in the autoreset mode `mode`, wrapped for TorchRL."""
    envs = gymnasium.make_vec(f"gpuvec/{name}", num_envs=E, device="cpu", output="numpy", autoreset_mode=mode)
    return GymWrapper(envs, device="cpu")


for mode in ("Disabled", "SameStep"):
    for name in ("CartPole-v1", "Pendulum-v1"):
        check_env_specs(make(mode, name))
    env = TransformedEnv(make(mode), RewardSum())
    env.append_transform(StepCounter())
    data = Collector(env, frames_per_batch=E * T, total_frames=4 * E * T)
    frames = episodes = 0
    for batch in data:
        assert batch.shape == (E, T)
        assert batch["next", "reward"].shape == (E, T, 1)
        done = batch["next", "done"]
        # The reward of CartPole is 1 in every step, so the return of an episode is its length.
        torch.testing.assert_close(batch["next", "episode_reward"][done], batch["next", "step_count"][done].float())
        # CartPole terminates outside its bounds: the last observation must be that of the episode, not of the next one.
        final_obs = batch["next", "observation"][done[..., 0]]
        assert ((final_obs[:, 0].abs() > 2.4) | (final_obs[:, 2].abs() > 0.2094)).all()
        is_running = ~done[:, :-1, 0]
        next_obs, obs = batch["next", "observation"][:, :-1][is_running], batch["observation"][:, 1:][is_running]
        torch.testing.assert_close(obs, next_obs, rtol=0, atol=0)
        frames, episodes = frames + batch.numel(), episodes + int(done.sum())
    data.shutdown()
    assert frames == 4 * E * T
    assert episodes > 0
print("evidence: `check_env_specs`; a `Collector` whose episodes end where CartPole ends, in both modes")
