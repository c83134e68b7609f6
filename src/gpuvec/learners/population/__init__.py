"""Populations: many independent trainings by PPO at once, each with its own seed and settings.

Importing this package imports no torch::

    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population

    args = PopulationArgs(base=PPOArgs(env="gpuvec/CartPole-v1", num_envs=4, num_steps=128), num_agents=64)
    result = train_population(args)

The modules and folders, from the lowest layer to the highest::

    population_args     the settings of a population, and the numbers that it reports of each agent
    state/              what the next iteration of each agent depends on
    results/            the numbers of all agents, their policies, and their folder
    batched/            the training by torch operations over all agents
    cpu_population      the training by several processes on a CPU
    kernel/             the training by one kernel, whose blocks are agents
    population_training the choice of what trains a population, and the loop of a training
    search/             samples of settings, successive halving, and population-based training
"""
