"""Learners in PyTorch, one file per algorithm; importing this package imports no torch::

    from gpuvec.learners.ppo import PPOArgs, train
    result = train(PPOArgs(env="gpuvec/CartPole-v1"))

The modules::

    ppo, a2c, ddpg    the algorithms, TD3 in `ddpg`, whose common parts are in `on_policy`, `policy` and `learner`
    training          makes environments and learner, and trains
    iterations        the loop of a training, and its reports
    policy_configs    the policies of a training, as its caller describes them
    algorithms        the registry of algorithms
    own_loss          losses and metrics of users
    config            settings, and those tuned for an environment
    networks          policies and value functions
    sampling          sampling of actions
    buffers           rollouts, and the replay buffer
    estimators        advantages, scaled rewards and statistics of episodes
    fused_ppo         PPO in fused CUDA kernels
    cuda_graphs       capture in CUDA graphs, and checks and reads without synchronisation
    runs              the folder of a run: settings, metrics, checkpoints
    policy_files      trained policies outside of their run: files, acting, export
    evaluation        episodes without learning
    opponents         policies that act and do not learn
    lightning         trainings in PyTorch Lightning
"""
