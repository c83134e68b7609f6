"""Observations with mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers import running_moments
from gpuvec.vector.wrappers.base import Out, StatefulWrapper, Step, box, reset_mask, write_to_out
from gpuvec.vector.wrappers.wrapper_state import WrapperState


class NormalizeObservation(StatefulWrapper):
    """Returns (obs - mean) / sqrt(var + epsilon) as float32: the running moments of all observations so far, all rows pooled.

    Each observation counts once: all rows of a step or full reset, the masked rows of a partial reset (the others are
    normalised, not counted), and under SAME_STEP the rows of `infos["final_obs"]` that ended, which are normalised too. So
    every autoreset mode counts the same observations of an episode.

    Attributes:
        update_running_mean: False freezes the moments, for evaluation. A captured graph keeps what was set at its capture.

    Raises:
        gymnasium.error.InvalidBound: `epsilon` <= 0.
        WrapperError: observations are no Box.
    """

    def __init__(self, env: VectorEnv, epsilon: float = 1e-8) -> None:
        if not epsilon > 0:
            raise InvalidBound(f"epsilon must be greater than 0, got {epsilon}.")
        shape = box(env.single_observation_space, "the observation space").shape
        super().__init__(env, WrapperState(**running_moments.initial(shape)))
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
        """Resets; the moments stay."""
        obs, info = super().reset(seed=seed, options=options)
        self._buffers.place(obs)
        self._count(obs, reset_mask(options, self._buffers))
        return self._normalized(obs), info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps, counts, normalises; arrays of `out` end up normalised."""
        obs, reward, terminated, truncated, info = super().step(actions, out)
        b = self._buffers
        b.place(obs)
        self._count(obs)
        if "final_obs" in info:
            mask, final = info["_final_obs"], _dense(info["final_obs"], obs)
            self._count(final, mask)
            rows = mask.reshape((-1,) + (1,) * (final.ndim - 1))
            # Rows that did not end hold no observation; normalising one over and over would overflow.
            final = b.ns.xp.where(rows, self._normalized(final), b.ns.float32(final))
            info = {**info, "final_obs": write_to_out(final, "final_obs", out)}
        return write_to_out(self._normalized(obs), "obs", out), reward, terminated, truncated, info

    def _count(self, rows: Any, mask: Any = None) -> None:
        if self.update_running_mean:
            running_moments.update(self._buffers, rows, mask)

    def _normalized(self, rows: Any) -> Any:
        b = self._buffers
        return b.ns.float32((rows - b.ns.float32(b["mean"])) * running_moments.scale(b, self.epsilon))


def _dense(final: Any, like: Any) -> Any:
    """`final`, or for Gymnasium's own array of objects (None where no episode ended) its rows in an array as `like`."""
    if not isinstance(final, np.ndarray) or final.dtype != np.object_:
        return final
    dense = np.zeros_like(like)
    for row, one in enumerate(final):
        if one is not None:
            dense[row] = one
    return dense
