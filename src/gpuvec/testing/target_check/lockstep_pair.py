"""The same environments on the CPU and on another target, call by call, each call from the CPU's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.spec import Environment
from gpuvec.testing.target_check.targets import CPU
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers import ToNumpy

STATE_BUFFERS = ("state", "floats", "ints", "bools")  # buffers of the physical state, which is compared field by field
SHARED_BUFFERS = ("clock", "shared", "faults")  # buffers without an axis for the environments
Results = dict[str, NDArray[Any]]  # {name: (E, ...)}
EnvCall = Callable[[ToNumpy], tuple[Any, ...]]  # what a call of `reset` or `step` returns, the observations first


class LockstepPair:
    """Calls both in turn: first a seeded reset, then steps with random actions; in DISABLED also resets of ended episodes.

    Before each call the other target loads the CPU's states, clocks and random streams. So a difference comes from that call
    alone, and rounding errors do not accumulate.

    Args:
        env: the environment, or its id as `gymnasium.make_vec` takes it.
        target_options: keyword arguments that make it on the other target.
        num_envs: E.
        seed: of the environments and of the actions.
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
            ToNumpy(make(num_envs=num_envs, **{**options, **where})) for where in (CPU.options, target_options)
        )
        self.has_agents = len(self.cpu.single_observation_space.shape or ()) > 1
        self.ended = np.zeros(num_envs, np.bool_)  # (E,) whose episode ended in the last call
        self.num_calls = self.num_steps = 0
        self.call_name = "reset"  # of the last call
        self._state_before: Any = None  # state_dict before the last call
        self._reset_mask = self.ended  # (E,) which the last call had to reset
        self._last_call: EnvCall = lambda env: (env.reset(seed=seed)[0],)
        self._is_disabled = self.cpu.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        self.cpu.action_space.seed(seed)

    def call(self) -> tuple[Results, Results]:
        """Makes the next call on both, and returns the results of the CPU and of the other target."""
        if self.num_calls:
            self._state_before = self.cpu.state_dict()
            self.other.load_state_dict(self._state_before)
            self._last_call = self._next_call()
        self._reset_mask = self.ended
        cpu, other = (_results(env, *self._last_call(env)) for env in (self.cpu, self.other))
        is_step = self.call_name == "step"
        self.ended = cpu["terminated"] | cpu["truncated"] if is_step else np.zeros_like(self.ended)
        self.num_calls += 1
        return cpu, other

    def _next_call(self) -> EnvCall:
        if self._is_disabled and self.ended.any():
            self.call_name, options = "masked reset", {"reset_mask": self.ended}
            return lambda env: (env.reset(options=options)[0],)
        self.call_name, action = "step", self.cpu.action_space.sample()
        self.num_steps += 1
        return lambda env: env.step(action)

    def perturbed(self, rows: Mapping[int, int | None], scale: float, random: np.random.Generator) -> Results:
        """The CPU's results of the last call if one float x of the state of each of these rows had been another.

        Args:
            rows: {row: index of the agent whose float changes, None for any}; a row that the call resets stays as it was.
            scale: the largest change, relative to max(1, |x|).
            random: draws the field and the change.
        """
        state_after = self.cpu.state_dict()
        self.cpu.load_state_dict(self._state_before)
        floats = {name: array for name, array in self.cpu.get_state().items() if array.dtype.kind == "f"}
        mask = np.zeros_like(self.ended)
        for row, agent in rows.items() if floats else ():
            array = floats[random.choice(list(floats))]
            place = (row, *random.integers(array.shape[1:]))
            place = place if agent is None or array.ndim == 1 else (row, agent, *place[2:])
            array[place] += scale * random.uniform(-1.0, 1.0) * max(1.0, abs(array[place]))
            mask[row] = not self._reset_mask[row]
        if mask.any():
            self.cpu.set_state(floats, mask)
        results = _results(self.cpu, *self._last_call(self.cpu))
        self.cpu.load_state_dict(state_after)
        return results

    def close(self) -> None:
        """Frees both."""
        self.cpu.close()
        self.other.close()


def _results(env: ToNumpy, obs: NDArray[Any], *step_results: Any) -> Results:
    """All that a call returned, and the state of `env` after it; what other results follow from comes first.

    Final observations of rows that did not end are replaced by zeros.
    """
    reward, terminated, truncated, infos = step_results or (None, None, None, {})
    results = {"terminated": terminated, "truncated": truncated}
    results |= {f"state {name}": array for name, array in env.get_state().items()}
    results |= {"reward": reward, "observation": obs, **infos}
    if "final_obs" in infos:
        ended = infos["_final_obs"].reshape(-1, *(1,) * (obs.ndim - 1))
        results["final_obs"] = np.where(ended, infos["final_obs"], np.float32(0.0))
    for name, buffer in env.state_dict()["buffers"].items():
        if name not in STATE_BUFFERS and not name.startswith("state_"):
            array = to_host(buffer)
            results[f"engine {name}"] = array.reshape(1, -1) if name in SHARED_BUFFERS else array
    return {name: array for name, array in results.items() if isinstance(array, np.ndarray)}
