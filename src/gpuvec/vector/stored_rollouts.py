"""Rollouts: many steps of all environments by one kernel, with their state in registers, into arrays that hold them all."""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, RANDOM, is_unbounded, stored_action_dtype
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.actions import Actions
from gpuvec.vector.outputs import OutputBuffers, Outputs
from gpuvec.vector.stateful import Stateful


class Rollout(NamedTuple):
    """T steps of E environments, as arrays of the environment's framework."""

    obs: Any  # (T + 1, E, D) float32: obs[t] is what action[t] was taken at, obs[T] what comes next
    action: Any  # (T, E) or (T, E, K): those given, else uint8 if they are 0 to 254 at most, else int32; float32 for a Box
    reward: Any  # (T, E) float32
    terminated: Any  # (T, E) bool
    truncated: Any  # (T, E) bool
    final_obs: Any = None  # in SAME_STEP (T, E, D) float32: what episodes that ended saw last; other rows mean nothing
    final_mask: Any = None  # in SAME_STEP (T, E) bool: which those are


class RolloutBuffers(OutputBuffers):
    """Hands out the arrays of rollouts as those of steps; they are called as in `Rollout`."""

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._returned)

    def of(self, out: Rollout | None, stream: int) -> Outputs:
        """The next arrays, or those in `out`."""
        if out is None:
            return self.take(stream)
        return self.given({name: getattr(out, name) for name in self._names}, stream)


class RolloutStorage(NamedTuple):
    """Where rollouts of one length go."""

    obs: RolloutBuffers
    action: RolloutBuffers
    rest: RolloutBuffers


class Rollouts(Stateful):
    """`rollout`."""

    _ring: int | None  # sets of output arrays that are reused in turn
    _several: bool
    _storage: dict[tuple[int, bool, str], RolloutStorage]

    def rollout(self, num_steps: int, policy: Any = RANDOM, out: Rollout | None = None) -> Rollout:
        """Plays T steps of every row by one kernel, as T calls of `step` with the same actions would.

        On a CPU that is so bit for bit. On a GPU the compiler may round a sum of products elsewhere than in a step.

        Args:
            num_steps: T, from 1 to 2**31 - 1.
            policy: "random", uniform over the action space; (T, E) or (T, E, K) actions, of the kinds that `step` takes; or a
                plain function `policy(obs, key, p) -> action`, compiled as an environment's are: obs is a tuple of D floats of
                one row, `key` for what it draws (`uniform(key, 0, ...)`), `p` the parameters. It is compiled when it is first
                given: give the same one again, not a new one alike. Draws of a policy depend on the row's seed and on how many
                steps it has made: not on E, nor on where a rollout begins.
            out: an earlier rollout of this environment and length to write to; a captured graph needs one. Actions that are
                given are not copied there.

        Raises:
            NotImplementedError: an environment of many agents.
            TypeError, ValueError: a length, a policy or an `out` that does not fit.
            AuthoringError: a policy that cannot be compiled.
            RuntimeError: no `out` while a graph is captured.
        """
        self._check_usable()
        if self._several and self._device.is_not_current():
            with self._device.current():
                return self.rollout(num_steps, policy, out)
        if isinstance(self._env, MultiAgentEnv):
            raise NotImplementedError("rollout() plays environments of one agent; those of many not yet: step() them.")
        if isinstance(num_steps, bool) or not isinstance(num_steps, int | np.integer) or not 1 <= num_steps < 2**31:
            raise ValueError(f"num_steps must be an integer from 1 to 2**31 - 1, got {num_steps!r}.")
        if out is not None and not isinstance(out, Rollout):
            raise TypeError(f"out must be a Rollout that rollout() returned before, got {type(out).__name__}.")
        steps, stream = int(num_steps), self._stream()
        kind = self._kind(policy)
        pointer, dtype, _owner = self._given(policy, steps, stream) if kind == ACTION_ARRAY else (0, None, None)
        launch = self.simulation.rollout_launcher(kind, dtype)
        if out is None and stream and self._framework.capturing():
            raise RuntimeError(
                "memory cannot be allocated while a graph is captured: call rollout() before, and give what it returned as out."
            )
        storage = self._storage_of(steps, out is None)
        seen, (obs,) = storage.obs.of(out, stream)
        action = policy
        if kind != ACTION_ARRAY:
            acted, (action,) = storage.action.of(out, stream)
            (pointer,) = memoryview(acted).cast("q")
        returned, rest = storage.rest.of(out, stream)
        launch(stream, pointer, seen + returned, steps)
        if self._framework.copies:
            given = None if out is None else out._asdict()
            (obs,), rest = storage.obs.to_user((obs,), given), storage.rest.to_user(rest, given)
            if kind != ACTION_ARRAY:
                (action,) = storage.action.to_user((action,), given)
        return Rollout(obs, action, *rest)

    def _kind(self, policy: Any) -> Any:
        """One of `engine.single_agent.rollout_policies`.

        Raises:
            TypeError, ValueError: another name, a function of other arguments, or one that cannot be compiled.
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
                f"policy is a {type(policy).__name__}; what is no array must be a plain function policy(obs, key, p), which "
                "can be compiled: step() the environment with the actions of any other."
            )
        return ACTION_ARRAY

    def _given(self, actions: Any, steps: int, stream: int) -> tuple[int, Any, Any]:
        """(address, dtype, owner) of the actions of a rollout."""
        kind = self.simulation.schema.action
        shape = (steps, self.num_envs, *kind.shape)
        return Actions(shape, kind.discrete, self._device, self._framework).read(actions, stream)

    def _storage_of(self, steps: int, anew: bool) -> RolloutStorage:
        """The places of rollouts of that length, to be handed out `anew`, or to look whether given ones fit."""
        dtype = stored_action_dtype(self.single_action_space)
        key = steps, anew, np.dtype(dtype).name
        if key not in self._storage:
            returned, shape = self.simulation.layout.outputs, self.simulation.schema.action.shape
            action = Buffer(dtype, shape, wide=bool(shape) and np.dtype(dtype).itemsize == 4)

            def places(length: int, **buffers: Buffer) -> RolloutBuffers:
                rows = {name: b._replace(shape=(self.num_envs, *b.shape)) for name, b in buffers.items()}
                return RolloutBuffers(rows, length, self._device, self._framework, self._ring if anew else None)

            rest = {name: b for name, b in returned.items() if name != "obs"}
            self._storage[key] = RolloutStorage(
                places(steps + 1, obs=returned["obs"]), places(steps, action=action), places(steps, **rest)
            )
        return self._storage[key]

    def _clear_storage(self) -> None:
        """Lets all memory go that no user holds."""
        for storage in self._storage.values():
            for places in storage:
                places.clear()
        self._storage.clear()
