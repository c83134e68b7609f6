"""Environments with one agent.

- `episode_rules`: the rules of an episode, once for all the steps below.
- `step`: the reset, and the step of one env, which the kernels on a GPU and in the simulator take.
- `step_branchless`: the step of a GPU's rollout of few envs.
- `step_blocked`: the step of a block of envs, which the CPU takes for steps and rollouts.
- `rollout`: many steps in one kernel; `compose_rollout` for a GPU and the simulator, `compose_block_policy` for the CPU.
- `rollout_policies`: what chooses the actions of a rollout.
- `env_functions`, `env_access`, `field_access`: the author's functions, and how the fields of an env are loaded and stored.
"""
