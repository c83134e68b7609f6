"""The scalar face: one environment behind `gymnasium.Env`, on the CPU, for scripts and tools that know only that."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.errors import UnknownParameterError
from gpuvec.registration import load_env
from gpuvec.spec import SingleAgentEnv
from gpuvec.vector.env import VectorEnv


def checked_action(action: Any, space: gym.Space[Any]) -> NDArray[Any]:
    """One agent's action as an array: int64, for a Box float64.

    Raises:
        ValueError: a Discrete or MultiDiscrete action outside its space, a Box action of a wrong shape or not finite.
    """
    if isinstance(space, gym.spaces.Box):
        given = np.asarray(action, np.float64)
        if given.shape != space.shape or not np.isfinite(given).all():
            raise ValueError(f"action {action!r} is not allowed; expected {space.shape} finite numbers, clipped to {space}.")
        return given
    if not space.contains(action):
        raise ValueError(f"action {action!r} is not allowed; the action space is {space}.")
    return np.asarray(action, np.int64)


class ScalarEnv(gym.Env[NDArray[np.float32], Any]):
    """One copy of an environment; built by `gymnasium.make("gpuvec/...")`, which adds the step limit.

    Actions are always checked. Observations are (D,) float32, new in every step.

    Args:
        env: the environment, or its place as "module:NAME".
        render_mode: None or "rgb_array".
        params: the environment's own parameters.

    Raises:
        UnknownParameterError: none of those, or an argument that only `make_vec` takes.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, env: SingleAgentEnv | str, *, render_mode: str | None = None, **params: Any) -> None:
        misplaced = params.keys() & (VectorEnv.__init__.__kwdefaults__ or {}).keys()
        if misplaced:
            raise UnknownParameterError(
                f"{min(misplaced)!r} is an argument of gymnasium.make_vec, for many environments on a device; one alone "
                f"runs on the CPU and takes render_mode and its parameters: {', '.join(load_env(env).params._fields)}."
            )
        self._made_of = {"env": env, "render_mode": render_mode, **params}
        declared = load_env(env)
        self.metadata = {"render_modes": ["rgb_array"] if declared.draw else [], "render_fps": declared.render_fps}
        self._rows = VectorEnv(
            env, 1, device="cpu", output="numpy", autoreset_mode=AutoresetMode.DISABLED, max_episode_steps=None,
            render_mode=render_mode, **params,
        )  # fmt: skip
        self.render_mode = render_mode
        self._over = False
        self.observation_space, self.action_space = self._rows.single_observation_space, self._rows.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode; `options` may hold the environment's own reset options."""
        super().reset(seed=seed)
        obs, _ = self._rows.reset(seed=int(self.np_random.integers(2**63)), options=options)
        self._over = False
        return obs[0].copy(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            ValueError: a Discrete or MultiDiscrete action outside its space, a Box action of a wrong shape or not finite.
        """
        given = checked_action(action, self.action_space)
        if self._over:
            gym.logger.warn("this episode has terminated: call reset() first. A step changes nothing and gives reward 0.")
        obs, reward, terminated, _, _ = self._rows.step(given[None])
        self._over = self._over or bool(terminated[0])
        return obs[0].copy(), float(reward[0]), self._over, False, {}

    def render(self) -> Any:
        """(H, W, 3) uint8."""
        return self._rows.render()[0] if self.render_mode is not None else None

    def get_state(self) -> dict[str, float]:
        """{field: value} of the physical state."""
        return {name: values[0].item() for name, values in self._rows.get_state().items()}

    def set_state(self, fields: dict[str, float]) -> None:
        """Writes fields of the physical state."""
        self._rows.set_state({name: np.array([value]) for name, value in fields.items()})

    def close(self) -> None:
        """Frees the buffers."""
        self._rows.close()

    def __getstate__(self) -> dict[str, Any]:
        """What to build it of, and where it stood: kernels cannot be pickled."""
        return {
            "made_of": self._made_of,
            "rows": self._rows.state_dict() if self._rows.ready else None,
            "np_random": self._np_random,
            "over": self._over,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["made_of"])  # type: ignore[misc]  # a new object is being filled
        self._np_random, self._over = saved["np_random"], saved["over"]
        if saved["rows"] is not None:
            self._rows.load_state_dict(saved["rows"])
