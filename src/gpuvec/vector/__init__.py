"""The interfaces of an environment: Gymnasium's `VectorEnv` and `Env`, PettingZoo's `ParallelEnv`, and wrappers.

Wrappers compute on the device of the environment.
"""
