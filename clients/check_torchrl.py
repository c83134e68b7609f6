"""TorchRL's `GymWrapper` passes `check_env_specs`, and a collector brings the transitions that the environment makes."""
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
    """A vector environment in TorchRL's hands."""
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
        # CartPole's reward is 1 in every step: the return of a finished episode is its length.
        torch.testing.assert_close(batch["next", "episode_reward"][done], batch["next", "step_count"][done].float())
        # CartPole ends where it has left its bounds: a last observation must be the episode's, and not the next one's first.
        last = batch["next", "observation"][done[..., 0]]
        assert ((last[:, 0].abs() > 2.4) | (last[:, 2].abs() > 0.2094)).all()
        goes_on = ~done[:, :-1, 0]
        first, then = batch["next", "observation"][:, :-1][goes_on], batch["observation"][:, 1:][goes_on]
        torch.testing.assert_close(then, first, rtol=0, atol=0)
        frames, episodes = frames + batch.numel(), episodes + int(done.sum())
    data.shutdown()
    assert frames == 4 * E * T
    assert episodes > 0
print("evidence: `check_env_specs`; a `Collector` whose episodes end where CartPole ends, in both modes")
