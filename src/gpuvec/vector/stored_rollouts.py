"""Rollouts: many steps of all environments in one kernel, which keeps the state in registers and stores every step.

Letters: T steps, E envs, D features, K action components.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, RANDOM, is_unbounded, stored_action_dtype
from gpuvec.vector.actions import Actions
from gpuvec.vector.framework import Framework
from gpuvec.vector.outputs import OutputBuffers


class Rollout(NamedTuple):
    """T steps of E environments, as arrays of the environment's framework."""

    obs: Any  # (T + 1, E, D) float32: action[t] was chosen from obs[t], and obs[T] follows the last step
    action: Any  # (T, E) or (T, E, K): those passed, else uint8 if they are 0 to 254 at most, else int32; float32 for a Box
    reward: Any  # (T, E) float32
    terminated: Any  # (T, E) bool
    truncated: Any  # (T, E) bool
    final_obs: Any = None  # in SAME_STEP (T, E, D) float32: the last observations of episodes that ended; other rows undefined
    final_mask: Any = None  # in SAME_STEP (T, E) bool: which rows of final_obs are defined


class RolloutStorage:
    """The arrays of the rollouts of an environment, by their lengths.

    Args:
        simulation: makes the rollouts.
        framework: the framework of the arrays.
        ring: the number of sets of arrays that are reused in turn; None for new arrays in every rollout.
    """

    def __init__(self, simulation: Simulation, framework: Framework, ring: int | None) -> None:
        self._simulation, self._framework, self._ring = simulation, framework, ring
        self._buffers: dict[tuple[int, bool, bool, str], OutputBuffers] = {}

    def rollout(self, num_steps: int, policy: Any, out: Rollout | None, action_space: gym.Space[Any], debug: bool) -> Rollout:
        """Makes a rollout, as `VectorEnv.rollout` describes it.

        Args:
            num_steps, policy, out: its arguments.
            action_space: of one row.
            debug: whether the environment was made with `debug`.
        """
        sim = self._simulation
        framework = self._framework
        if isinstance(sim.schema, MultiAgentSchema):
            raise NotImplementedError(
                "rollout() supports environments of one agent with features and a state of scalars. Call step() for others."
            )
        if debug:
            raise ValueError("rollout() makes all steps in one kernel, which debug=True cannot check: call step() instead.")
        if isinstance(num_steps, bool) or not isinstance(num_steps, int | np.integer) or not 1 <= num_steps < 2**31:
            raise ValueError(f"num_steps must be an integer from 1 to 2**31 - 1, got {num_steps!r}.")
        if out is not None and not isinstance(out, Rollout):
            raise TypeError(f"out must be a Rollout that rollout() returned before, got {type(out).__name__}.")
        kind = _policy_kind(policy, action_space)
        draws = kind != ACTION_ARRAY  # whether the kernel stores actions
        steps, stream, layout = int(num_steps), framework.stream(), sim.schema.action
        action_dtype, _owner = None, None
        if not draws:
            try:
                actions = Actions((steps, sim.num_envs, *layout.shape), layout.discrete, sim.device, framework)
                action_address, action_dtype, _owner = actions.read(policy, stream)
            except (TypeError, ValueError) as error:
                raise type(error)(f"policy is no array of actions that fits: {error}") from None
        launch = sim.rollout_launcher(kind, action_dtype)
        if out is None and stream and framework.capturing():
            raise RuntimeError(
                "memory cannot be allocated while a graph is captured: call rollout() before, and give what it returned as out."
            )
        buffers = self._buffers_for(steps, out is None, draws, action_space)
        out_arrays = None if out is None else {name: getattr(out, name) for name in buffers.names}
        packed, arrays = buffers.take(stream) if out_arrays is None else buffers.resolve_out(out_arrays, stream)
        if draws:  # actions are the last output, and the kernel takes their address first
            (action_address,), packed = memoryview(packed[-8:]).cast("q"), packed[:-8]
        launch(stream, action_address, packed, steps)
        if framework.copies:
            arrays = buffers.to_user(arrays, out_arrays)
        return Rollout(**{"action": policy, **dict(zip(buffers.names, arrays, strict=True))})

    def _buffers_for(self, steps: int, provides_arrays: bool, has_actions: bool, action_space: gym.Space[Any]) -> OutputBuffers:
        """The buffers of rollouts of T `steps`, which provide new arrays, or only check the arrays of an `out`."""
        dtype = stored_action_dtype(action_space)
        key = steps, provides_arrays, has_actions, np.dtype(dtype).name
        if key not in self._buffers:
            sim = self._simulation
            shape, outputs = sim.schema.action.shape, dict(sim.layout.outputs)
            if has_actions:
                outputs["action"] = Buffer(dtype, shape, wide=bool(shape) and np.dtype(dtype).itemsize == 4)
            buffers = {
                name: buffer._replace(shape=(steps + (name == "obs"), sim.num_envs, *buffer.shape))
                for name, buffer in outputs.items()
            }
            ring = self._ring if provides_arrays else None
            self._buffers[key] = OutputBuffers(buffers, sim.device, self._framework, ring)
        return self._buffers[key]

    def clear(self) -> None:
        """Drops all references to the arrays of rollouts, which are freed unless a user still references them."""
        for buffers in self._buffers.values():
            buffers.clear()
        self._buffers.clear()


def _policy_kind(policy: Any, action_space: gym.Space[Any]) -> Any:
    """The policy as `Simulation.rollout_launcher` takes it: RANDOM, ACTION_ARRAY, or a function.

    Raises:
        TypeError, ValueError: another name, a function of other arguments, or another callable.
    """
    if isinstance(policy, str):
        if policy != RANDOM:
            raise ValueError(f"policy must be {RANDOM!r}, an array of actions, or a function, got {policy!r}.")
        if is_unbounded(action_space):
            raise ValueError(f"policy={RANDOM!r} needs finite bounds; the action space is {action_space}.")
        return RANDOM
    if isinstance(policy, FunctionType):
        names = policy.__code__.co_varnames[: policy.__code__.co_argcount]
        if len(names) != 3:
            raise TypeError(f"a policy is a function policy(obs, key, p), got {policy.__name__}({', '.join(names)}).")
        return policy
    if callable(policy):
        raise TypeError(
            f"policy is a {type(policy).__name__}; it must be a plain function policy(obs, key, p), which can be compiled, "
            "or an array of actions: step() the environment with the actions of any other policy."
        )
    return ACTION_ARRAY
