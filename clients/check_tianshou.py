"""DQN of Tianshou learns CartPole in scalar environments, which its `DummyVectorEnv` combines."""
# /// script
# dependencies = ["tianshou==2.0.1"]
#
# [tool.client]
# title = "Tianshou"
# lines = 0
# change = '`gymnasium.make("gpuvec/CartPole-v1")` in its `DummyVectorEnv`: rows step one by one on the CPU. See below'
# ///

import gymnasium
import tianshou as ts
import torch
from learning import SEED, report
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import gpuvec  # noqa: F401  # registers its environments

torch.manual_seed(SEED)


def make(num_envs):
    """Returns `num_envs` scalar environments in one vector environment."""
    return ts.env.DummyVectorEnv([lambda: gymnasium.make("gpuvec/CartPole-v1") for _ in range(num_envs)])


spaces = gymnasium.make("gpuvec/CartPole-v1")
net = Net(state_shape=spaces.observation_space.shape, action_shape=spaces.action_space.n, hidden_sizes=[64, 64])
policy = DiscreteQLearningPolicy(model=net, action_space=spaces.action_space, eps_training=0.1, eps_inference=0.0)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.9, n_step_return_horizon=3, target_update_freq=320)
training = Collector[CollectStats](algorithm, make(10), VectorReplayBuffer(20_000, 10), exploration_noise=True)
test = Collector[CollectStats](algorithm, make(10))
test.reset()
before = test.collect(n_episode=10).returns.mean()
result = algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=training,
        test_collector=test,
        max_epochs=5,
        epoch_num_steps=5000,
        collection_step_num_env_steps=10,
        test_step_num_episodes=10,
        batch_size=64,
        update_step_num_gradient_steps_per_sample=0.1,
        stop_fn=lambda mean: mean > 200,
        show_progress=False,
    )
)
assert result.best_reward > 100, result.best_reward
report("DQN on CartPole", before, result.best_reward, "at the best test within 25,000 steps")
