"""How the envs of a batch are laid over a GPU: which kernels take how many threads, and how many blocks."""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch, make_multi_agent_launch
from gpuvec.spec import Environment

WARP, MULTIPROCESSORS = 32, 132  # threads, and of an H200
THREADS = 256  # per block of many a `SingleAgentEnv`; 64 to 512 differ by less than 2 %


class SingleAgentLaunch(NamedTuple):
    """A thread for each env."""

    envs: int = THREADS  # per block
    few: bool = False  # so few in all that a scheduler has one warp or two, and nothing to do while they wait for a result
    split: bool = False

    @property
    def envs_per_block(self) -> int:
        """Envs of a block, a thread for each."""
        return self.envs


def make_launch_config(env: Environment, num_envs: int, threads: int = THREADS) -> MultiAgentLaunch | SingleAgentLaunch:
    """How `num_envs` of `env` are laid over a GPU. Blocks share no clock, so all kernels of an env are laid out alike.

    Args:
        env: the environment.
        num_envs: E.
        threads: per block of a `SingleAgentEnv`, where there is work for so many.
    """
    schema = make_schema(env)
    if isinstance(schema, MultiAgentSchema):
        return make_multi_agent_launch(schema, num_envs)
    few = num_envs < threads * MULTIPROCESSORS
    while threads > WARP and num_envs < threads * MULTIPROCESSORS:  # some would have nothing to do
        threads //= 2
    return SingleAgentLaunch(threads, few)
