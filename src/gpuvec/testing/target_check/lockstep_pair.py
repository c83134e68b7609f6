"""Runs the same environments on the CPU and on another target in lockstep, each call from the state of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.layout.schema import PACKED_BUFFERS, EnvSchema
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import allowed_actions, flat_infos, join_roles, split_actions
from gpuvec.testing.target_check.differences import ENGINE, STATE, make_result_layout
from gpuvec.testing.target_check.targets import CPU
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers import ToNumpy

STATE_BUFFERS = ("state", *PACKED_BUFFERS.values())  # buffers of the physical state, which is compared field by field
SHARED_BUFFERS = ("clock", "shared", "faults")  # buffers without an axis for the environments
SHARED_RESULTS = tuple(ENGINE + name for name in SHARED_BUFFERS)
Results = dict[str, NDArray[Any]]  # {name: (E, ...)}, in which `SHARED_RESULTS` have one row
EnvCall = Callable[[ToNumpy], tuple[Any, ...]]  # what a call of `reset` or `step` returns, the observations first


def ignore_call(place: str, is_first: bool) -> None:
    """Does nothing before a call of a `LockstepPair`.

    Args:
        place: what is called.
        is_first: whether it is the first of its kind.
    """


class LockstepPair:
    """Makes the same calls on both: a seeded reset, then steps with random actions; in DISABLED also resets of ended episodes.

    Before each call the other target loads the states, clocks and random-number streams of the CPU. A difference is therefore
    caused by that call alone, and rounding errors do not accumulate.

    Args:
        env: the environment, or its id as `gymnasium.make_vec` takes it.
        target_options: keyword arguments that create it on the other target.
        num_envs: the number of environments, E.
        seed: the seed of the environments and of the actions.
        on_call: called before each call as `on_call(place, is_first)` with what is called, such as "in step 3", and whether it
            is the first of its kind, which compiles kernels.
        options: further keyword arguments of both, such as `autoreset_mode`, `max_episode_steps` and parameters.

    Attributes:
        layout: the owners of the elements of results.
        ended: (E,) bool, whether the episode ended in the last call.
        num_calls: the number of calls.
        num_steps: the number of them that were steps.
    """

    def __init__(
        self,
        env: str | Environment,
        target_options: Mapping[str, str],
        *,
        num_envs: int,
        seed: int = 0,
        on_call: Callable[[str, bool], None] = ignore_call,
        **options: str | float | None,
    ) -> None:
        make: Callable[..., Any] = partial(gym.make_vec, env) if isinstance(env, str) else partial(VectorEnv, env)
        self.cpu, self.other = (
            ToNumpy(make(num_envs=num_envs, **{**options, **place})) for place in (CPU.options, target_options)
        )
        self.layout = make_result_layout(self._schema)
        self.ended = np.zeros(num_envs, np.bool_)
        self.num_calls = self.num_steps = 0
        self._call_name = "reset"  # "reset", "step" or "masked reset": the last call
        self._known_calls: set[str] = set()  # the names of calls whose kernels are compiled
        self._on_call = on_call
        self._action: Any = None  # of the last step
        self._state_before: Any = None  # state_dict before the last call
        self._resets = self.ended  # (E,) whether the last call reset the environment instead of a step
        self._mask: NDArray[np.bool_] | None = None  # (E, ..., N) of the last call on the CPU
        self._last_call: EnvCall = lambda env: env.reset(seed=seed)
        self._mode = self.cpu.metadata["autoreset_mode"]
        self.cpu.action_space.seed(seed)

    @property
    def _schema(self) -> EnvSchema:
        schema: EnvSchema = self.cpu.unwrapped.simulation.schema  # type: ignore[attr-defined]  # a `VectorEnv`
        return schema

    @property
    def place(self) -> str:
        """The last call, such as "in step 3"."""
        return {
            "reset": "in the first reset",
            "step": f"in step {self.num_steps}",
            "masked reset": f"in the masked reset after step {self.num_steps}",
        }[self._call_name]

    def call(self) -> tuple[Results, Results]:
        """Makes the next call on both and returns the results, those of the CPU first."""
        if self.num_calls:
            self._state_before = self.cpu.state_dict()
            self.other.load_state_dict(self._state_before)
            self._last_call = self._next_call()
        self._resets = np.zeros_like(self.ended) if self._mode is AutoresetMode.SAME_STEP else self.ended
        self._on_call(self.place, self._call_name not in self._known_calls)
        cpu, other = (_results(env, *self._last_call(env)) for env in (self.cpu, self.other))
        self._known_calls.add(self._call_name)
        self._mask, is_step = cpu.get("action_mask"), self._call_name == "step"
        self.ended = cpu["terminated"] | cpu["truncated"] if is_step else np.zeros_like(self.ended)
        self.num_calls += 1
        return cpu, other

    def _next_call(self) -> EnvCall:
        if self._mode is AutoresetMode.DISABLED and self.ended.any():
            self._call_name, options = "masked reset", {"reset_mask": self.ended}
            return lambda env: env.reset(options=options)
        self._call_name, action = "step", self.cpu.action_space.sample()
        self.num_steps += 1
        if self._mask is not None:
            action = split_actions(allowed_actions(join_roles(action, self._schema), self._mask, self._schema), self._schema)
        self._action = action
        return lambda env: env.step(action)

    def steps_from_state(self, row: int) -> bool:
        """Returns whether the last call was a step of an environment from a state that floats of it determine.

        Args:
            row: the index of the environment.
        """
        return self._call_name == "step" and not bool(self._resets[row])

    def repeat_changed(self, row: int, change: Callable[[dict[str, NDArray[Any]]], None]) -> Results:
        """Repeats the last step of one environment on the CPU E times, from E states, and returns the results.

        Args:
            row: the index of the environment, for which `steps_from_state` is true.
            change: changes {field: (E, ...) array} of the floats of the state, which has E equal rows, in place.

        Returns:
            {name: (E, ...) array}, without `SHARED_RESULTS`.
        """
        self._on_call(self.place, False)
        state_after, buffers = self.cpu.state_dict(), self._state_before["buffers"]
        rows = np.full(len(self.ended), row)
        copies = {name: array if name in SHARED_BUFFERS else array[rows] for name, array in buffers.items()}
        # Without a stream in common every environment draws from its own one, of which all are copies.
        copies["shared"] = np.zeros_like(copies["shared"])
        self.cpu.load_state_dict({**self._state_before, "buffers": copies})
        floats = {name: array for name, array in self.cpu.get_state().items() if array.dtype.kind == "f"}
        change(floats)
        if floats:
            self.cpu.set_state(floats)
        action = self._action
        action = {k: v[rows] for k, v in action.items()} if isinstance(action, dict) else action[rows]
        results = _results(self.cpu, *self.cpu.step(action))
        self.cpu.load_state_dict(state_after)
        return {name: array for name, array in results.items() if name not in SHARED_RESULTS}

    def close(self) -> None:
        """Closes the environments on both targets."""
        self.cpu.close()
        self.other.close()


def _results(env: ToNumpy, obs: NDArray[Any], *step_results: Any) -> Results:
    """The results of a call and the state after it. Causes come before effects, so that the first difference is a cause.

    Final observations of rows whose episode did not end are replaced by zeros.
    """
    *step_values, infos = step_results
    reward, terminated, truncated = step_values or (None, None, None)
    schema = env.unwrapped.simulation.schema  # type: ignore[attr-defined]  # a `VectorEnv`
    obs = join_roles(obs, schema)
    results = {"terminated": terminated, "truncated": truncated}
    results |= {STATE + name: array for name, array in env.get_state().items()}
    results |= {"reward": reward, "observation": obs, **flat_infos(infos, schema)}
    if "final_obs" in infos:
        ended = infos["_final_obs"].reshape(-1, *(1,) * (obs.ndim - 1))
        results["final_obs"] = np.where(ended, join_roles(infos["final_obs"], schema), np.float32(0.0))
    for name, buffer in env.state_dict()["buffers"].items():
        if name not in STATE_BUFFERS and not name.startswith("state_"):
            array = to_host(buffer)
            results[ENGINE + name] = array.reshape(1, -1) if name in SHARED_BUFFERS else array
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}
