"""The memory that a population needs, and the check that the device has it.

Letters: P agents, B samples of an agent, D observation features, K action components.
"""

from __future__ import annotations

from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, free_bytes
from gpuvec.learners.population.population_args import PopulationArgs

# Floats of an agent. Parameters, moments and a gradient; the rest is of one group at a time.
COPIES_OF_PARAMETERS = 4
# Floats of a sample: reward, flags, log-probability, values, advantage, target and its place in the order, twice.
FLOATS_OF_SAMPLE = 20


def agent_bytes(args: PopulationArgs, num_parameters: int, features: int, action_size: int) -> int:
    """Returns the bytes that an agent needs.

    Args:
        args: the settings, resolved.
        num_parameters: those of an agent, with padding.
        features: D.
        action_size: K.
    """
    # Observations and final observations as the environment writes them, and twice by agent.
    sample = 4 * features + 4 * action_size + FLOATS_OF_SAMPLE
    return FLOAT32_BYTES * (COPIES_OF_PARAMETERS * num_parameters + args.base.steps_per_iteration * sample)


def require_population_memory(args: PopulationArgs, num_bytes: int) -> None:
    """Checks that the agents fit into the memory that is free.

    Args:
        args: the settings, resolved.
        num_bytes: those of an agent.

    Raises:
        OutOfMemoryError: they do not fit; the message says how many bytes are needed and free, and how many agents fit.
    """
    base, free = args.base, free_bytes(args.base.device)
    if free is not None and args.num_agents * num_bytes > free:
        fitting = free // num_bytes
        nearest = f"{fitting:,} agents fit" if fitting else "use fewer steps or environments, since not one agent fits"
        raise OutOfMemoryError(
            f"a population of {args.num_agents:,} agents with {base.num_steps:,} steps of {base.num_envs:,} environments each "
            f"needs {args.num_agents * num_bytes:,} bytes on {base.device}, where {free:,} are free; {nearest}."
        )
