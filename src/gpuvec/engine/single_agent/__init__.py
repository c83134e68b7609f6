"""Environments with one agent.

- `episode_rules`: the rules of an episode, which all of the following steps apply.
- `step`: the reset and the step of one env, for kernels on a GPU and in the simulator.
- `step_branchless`: the step in rollouts of few envs on a GPU.
- `step_blocked`: the step of a block of envs, for steps and rollouts on the CPU.
- `rollout`: many steps in one kernel; `compose_rollout` for a GPU and the simulator, `compose_block_policy` for the CPU.
- `rollout_options`, `rollout_policies`: how the actions of a rollout are chosen and stored.
- `env_functions`, `env_access`, `field_access`: the author's functions, and access to the fields of an env.
"""
