"""The same environments on the CPU and on another backend, call by call, each call from the CPU's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.spec import Environment
from gpuvec.testing.target_check.targets import CPU
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers import ToNumpy

PHYSICAL = ("state", "floats", "ints", "bools")  # buffers of the physical state, whose fields have names of their own
OF_ALL = ("clock", "shared", "faults")  # buffers that the environments share
Results = dict[str, Any]  # {name: (E, ...) array of NumPy}
Call = Callable[[Any], tuple[Any, ...]]  # on an environment; the observations first


class Pair:
    """A turn is one call of both: first a seeded reset, then steps with random actions, and in DISABLED after a step in which
    episodes ended the reset of those.

    Before a turn the other is put where the CPU is: states, clocks, random streams. So a difference is that turn's own, and
    rounding does not grow with the steps.

    Args:
        id: of the environment, as `gymnasium.make_vec` takes it, or the environment itself.
        other: keyword arguments that make it on the other backend.
        num_envs: E.
        seed: of the rows and of the actions.
        options: further keyword arguments of both, such as `autoreset_mode`, `max_episode_steps` and parameters.
    """

    def __init__(
        self, id: str | Environment, other: Mapping[str, Any], *, num_envs: int, seed: int = 0, **options: Any
    ) -> None:
        make: Callable[..., Any] = partial(gym.make_vec, id) if isinstance(id, str) else partial(VectorEnv, id)
        made = (make(num_envs=num_envs, **{**options, **where}) for where in (CPU.options, other))
        self.cpu, self.other = (ToNumpy(env) for env in made)
        self.agents = len(self.cpu.single_observation_space.shape or ()) > 1  # whether there is an axis for them
        self.ended = np.zeros(num_envs, np.bool_)  # the rows whose episode ended in the last turn
        self.turns = self.steps = 0
        self.call = "reset"  # what the last turn was
        self._before: Any = None  # the last turn: the state
        self._resets = self.ended  # and the rows that were to be reset
        self._last: Call = lambda env: (env.reset(seed=seed)[0],)
        self._disabled = self.cpu.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        self.cpu.action_space.seed(seed)

    def turn(self) -> tuple[Results, Results]:
        """What the CPU returns and is after the turn, and what the other."""
        if self.turns:
            self._before = self.cpu.state_dict()
            self.other.load_state_dict(self._before)
            self._last = self._next()
        self._resets = self.ended
        cpu, other = (results(env, *self._last(env)) for env in (self.cpu, self.other))
        self.ended = cpu["terminated"] | cpu["truncated"] if self.call == "step" else np.zeros_like(self.ended)
        self.turns += 1
        return cpu, other

    def _next(self) -> Call:
        if self._disabled and self.ended.any():
            self.call, options = "masked reset", {"reset_mask": self.ended}
            return lambda env: (env.reset(options=options)[0],)
        self.call, action = "step", self.cpu.action_space.sample()
        self.steps += 1
        return lambda env: env.step(action)

    def moved(self, rows: Mapping[int, int | None], by: float, random: np.random.Generator) -> Results:
        """What the CPU makes of the last turn if one float x of these rows' states before it was another.

        Args:
            rows: {row: the agent whose float it is, None for any}; a row that was to be reset stays as it was.
            by: the largest change, relative to max(1, |x|).
            random: draws the field and the change.
        """
        now = self.cpu.state_dict()
        self.cpu.load_state_dict(self._before)
        floats = {name: array for name, array in self.cpu.get_state().items() if array.dtype.kind == "f"}
        mask = np.zeros_like(self.ended)
        for row, agent in rows.items() if floats else ():
            array = floats[random.choice(list(floats))]
            place = (row, *random.integers(array.shape[1:]))
            place = place if agent is None or array.ndim == 1 else (row, agent, *place[2:])
            array[place] += by * random.uniform(-1.0, 1.0) * max(1.0, abs(array[place]))
            mask[row] = not self._resets[row]
        if mask.any():
            self.cpu.set_state(floats, mask)
        found = results(self.cpu, *self._last(self.cpu))
        self.cpu.load_state_dict(now)
        return found

    def close(self) -> None:
        """Frees both."""
        self.cpu.close()
        self.other.close()


def results(env: Any, obs: Any, *returned: Any) -> Results:
    """All that a call returned and that `env` is after it, in an order in which what others follow from comes first.

    Of final observations only those of rows that ended are there, the others are zeros.
    """
    reward, terminated, truncated, infos = returned or (None, None, None, {})
    found = {"terminated": terminated, "truncated": truncated}
    found |= {f"state {name}": array for name, array in env.get_state().items()}
    found |= {"reward": reward, "observation": obs, **infos}
    if "final_obs" in infos:
        ended = infos["_final_obs"].reshape(-1, *(1,) * (obs.ndim - 1))
        found["final_obs"] = np.where(ended, infos["final_obs"], np.float32(0.0))
    for name, array in env.state_dict()["buffers"].items():
        if name not in PHYSICAL and not name.startswith("state_"):
            found[f"engine {name}"] = to_host(array).reshape(1, -1) if name in OF_ALL else to_host(array)
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
