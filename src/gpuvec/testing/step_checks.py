"""The checks of `make_vec(..., debug=True)`: plain Python repeats each step of each env before the device makes it.

Letters: E envs, A agents, K components of an action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.layout.action_access import action_bounds
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.observations import Time
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import join_roles
from gpuvec.testing.compiled_runs.result_checks import ResultChecks
from gpuvec.testing.reference.author_calls import call_checked, fault_place, limit_calls
from gpuvec.testing.reference.checked_functions import CheckedKey, record_draws
from gpuvec.testing.reference.python_reference import PythonReference, Results
from gpuvec.vector.host_copies import to_host

TIME_LIMIT = 20.0  # CPU seconds of one call, after which a loop counts as endless


class _Moments(NamedTuple):
    """What the next step of all envs depends on, on the host."""

    states: dict[str, NDArray[Any]]  # {field: (E, ...)}
    params: dict[str, NDArray[Any]]  # {parameter: (E,)} of those that are stored for each env
    keys: NDArray[np.uint32]  # (E, 4) of a seed, its high word, the row and the episode
    origin: NDArray[np.uint32]  # (E,) the clock from which episodes are counted
    times: NDArray[np.int32]  # (E,) the number of the step in its episode, 0 where the env awaits its reset
    clock: int  # the number of the step


class StepChecks:
    """Repeats steps and resets in plain Python with checks of every index, divisor, shift and draw, and checks the results.

    Args:
        env: the environment, whose functions are the author's own.
        simulation: the buffers of the environments, from which each step is repeated.
    """

    def __init__(self, env: Environment, simulation: Simulation) -> None:
        self._simulation, self._env = simulation, env
        self._limit = simulation.options.max_episode_steps or NO_STEP_LIMIT
        self._autoreset = simulation.options.autoreset
        self._references: dict[Any, PythonReference] = {}
        self._checks = ResultChecks(env, simulation.schema, simulation.num_envs)
        self._times = np.zeros(simulation.num_envs, np.int32)
        self._clock = 0

    def before_step(self, actions: Any) -> list[Results | None]:
        """Repeats the step that the device is about to make; waits for the device.

        Args:
            actions: the actions of all environments, as `step` takes them.

        Returns:
            The state of each env after its step; None for an env that ended and awaits a reset by the user.

        Raises:
            AuthoringError: a function has a fault; the message names the line, the agent or the cell, the step and the env.
        """
        moments = self._moments()
        self._times, self._clock = moments.times, moments.clock
        values = self._author_values(actions)
        with limit_calls(call_checked, TIME_LIMIT), record_draws():
            return [self._repeat_step(moments, row, values[row]) for row in range(self._simulation.num_envs)]

    def after_step(self, results: tuple[Any, Any, Any, Any, Mapping[str, Any]]) -> None:
        """Checks that states, rewards and metrics are finite, and observations within their spaces; waits for the device.

        Args:
            results: what `step` returns.

        Raises:
            AuthoringError: a value is not; the message names the env and the agent.
        """
        obs, reward, terminated, truncated, infos = results
        ended = to_host(terminated) | to_host(truncated)
        is_reset = ended if self._autoreset is AutoresetMode.SAME_STEP else self._times <= 0
        self._check_results(obs, is_reset)
        self._checks.check_reward(to_host(reward), self._clock)
        self._checks.check_metrics({k: to_host(v) for k, v in infos.get("metrics", {}).items()}, self._clock)
        if "final_obs" in infos and ended.any():
            self._checks.check_observations(self._joined(infos["final_obs"]), self._clock, np.flatnonzero(ended))

    def after_reset(self, obs: Any, mask: Any, options: Mapping[str, float]) -> None:
        """Repeats a reset that the device has made, and checks its results; waits for the device.

        Args:
            obs: the observations.
            mask: (E,) bool, the environments that were reset; None for all.
            options: the parameters that the reset changed.

        Raises:
            AuthoringError: a function has a fault, or a value is not finite or outside its space.
        """
        moments = self._moments()
        self._clock = moments.clock - 1
        is_reset = np.ones(self._simulation.num_envs, np.bool_) if mask is None else to_numpy(mask)
        with limit_calls(call_checked, TIME_LIMIT), record_draws():
            for row in np.flatnonzero(is_reset).tolist():
                with fault_place(f"in the reset of environment {row}"):
                    reference, start = self._reference(moments, row, options), _row(moments.states, row)
                    t = Time(0, self._limit)
                    reference.repeat(start, None, _key(moments, row, moments.keys[row, 3], 0), t)
                    self._observe(reference, start, t, row)
        self._check_results(obs, is_reset)

    def _moments(self) -> _Moments:
        """Copies what the next step depends on to the host."""
        sim = self._simulation
        names = [name for name in self._env.state._fields if name in sim.schema.fields]
        rng_streams, start, shared = (to_numpy(sim.buffers[name]) for name in ("rng_streams", "start", "shared"))
        clock = to_numpy(sim.buffers["clock"]).ravel()[0] + np.uint32(1)
        origin, keys = rng_streams[:, 3].copy(), rng_streams.copy()
        if shared[0] != 0:
            keys[:, 0], keys[:, 1], keys[:, 2] = shared[1], shared[2], np.arange(sim.num_envs)
            origin[:] = shared[3]
        keys[:, 3] = start - origin
        return _Moments(
            {name: to_numpy(sim.field(name)) for name in names},
            {name: to_numpy(sim.buffers[f"param_{name}"]) for name in sim.options.per_env},
            keys,
            origin,
            (clock - start).astype(np.int32),
            int(clock),
        )

    def _reference(self, moments: _Moments, row: int, options: Mapping[str, float]) -> PythonReference:
        """The functions of an env with the parameters of its row."""
        default = self._simulation.env.params
        types = {name: type(value) for name, value in default._asdict().items()}
        changed = {name: types[name](values[row]) for name, values in moments.params.items()}
        params = default._replace(**changed, **{name: types[name](value) for name, value in options.items()})
        if params not in self._references:
            self._references[params] = PythonReference(dataclasses.replace(self._env, params=params))
        return self._references[params]

    def _author_values(self, actions: Any) -> NDArray[Any]:
        """The actions (E, ...) as author functions receive them, with the largest action in place of one out of range."""
        schema, joined = self._simulation.schema, self._joined(actions)
        values = joined.reshape(len(joined), schema.num_agents, -1).copy()
        if isinstance(schema, MultiAgentSchema):
            parts = [(slice(part.first_agent, part.first_agent + part.num_agents), part.action_space) for part in schema.parts]
        else:
            parts = [(slice(None), self._env.spaces(self._env.params)[1])]
        for agents, space in parts:
            if not hasattr(space, "low"):
                for k, (low, high) in enumerate(zip(*action_bounds(space), strict=True)):
                    component = values[:, agents, k]
                    values[:, agents, k] = np.where((component < low) | (component > high), high, component)
        dtype = np.float32 if joined.dtype.kind == "f" else joined.dtype
        result: NDArray[Any] = values.reshape(joined.shape).astype(dtype)
        return result

    def _repeat_step(self, moments: _Moments, row: int, action: NDArray[Any]) -> Results | None:
        """Repeats the step of an env, with the reset before or after it that belongs to it."""
        time, state, reference = int(moments.times[row]), _row(moments.states, row), self._reference(moments, row, {})
        t, key = Time(time, self._limit), _key(moments, row, moments.keys[row, 3], time)
        if time > 0:
            with fault_place(f"in step {moments.clock} of environment {row}, step {time} of its episode"):
                state, results = reference.repeat(state, action, key, t)
                has_ended = results["terminated"] or time >= self._limit
                self._observe(reference, state, t, row, has_ended)
                if self._env.metrics is not None:
                    reference.metrics(reference.make_state(state), {}, 1)  # The values of this step alone.
            if self._autoreset is not AutoresetMode.SAME_STEP or not has_ended:
                return state
            episode = (moments.clock - int(moments.origin[row])) % 2**32
            t, key = Time(0, self._limit), _key(moments, row, episode, 0)
        elif self._autoreset is not AutoresetMode.NEXT_STEP:
            return None
        with fault_place(f"in the reset of environment {row} in step {moments.clock}"):
            state, _ = reference.repeat(state, None, key, t)
            self._observe(reference, state, t, row)
        return state

    def _observe(self, reference: PythonReference, state: Results, t: Time, row: int, has_ended: bool = False) -> None:
        """Repeats the functions of observations and masks, and checks masks unless the episode has ended."""
        results = reference.outputs(state, t)
        if "action_mask" in results and not has_ended:
            acting = reference.acting(reference.make_state(state))
            self._checks.check_masks(results["action_mask"][None], acting[None], self._clock, row)

    def _check_results(self, obs: Any, is_reset: NDArray[np.bool_]) -> None:
        """Checks the states and the observations of all envs."""
        self._checks.check_states(self._moments().states, is_reset, self._clock)
        self._checks.check_observations(self._joined(obs), self._clock)

    def _joined(self, obs: Any) -> NDArray[Any]:
        """Observations on the host, those of roles in one array."""
        by_role = {k: to_host(v) for k, v in obs.items()} if isinstance(obs, Mapping) else to_host(obs)
        return join_roles(by_role, self._simulation.schema)  # type: ignore[no-any-return]  # an array


def _row(states: Mapping[str, NDArray[Any]], row: int) -> Results:
    return {name: values[row] for name, values in states.items()}


def _key(moments: _Moments, row: int, episode: Any, time: int) -> CheckedKey:
    seed, high, number, _ = moments.keys[row].tolist()
    return CheckedKey(seed, high, number, int(episode), time)
