"""`ScalarEnv`: one environment on the CPU with the interface of `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.backends.device import Device
from gpuvec.errors import UnknownParameterError
from gpuvec.registration import load_env
from gpuvec.spec import SingleAgentEnv
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.native_arrays import as_native, is_numeric


def checked_action(action: Any, space: gym.Space[Any]) -> NDArray[Any]:
    """Returns one agent's action as an int64 array, or for a Box as a float64 array.

    Args:
        action: the action.
        space: the space of the action.

    Raises:
        ValueError: a Discrete or MultiDiscrete action outside its space, a Box action of a wrong shape or not finite.
        TypeError: a Box action that is no array of numbers.
    """
    if isinstance(space, gym.spaces.Box):
        components = as_native(Device("cpu"), action)
        components = components.astype(np.float64) if is_numeric(components) else np.full(space.shape, np.nan)
        if components.shape != space.shape or not np.isfinite(components).all():
            raise ValueError(f"action {action!r} is not allowed; expected {space.shape} finite numbers, clipped to {space}.")
        return components
    if not space.contains(action):
        raise ValueError(f"action {action!r} is not allowed; the action space is {space}.")
    return np.asarray(action, np.int64)


class ScalarEnv(gym.Env[NDArray[np.float32], Any]):
    """One environment with one agent; `gymnasium.make("gpuvec/...")` builds it and adds the step limit.

    Actions are always checked. Observations are (D,) float32, and every step returns a new array.

    Args:
        env: the environment, or its import path "module:NAME".
        render_mode: None or "rgb_array".
        params: the environment's own parameters.

    Raises:
        UnknownParameterError: a parameter that the environment does not have, or an argument that only `make_vec` takes.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, env: SingleAgentEnv | str, *, render_mode: str | None = None, **params: Any) -> None:
        misplaced = params.keys() & (VectorEnv.__init__.__kwdefaults__ or {}).keys()
        if misplaced:
            raise UnknownParameterError(
                f"{min(misplaced)!r} is an argument of gymnasium.make_vec, for many environments on a device; gymnasium.make "
                f"runs one on the CPU and takes render_mode and its parameters: {', '.join(load_env(env).params._fields)}."
            )
        self._constructor_arguments = {"env": env, "render_mode": render_mode, **params}
        declared = load_env(env)
        self.metadata = {"render_modes": ["rgb_array"] if declared.draw else [], "render_fps": declared.render_fps}
        self._vector_env = VectorEnv(
            env, 1, device="cpu", output="numpy", autoreset_mode=AutoresetMode.DISABLED, max_episode_steps=None,
            render_mode=render_mode, **params,
        )  # fmt: skip
        self.render_mode = render_mode
        self._terminated = False
        self.observation_space = self._vector_env.single_observation_space
        self.action_space = self._vector_env.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: the seed of this and the following episodes; None continues the random numbers.
            options: the environment's own reset options.
        """
        super().reset(seed=seed)
        obs, _ = self._vector_env.reset(seed=int(self.np_random.integers(2**63)), options=options)
        self._terminated = False
        return obs[0].copy(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Steps the environment once; a step after a terminated episode changes nothing and returns reward 0.

        Args:
            action: an action in the space.

        Raises:
            ValueError: a Discrete or MultiDiscrete action outside its space, a Box action of a wrong shape or not finite.
        """
        checked = checked_action(action, self.action_space)
        if self._terminated:
            gym.logger.warn("this episode has terminated: call reset() first. A step changes nothing and gives reward 0.")
        obs, reward, terminated, _, _ = self._vector_env.step(checked[None])
        self._terminated = self._terminated or bool(terminated[0])
        return obs[0].copy(), float(reward[0]), self._terminated, False, {}

    def render(self) -> Any:
        """Returns a picture, (H, W, 3) uint8; None without a `render_mode`."""
        return self._vector_env.render()[0] if self.render_mode is not None else None

    def get_state(self) -> dict[str, Any]:
        """Returns the physical state, {field: value, or array}."""
        rows = {name: values[0] for name, values in self._vector_env.get_state().items()}
        return {name: row.copy() if row.ndim else row.item() for name, row in rows.items()}

    def set_state(self, fields: dict[str, Any]) -> None:
        """Writes fields of the physical state.

        Args:
            fields: {field: value, or array}.
        """
        rows: Any = {name: [value] for name, value in fields.items()} if isinstance(fields, Mapping) else fields
        self._vector_env.set_state(rows)

    def close(self) -> None:
        """Frees the buffers."""
        self._vector_env.close()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the arguments of the constructor and the state, since kernels cannot be pickled."""
        return {
            "arguments": self._constructor_arguments,
            "vector_env": self._vector_env.state_dict() if self._vector_env.ready else None,
            "np_random": self._np_random,
            "terminated": self._terminated,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["arguments"])  # type: ignore[misc]  # `copy` and `pickle` call this on a new, empty object
        self._np_random, self._terminated = saved["np_random"], saved["terminated"]
        if saved["vector_env"] is not None:
            self._vector_env.load_state_dict(saved["vector_env"])
