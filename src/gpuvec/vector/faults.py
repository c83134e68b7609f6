"""Actions that were at fault, as kernels report them and as users are told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.layout.buffers import NO_FAULT
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import ActionError


def take_fault(sim: Simulation, space: gym.Space[Any]) -> ActionError | None:
    """The lowest fault since the last call, which waits for the device; `space` is that of one agent's actions."""
    faults = sim.buffers["faults"]
    action, ended = (int(f) for f in (faults if isinstance(faults, np.ndarray) else faults.get()))
    if action == ended == NO_FAULT:
        return None
    faults[:] = NO_FAULT
    if action != NO_FAULT:
        row = action >> 32
        (agents,) = sim.schema.agents_shape or (0,)
        who = f"agent {row % agents} of environment {row // agents}" if agents else f"environment {row}"
        return ActionError(_said(who, action & 0xFFFFFFFF, space))
    return ActionError(
        f"environment {ended >> 32} was stepped after its episode ended, in AutoresetMode.DISABLED: "
        'reset it first, with reset(options={"reset_mask": terminated | truncated}).'
    )


def _said(who: str, given: int, space: gym.Space[Any]) -> str:
    """What is wrong with that action; `given` is its value, or the index of a component that is no number.

    Values of 64 bits come as the nearest of 32.
    """
    if isinstance(space, gym.spaces.Box):
        return f"{who} was given an action whose component {given} is not finite; allowed are finite numbers."
    number = given - 2**32 if given >= 2**31 else given
    value = f"{number} or {'more' if number > 0 else 'less'}" if number in (2**31 - 1, -(2**31)) else str(number)
    if isinstance(space, gym.spaces.Discrete):
        return f"{who} was given action {value}; allowed are {space.start} to {space.start + space.n - 1}."
    return f"{who} was given an action with component {value}; the action space is {space}."
