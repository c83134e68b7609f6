"""Learners in PyTorch, one file per algorithm; importing this package imports no torch::

    from gpuvec.learners.ppo import PPOArgs, train
    result = train(PPOArgs(env="gpuvec/CartPole-v1"))

The modules::

    ppo, a2c, ddpg    the algorithms; `on_policy` and `learner` are what they share, `training` is the loop of a training
    algorithms        the registry of algorithms
    config            their settings, and those tuned for an environment
    networks          policies and value functions
    sampling          draws actions
    buffers           rollouts and replayed transitions
    estimators        advantages, scaled rewards and statistics of episodes
    captured          what it takes to stay on the device, and in its graphs
    runs              the folder of a run: settings, metrics, checkpoints
    evaluation        plays without learning
"""
