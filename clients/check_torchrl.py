"""TorchRL's `GymWrapper` passes `check_env_specs`, and a collector returns the transitions of the environment."""
# /// script
# dependencies = ["torchrl==0.14.1"]
#
# [tool.client]
# title = "TorchRL"
# lines = 0
# change = '`GymWrapper(envs)`; `output="numpy"`, `Disabled` (which it prefers) or `SameStep` mode. Many agents: see below'
# ///

import gymnasium
import torch
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

import gpuvec  # noqa: F401  # registers its environments
from gpuvec.vector.wrappers import FlattenAgents

E, T = 8, 64


class AgentRows(GymWrapper):
    """The environment under FlattenAgents, each of whose rows is an agent; TorchRL would count the environments."""

    def _get_batch_size(self, env):
        return torch.Size([env.num_envs])


def make_vec(mode, name="CartPole-v1", **options):
    """Returns the environment `name` in the autoreset mode `mode`."""
    return gymnasium.make_vec(f"gpuvec/{name}", num_envs=E, device="cpu", output="numpy", autoreset_mode=mode, **options)


def make(mode, name="CartPole-v1", **options):
    """Returns the environment wrapped for TorchRL."""
    return GymWrapper(make_vec(mode, name, **options), device="cpu")


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

    # A reward for each agent, (E, A), has no place in TorchRL's (E, 1). Their sum has, and so has each agent in a row.
    check_env_specs(make(mode, "SimpleSpread-v0", reward="sum"))
    rows = AgentRows(FlattenAgents(make_vec(mode, "SimpleSpread-v0")), device="cpu")
    check_env_specs(rows)
    assert rows.rollout(3)["next", "reward"].shape == (3 * E, 3, 1)
    try:
        check_env_specs(make(mode, "SimpleSpread-v0"))
    except RuntimeError as error:
        assert "Shape mismatch" in str(error), error  # noqa: PT017  # no test of pytest
    else:
        raise AssertionError("TorchRL takes rewards of each agent: the page says that it does not")
print(
    "evidence: `check_env_specs`, with many agents as well; a `Collector` whose episodes end where CartPole ends, in both modes"
)
