"""Learners in PyTorch, one file per algorithm; importing this package imports no torch::

    from gpuvec.learners.ppo import Args, train
    result = train(Args(env="gpuvec/CartPole-v1"))

The modules::

    ppo, a2c, ddpg    the algorithms; `on_policy` and `learner` are what they share, `training` is the course of a training
    args              their settings, and those tuned for an environment
    networks          policies and value functions, one's own or ours
    sampling          draws actions
    rollouts          what is made of the steps that were played
    captured          what it takes to stay on the device, and in its graphs
    runs              the folder of a run: settings, metrics, checkpoints
    evaluate          plays without learning; `players` are who plays
"""
