"""`NormalizeObservation`: observations with mean 0 and variance 1."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers.base import Out, StatefulWrapper, Step, require_box, require_number, rows_of_reset, write_to_out
from gpuvec.vector.wrappers.running_moments import initial_moments, inverse_deviation, update_moments
from gpuvec.vector.wrappers.wrapper_state import WrapperState


class NormalizeObservation(StatefulWrapper):
    """Returns (obs - mean) / sqrt(var + epsilon) as float32, with the running moments of all observations of all rows so far.

    Each observation counts once: all rows of a step or of a full reset, the masked rows of a partial reset (the other rows are
    normalised but not counted), and under SAME_STEP the rows of `infos["final_obs"]` that ended, which are normalised too. So
    every autoreset mode counts the same observations of an episode.

    Args:
        env: the environment.
        epsilon: a number that is added to the variance.

    Attributes:
        update_running_mean: False freezes the moments, for evaluation. A captured graph keeps the value at its capture.

    Raises:
        gymnasium.error.InvalidBound: `epsilon` <= 0.
        WrapperError: the observation space is no Box.
    """

    def __init__(self, env: VectorEnv, epsilon: float = 1e-8) -> None:
        require_number(epsilon, "epsilon", "greater than 0", math.ulp(0.0))
        shape = require_box(env.single_observation_space, "the observation space").shape
        super().__init__(env, WrapperState(**initial_moments(shape)))
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.observation_space = batched_space(self.single_observation_space, env.num_envs)
        self.epsilon, self.update_running_mean = epsilon, True

    @property
    def mean(self) -> Any:
        """The running mean, of the shape of one observation."""
        return self._buffers["mean"]

    @property
    def var(self) -> Any:
        """The running variance, of the shape of one observation."""
        return self._buffers["var"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, counts the observations and normalises them; the moments continue.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options.
        """
        obs, info = super().reset(seed=seed, options=options)
        self._buffers.place(obs)
        self._count(obs, rows_of_reset(options, self._buffers))
        return self._normalized(obs), info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment, counts the observations and normalises them.

        Args:
            actions: the actions of all rows.
            out: arrays to write to; those of observations get the normalised ones.
        """
        obs, reward, terminated, truncated, info = super().step(actions, out)
        buffers = self._buffers
        buffers.place(obs)
        self._count(obs)
        if "final_obs" in info:
            mask, final_obs = info["_final_obs"], _dense(info["final_obs"], obs)
            self._count(final_obs, mask)
            rows = mask.reshape((-1,) + (1,) * (final_obs.ndim - 1))
            # The other rows hold no observation: normalising them again in every step would overflow.
            final_obs = buffers.ns.xp.where(rows, self._normalized(final_obs), buffers.ns.float32(final_obs))
            info = {**info, "final_obs": write_to_out(final_obs, "final_obs", out)}
        return write_to_out(self._normalized(obs), "obs", out), reward, terminated, truncated, info

    def _count(self, rows: Any, mask: Any = None) -> None:
        if self.update_running_mean:
            update_moments(self._buffers, rows, mask)

    def _normalized(self, rows: Any) -> Any:
        float32 = self._buffers.ns.float32
        return float32((rows - float32(self._buffers["mean"])) * inverse_deviation(self._buffers, self.epsilon))


def _dense(final_obs: Any, like: Any) -> Any:
    """`final_obs` as a numeric array.

    Gymnasium's own environments return an array of objects, None where no episode ended; those rows become zeros.
    """
    if not isinstance(final_obs, np.ndarray) or final_obs.dtype != np.object_:
        return final_obs
    dense = np.zeros_like(like)
    for row, row_obs in enumerate(final_obs):
        if row_obs is not None:
            dense[row] = row_obs
    return dense
