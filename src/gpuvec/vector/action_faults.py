"""Faulty actions: kernels record them on the device, and this module turns a record into an error for the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.buffers import NO_FAULT
from gpuvec.engine.layout.declared_schema import role_of_agent
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import ActionError

INT32_LIMITS = 2**31 - 1, -(2**31)


def take_action_error(sim: Simulation) -> ActionError | None:
    """Returns the error of the lowest row that recorded a fault, and clears the record; the host waits for the device.

    Args:
        sim: the simulation.

    Returns:
        None if no fault was recorded since the last call.
    """
    spaces: Any = sim.env.spaces(sim.env.params)  # (observation, action) of one agent, or a dict of them by role
    # (2,) uint64: the first faulty action, and the first step after an episode's end; the row is in the upper 32 bits.
    faults = sim.buffers["faults"]
    action_fault, ended_fault = (int(fault) for fault in to_numpy(faults))
    if action_fault == ended_fault == NO_FAULT:
        return None
    faults[:] = NO_FAULT
    if action_fault != NO_FAULT:
        row = action_fault >> 32
        (agents,) = sim.schema.agents_shape or (0,)
        actor = f"agent {row % agents} of environment {row // agents}" if agents else f"environment {row}"
        if isinstance(spaces, Mapping):
            assert isinstance(sim.schema, MultiAgentSchema), "roles are of many agents"
            role, index = role_of_agent(sim.schema.roles, row % agents)
            actor, spaces = f"{role} {index} of environment {row // agents}", spaces[role]
        return ActionError(_describe_action(actor, action_fault & 0xFFFFFFFF, spaces[1]))
    return ActionError(
        f"environment {ended_fault >> 32} was stepped after its episode ended, in AutoresetMode.DISABLED: "
        'reset it first, with reset(options={"reset_mask": terminated | truncated}).'
    )


def _describe_action(actor: str, word: int, action_space: gym.Space[Any]) -> str:
    """Says which action was wrong and which actions are allowed.

    Args:
        actor: the environment or agent that took the action.
        word: the lower 32 bits of the record: the action's value, as int32, or the index of a component that is not finite.
            A kernel records a value that int32 does not hold as the nearest one that it holds.
        action_space: the space of one agent's actions.
    """
    if isinstance(action_space, gym.spaces.Box):
        return f"{actor} was given an action whose component {word} is not finite; allowed are finite numbers."
    number = word - 2**32 if word >= 2**31 else word
    value = f"{number} or {'more' if number > 0 else 'less'}" if number in INT32_LIMITS else str(number)
    if isinstance(action_space, gym.spaces.Discrete):
        last = action_space.start + action_space.n - 1
        return f"{actor} was given action {value}; allowed are {action_space.start} to {last}."
    return f"{actor} was given an action with component {value}; the action space is {action_space}."
