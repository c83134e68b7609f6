"""Environments with many agents: phases, reductions, observations, and the barriers between them.

- `program`: the segments of a reset and of a step, in order, with a barrier after most of them.
- `step_segments`: the functions of the segments of a step and of a reset, from loads to stores.
- `phase_functions`, `observation_stores`, `neighbors`: the segments in which agents read data of each other.
- `state_access`: the data in shared memory, and access to it.
- `context`: the inputs of all functions that compile these.
- `launch_mapping`: the distribution of agents over threads, blocks and kernels.
"""
