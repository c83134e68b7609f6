"""Environments with one agent. The rules of an episode, which all of the following steps apply, are in `layout.episode_rules`.

- `step`: the reset and the step of one env, for kernels on a GPU and in the simulator, with branches and without.
- `step_blocked`: the step of a block of envs, for steps and rollouts on the CPU.
- `rollout`: many steps in one kernel; `rollout` for a GPU and the simulator, `compose_block_policy` for the CPU.
- `rollout_options`: how the actions of a rollout are chosen and stored.
- `env_functions`: the author's functions, and access to the fields of an env.
"""
