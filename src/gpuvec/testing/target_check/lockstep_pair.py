"""Runs the same environments on the CPU and on another target in lockstep, each call from the state of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import flat_infos
from gpuvec.testing.compiled_runs.masked_actions import allowed_actions
from gpuvec.testing.compiled_runs.role_rows import join_roles, split_actions
from gpuvec.testing.target_check.targets import CPU
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers import ToNumpy

STATE_BUFFERS = ("state", "floats", "ints", "bools")  # buffers of the physical state, which is compared field by field
SHARED_BUFFERS = ("clock", "shared", "faults")  # buffers without an axis for the environments
Results = dict[str, NDArray[Any]]  # {name: (E, ...)}
EnvCall = Callable[[ToNumpy], tuple[Any, ...]]  # what a call of `reset` or `step` returns, the observations first


class LockstepPair:
    """Makes the same calls on both: a seeded reset, then steps with random actions; in DISABLED also resets of ended episodes.

    Before each call the other target loads the states, clocks and random-number streams of the CPU. A difference is therefore
    caused by that call alone, and rounding errors do not accumulate.

    Args:
        env: the environment, or its id as `gymnasium.make_vec` takes it.
        target_options: keyword arguments that create it on the other target.
        num_envs: the number of environments, E.
        seed: the seed of the environments and of the actions.
        options: further keyword arguments of both, such as `autoreset_mode`, `max_episode_steps` and parameters.
    """

    def __init__(
        self,
        env: str | Environment,
        target_options: Mapping[str, str],
        *,
        num_envs: int,
        seed: int = 0,
        **options: str | float | None,
    ) -> None:
        make: Callable[..., Any] = partial(gym.make_vec, env) if isinstance(env, str) else partial(VectorEnv, env)
        self.cpu, self.other = (
            ToNumpy(make(num_envs=num_envs, **{**options, **place})) for place in (CPU.options, target_options)
        )
        self.has_agents = bool(self.cpu.unwrapped.is_multi_agent)  # type: ignore[attr-defined]  # a `VectorEnv`
        self.ended = np.zeros(num_envs, np.bool_)  # (E,) whether the episode ended in the last call
        self.num_calls = self.num_steps = 0
        self.call_name = "reset"  # "reset", "step" or "masked reset": the last call
        self._state_before: Any = None  # state_dict before the last call
        self._reset_mask = self.ended  # (E,) whether the last call had to reset the environment
        self._mask: NDArray[np.bool_] | None = None  # (E, ..., N) of the last call on the CPU
        self._last_call: EnvCall = lambda env: env.reset(seed=seed)
        self._is_disabled = self.cpu.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        self.cpu.action_space.seed(seed)

    def call(self) -> tuple[Results, Results]:
        """Makes the next call on both and returns the results, those of the CPU first."""
        if self.num_calls:
            self._state_before = self.cpu.state_dict()
            self.other.load_state_dict(self._state_before)
            self._last_call = self._next_call()
        self._reset_mask = self.ended
        cpu, other = (_results(env, *self._last_call(env)) for env in (self.cpu, self.other))
        self._mask, is_step = cpu.get("action_mask"), self.call_name == "step"
        self.ended = cpu["terminated"] | cpu["truncated"] if is_step else np.zeros_like(self.ended)
        self.num_calls += 1
        return cpu, other

    def _next_call(self) -> EnvCall:
        if self._is_disabled and self.ended.any():
            self.call_name, options = "masked reset", {"reset_mask": self.ended}
            return lambda env: env.reset(options=options)
        self.call_name, action = "step", self.cpu.action_space.sample()
        self.num_steps += 1
        if self._mask is not None:
            schema = self.cpu.unwrapped.simulation.schema  # type: ignore[attr-defined]  # a `VectorEnv`
            action = split_actions(allowed_actions(join_roles(action, schema), self._mask, schema), schema)
        return lambda env: env.step(action)

    def perturbed(self, rows: Mapping[int, int | None], scale: float, random: np.random.Generator) -> Results:
        """Repeats the last call on the CPU after a change of one float x in the state of some rows.

        Args:
            rows: {row: index of the agent whose float changes, None for any}. Rows that the call resets do not change.
            scale: the largest change, relative to max(1, |x|).
            random: the generator that draws the field and the change.

        Returns:
            The results of the call.
        """
        state_after = self.cpu.state_dict()
        self.cpu.load_state_dict(self._state_before)
        floats = {name: array for name, array in self.cpu.get_state().items() if array.dtype.kind == "f"}
        mask = np.zeros_like(self.ended)
        for row, agent in rows.items() if floats else ():
            array = floats[random.choice(list(floats))]
            index = (row, *random.integers(array.shape[1:]))
            index = index if agent is None or array.ndim == 1 else (row, agent, *index[2:])
            array[index] += scale * random.uniform(-1.0, 1.0) * max(1.0, abs(array[index]))
            mask[row] = not self._reset_mask[row]
        if mask.any():
            self.cpu.set_state(floats, mask)
        results = _results(self.cpu, *self._last_call(self.cpu))
        self.cpu.load_state_dict(state_after)
        return results

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
    results |= {f"state {name}": array for name, array in env.get_state().items()}
    results |= {"reward": reward, "observation": obs, **flat_infos(infos, schema)}
    if "final_obs" in infos:
        ended = infos["_final_obs"].reshape(-1, *(1,) * (obs.ndim - 1))
        results["final_obs"] = np.where(ended, join_roles(infos["final_obs"], schema), np.float32(0.0))
    for name, buffer in env.state_dict()["buffers"].items():
        if name not in STATE_BUFFERS and not name.startswith("state_"):
            array = to_host(buffer)
            results[f"engine {name}"] = array.reshape(1, -1) if name in SHARED_BUFFERS else array
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}
