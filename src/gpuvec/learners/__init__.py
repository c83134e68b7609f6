"""Learners in PyTorch, one file per algorithm; importing this package imports no torch.

from gpuvec.learners.ppo import Args, train
result = train(Args(env="gpuvec/CartPole-v1"))
"""
