"""Rollouts: many steps of all environments in one kernel, which keeps the state in registers and stores every step.

Letters: T steps, E envs, D features, K action components.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, RANDOM, is_unbounded, stored_action_dtype
from gpuvec.vector.actions import Actions
from gpuvec.vector.debug_checks import DebugChecks
from gpuvec.vector.outputs import OutputBuffers, Outputs
from gpuvec.vector.stateful import Stateful


class Rollout(NamedTuple):
    """T steps of E environments, as arrays of the environment's framework."""

    obs: Any  # (T + 1, E, D) float32: action[t] was chosen from obs[t], and obs[T] follows the last step
    action: Any  # (T, E) or (T, E, K): those passed, else uint8 if they are 0 to 254 at most, else int32; float32 for a Box
    reward: Any  # (T, E) float32
    terminated: Any  # (T, E) bool
    truncated: Any  # (T, E) bool
    final_obs: Any = None  # in SAME_STEP (T, E, D) float32: the last observations of episodes that ended; other rows undefined
    final_mask: Any = None  # in SAME_STEP (T, E) bool: which rows of final_obs are defined


class RolloutBuffers(OutputBuffers):
    """Provides the arrays of rollouts, as `OutputBuffers` does for steps, under the names that `Rollout` has."""

    def arrays_for(self, out: Rollout | None, stream: int) -> Outputs:
        """Returns the arrays that the next rollout writes to.

        Args:
            out: the rollout to write to; None for new arrays.
            stream: the handle of the CUDA stream on which the rollout will be launched.

        Raises:
            ValueError: arrays of `out` that do not fit.
        """
        if out is None:
            return self.take(stream)
        return self.resolve_out({name: getattr(out, name) for name in self.names}, stream)


class RolloutStorage(NamedTuple):
    """The arrays of rollouts of one length."""

    obs: RolloutBuffers
    action: RolloutBuffers
    outcome: RolloutBuffers  # the other fields of a `Rollout`


