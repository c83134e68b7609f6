"""Populations: many independent trainings by PPO at once, each with its own seed and settings.

Importing this package imports no torch::

    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population

    args = PopulationArgs(base=PPOArgs(env="gpuvec/CartPole-v1", num_envs=4, num_steps=128), num_agents=64)
    result = train_population(args)

The modules::

    population_args     the settings of a population
    population_training the loop of a training
    population_result   its result: the numbers of all agents, and their policies
    population_history  the numbers of all agents, and their file
    population_folder   the folder of a population
    paths               the choice of what trains a population
    cpu_population      a population in several processes, which run `cpu_worker`
    batched             the training by torch operations over all agents
    agent_state         what the next iteration of each agent depends on
    stacked_networks    the networks of all agents
    environment         the environment that the agents share
    sample_order        the order of the samples in the minibatches
    loss, adam          the loss of each agent, and a step of Adam
    search_space        the settings that a search varies
    sweep               a search with successive halving, and confirmation on fresh seeds
    population_based_training    settings that change while agents learn
"""
