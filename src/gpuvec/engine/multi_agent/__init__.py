"""Environments with many agents: phases, reductions, observations, and the barriers between them.

- `program`: the order of what a reset and a step do, as segments with a barrier after each.
- `step_functions`: what the segments do, with the rules of an episode; `reset_functions`: what a reset does before.
- `reductions`, `observations`, `neighbors`: what agents read of each other.
- `state_layout`, `state_access`, `episode_status`, `shared_counters`: what is in shared memory, and access to it.
- `launch_mapping`: how agents are distributed over threads, blocks and kernels.
"""
