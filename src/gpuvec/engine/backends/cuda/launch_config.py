"""How the envs of a batch are distributed over CUDA blocks: how many envs a block has, and how many threads."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch, make_multi_agent_launch

WARP_SIZE = 32  # threads
MULTIPROCESSORS = 132  # of an H200
THREADS_PER_BLOCK = 256  # of a `SingleAgentEnv` with many envs; 64 to 512 differ by less than 2 %


class SingleAgentLaunch(NamedTuple):
    """The launch configuration of an environment with one agent: a thread for each env.

    Attributes:
        envs_per_block: the envs of a block, and its threads.
        latency_bound: whether a warp scheduler has one warp or two, and so waits for the results of each instruction.
        split: whether a step is more than one kernel, which it never is.
    """

    envs_per_block: int = THREADS_PER_BLOCK
    latency_bound: bool = False
    split: bool = False


LaunchConfig: TypeAlias = MultiAgentLaunch | SingleAgentLaunch


def make_launch_config(schema: EnvSchema, num_envs: int, max_threads: int = THREADS_PER_BLOCK) -> LaunchConfig:
    """Chooses the launch configuration of all kernels of an environment, whose blocks each have a clock of their own.

    Args:
        schema: the schema of the environment.
        num_envs: E.
        max_threads: threads per block of a `SingleAgentEnv` whose envs fill the GPU.
    """
    if isinstance(schema, MultiAgentSchema):
        return make_multi_agent_launch(schema, num_envs)
    latency_bound = num_envs < max_threads * MULTIPROCESSORS
    threads = max_threads
    while threads > WARP_SIZE and num_envs < threads * MULTIPROCESSORS:  # some multiprocessors would have no block
        threads //= 2
    return SingleAgentLaunch(threads, latency_bound)