class Rollouts(Stateful):
    """The method `rollout`."""

    _ring: int | None  # the number of sets of output arrays that are reused in turn
    _has_several_gpus: bool
    _debug_checks: DebugChecks | None  # with debug=True
    _storage: dict[tuple[int, bool, str], RolloutStorage]

    def rollout(self, num_steps: int, policy: Any = RANDOM, out: Rollout | None = None) -> Rollout:
        """Makes T steps of every row in one kernel, with the results of T calls of `step` with the same actions.

        On a CPU the results are equal bit for bit. On a GPU the compiler may round a sum of products differently.

        Args:
            num_steps: T, from 1 to 2**31 - 1.
            policy: "random", uniform over the action space; (T, E) or (T, E, K) actions, of the dtypes that `step` takes; or a
                plain function `policy(obs, key, p) -> action`, compiled as an environment's functions are: obs is a tuple of D
                floats of one row, `key` is for random draws (`uniform(key, 0, ...)`), `p` holds the parameters. A function is
                compiled on its first use, so pass the same object every time. The draws of a policy depend on the row's seed
                and on its number of steps, not on E and not on where a rollout begins.
            out: an earlier rollout of this environment and length to write to; a captured graph needs one. Actions that
                are passed as `policy` are not copied there.

        Raises:
            NotImplementedError: an environment of many agents.
            TypeError, ValueError: a length, a policy or an `out` that does not fit, or an environment with `debug`.
            AuthoringError: a policy that cannot be compiled.
            RuntimeError: no `out` while a graph is being captured.
        """
        self._check_usable()
        if self._has_several_gpus and self._device.is_not_current():
            with self._device.current():
                return self.rollout(num_steps, policy, out)
        self._check_rollout(num_steps, out)
        steps, stream = int(num_steps), self._stream()
        kind = self._policy_kind(policy)
        if kind == ACTION_ARRAY:
            action_address, action_dtype, _owner = self._read_rollout_actions(policy, steps, stream)
        else:
            action_address, action_dtype = 0, None
        launch = self.simulation.rollout_launcher(kind, action_dtype)
        if out is None and stream and self._framework.capturing():
            raise RuntimeError(
                "memory cannot be allocated while a graph is captured: call rollout() before, and give what it returned as out."
            )
        storage = self._storage_for(steps, out is None)
        obs_address, (obs,) = storage.obs.arrays_for(out, stream)
        action = policy
        if kind != ACTION_ARRAY:
            packed, (action,) = storage.action.arrays_for(out, stream)
            (action_address,) = memoryview(packed).cast("q")
        outcome_addresses, outcome = storage.outcome.arrays_for(out, stream)
        launch(stream, action_address, obs_address + outcome_addresses, steps)
        if self._framework.copies:
            out_arrays = None if out is None else out._asdict()
            (obs,), outcome = storage.obs.to_user((obs,), out_arrays), storage.outcome.to_user(outcome, out_arrays)
            if kind != ACTION_ARRAY:
                (action,) = storage.action.to_user((action,), out_arrays)
        return Rollout(obs, action, *outcome)

    def _check_rollout(self, num_steps: int, out: Rollout | None) -> None:
        """Raises an error if this environment has no rollouts, or an argument has a wrong type or value."""
        if isinstance(self.simulation.schema, MultiAgentSchema):
            raise NotImplementedError(
                "rollout() supports environments of one agent with features and a state of scalars. Call step() for others."
            )
        if self._debug_checks is not None:
            raise ValueError("rollout() makes all steps in one kernel, which debug=True cannot check: call step() instead.")
        if isinstance(num_steps, bool) or not isinstance(num_steps, int | np.integer) or not 1 <= num_steps < 2**31:
            raise ValueError(f"num_steps must be an integer from 1 to 2**31 - 1, got {num_steps!r}.")
        if out is not None and not isinstance(out, Rollout):
            raise TypeError(f"out must be a Rollout that rollout() returned before, got {type(out).__name__}.")

    def _policy_kind(self, policy: Any) -> Any:
        """The policy as `Simulation.rollout_launcher` takes it: RANDOM, ACTION_ARRAY, or a function.

        Raises:
            TypeError, ValueError: another name, a function of other arguments, or another callable.
        """
        if isinstance(policy, str):
            if policy != RANDOM:
                raise ValueError(f"policy must be {RANDOM!r}, an array of actions, or a function, got {policy!r}.")
            if is_unbounded(self.single_action_space):
                raise ValueError(f"policy={RANDOM!r} needs finite bounds; the action space is {self.single_action_space}.")
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

    def _read_rollout_actions(self, actions: Any, steps: int, stream: int) -> tuple[int, Any, Any]:
        """(address, dtype, owner) of the actions of a rollout, (T, E) or (T, E, K)."""
        layout = self.simulation.schema.action
        shape = (steps, self.num_envs, *layout.shape)
        try:
            return Actions(shape, layout.discrete, self._device, self._framework).read(actions, stream)
        except (TypeError, ValueError) as error:
            raise type(error)(f"policy is no array of actions that fits: {error}") from None

    def _storage_for(self, steps: int, provides_arrays: bool) -> RolloutStorage:
        """The buffers of rollouts of one length.

        Args:
            steps: T.
            provides_arrays: whether they provide new arrays; False if they only check the arrays of an `out`.
        """
        dtype = stored_action_dtype(self.single_action_space)
        key = steps, provides_arrays, np.dtype(dtype).name
        if key not in self._storage:
            returned, shape = self.simulation.layout.outputs, self.simulation.schema.action.shape
            action = Buffer(dtype, shape, wide=bool(shape) and np.dtype(dtype).itemsize == 4)
            ring = self._ring if provides_arrays else None

            def allocate(length: int, **buffers: Buffer) -> RolloutBuffers:
                rows = {name: buffer._replace(shape=(self.num_envs, *buffer.shape)) for name, buffer in buffers.items()}
                return RolloutBuffers(rows, length, self._device, self._framework, ring)

            outcome = {name: buffer for name, buffer in returned.items() if name != "obs"}
            self._storage[key] = RolloutStorage(
                allocate(steps + 1, obs=returned["obs"]), allocate(steps, action=action), allocate(steps, **outcome)
            )
        return self._storage[key]

    def _clear_storage(self) -> None:
        """Drops all references to the arrays of rollouts, which are freed unless a user still references them."""
        for storage in self._storage.values():
            for buffers in storage:
                buffers.clear()
        self._storage.clear()
