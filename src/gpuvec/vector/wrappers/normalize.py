"""Observations with mean 0 and variance 1, and rewards divided by the standard deviation of the discounted return."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers.base import (
    Out,
    StatefulWrapper,
    Step,
    WrapperState,
    get_autoreset_mode,
    require_box,
    require_number,
    rows_like,
    rows_of_reset,
    write_to_out,
)


def initial_moments(shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns mean 0 and variance 1, with a count that is almost 0.

    Args:
        shape: the shape of one row.
    """
    return {"mean": np.zeros(shape), "var": np.ones(shape), "count": np.array(1e-4)}


def update_moments(buffers: WrapperState, rows: Any, mask: Any = None) -> None:
    """Updates the moments with a batch of rows.

    Args:
        buffers: the wrapper's arrays, with those of `initial_moments`.
        rows: the batch, (E, ...).
        mask: which rows count, (E,) bool; None for all. A batch without such a row changes nothing.
    """
    ns, num_rows = buffers.ns, rows.shape[0]
    if mask is not None:
        num_rows = ns.xp.sum(mask)
        mask = rows_like(mask, rows)

    def mean_of(values: Any) -> Any:
        if mask is None:
            return ns.sum_rows(values) / num_rows
        return ns.sum_rows(ns.xp.where(mask, values, ns.xp.zeros_like(values))) / ns.xp.clip(num_rows, 1, None)

    # Two passes, because the mean of squares less the square of the mean cancels where the mean is large.
    mean = mean_of(rows)
    deviation = rows - ns.float32(mean)
    var = mean_of(deviation * deviation)
    total = buffers["count"] + num_rows
    old_weight, new_weight = buffers["count"] / total, num_rows / total
    delta = mean - buffers["mean"]
    buffers["var"] = old_weight * buffers["var"] + new_weight * (var + old_weight * delta * delta)
    buffers["mean"] = buffers["mean"] + new_weight * delta
    buffers["count"] = total


def inverse_deviation(buffers: WrapperState, epsilon: float) -> Any:
    """Returns 1 / sqrt(var + epsilon) in float32, of the shape of one row.

    Args:
        buffers: the wrapper's arrays, with those of `initial_moments`.
        epsilon: a number that is added to the variance.
    """
    return buffers.ns.float32(1 / buffers.ns.xp.sqrt(buffers["var"] + epsilon))


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
            # The other rows hold no observation: normalising them again in every step would overflow.
            normalized, others = self._normalized(final_obs), buffers.ns.float32(final_obs)
            final_obs = buffers.ns.xp.where(rows_like(mask, final_obs), normalized, others)
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


class NormalizeReward(StatefulWrapper):
    """Returns reward / sqrt(var + epsilon), where var is the running variance of G <- gamma * G + reward of all rows.

    G starts at 0 with each episode, and includes the reward that ends the episode, as in OpenAI Baselines' VecNormalize.
    (Gymnasium's wrapper drops the earlier rewards in a terminal step, continues G over a NEXT_STEP reset, and resets G of all
    rows in a masked reset.) Rewards are not centred. NEXT_STEP reset steps, and under DISABLED rows that await their reset, do
    not count.

    Args:
        env: the environment.
        gamma: the discount factor.
        epsilon: a number that is added to the variance.

    Attributes:
        update_running_mean: False freezes the variance, for evaluation. A captured graph keeps the value at its capture.

    Raises:
        gymnasium.error.InvalidBound: `gamma` outside [0, 1], or `epsilon` <= 0.
        WrapperError: the environment's metadata has no autoreset mode.
    """

    _episode_arrays = ("discounted_return", "awaits_reset")

    def __init__(self, env: VectorEnv, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        require_number(gamma, "gamma", "in [0, 1]", 0.0, 1.0)
        require_number(epsilon, "epsilon", "greater than 0", math.ulp(0.0))
        rows = {"discounted_return": np.zeros(env.num_envs, np.float32), "awaits_reset": np.zeros(env.num_envs, np.bool_)}
        super().__init__(env, WrapperState(**initial_moments(()), **rows))
        self._mode = get_autoreset_mode(env)
        self.gamma, self.epsilon, self.update_running_mean = gamma, epsilon, True

    @property
    def var(self) -> Any:
        """The running variance of the discounted return, of shape ()."""
        return self._buffers["var"]

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment, counts the rewards and normalises them.

        Args:
            actions: the actions of all rows.
            out: arrays to write to; `out["reward"]` gets the normalised rewards.
        """
        obs, reward, terminated, truncated, info = super().step(actions, out)
        buffers = self._buffers
        buffers.place(reward)
        xp, counts = buffers.ns.xp, ~buffers["awaits_reset"]
        discounted = xp.where(counts, buffers["discounted_return"] * self.gamma + reward, 0)
        if self.update_running_mean:
            update_moments(buffers, discounted, counts)
        ended = counts & (terminated | truncated)
        buffers["discounted_return"] = xp.where(ended, 0, discounted)
        self._end_episodes(ended)
        normalized = reward * inverse_deviation(buffers, self.epsilon)
        return obs, write_to_out(normalized, "reward", out), terminated, truncated, info
