"""`NormalizeReward`: rewards divided by the standard deviation of the discounted return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from gpuvec.vector.wrappers.base import (
    Out,
    StatefulWrapper,
    Step,
    get_autoreset_mode,
    require_number,
    rows_of_reset,
    write_to_out,
)
from gpuvec.vector.wrappers.running_moments import initial_moments, inverse_deviation, update_moments
from gpuvec.vector.wrappers.wrapper_state import WrapperState


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

    def __init__(self, env: VectorEnv, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        require_number(gamma, "gamma", "in [0, 1]", 0.0, 1.0)
        require_number(epsilon, "epsilon", "greater than 0", math.ulp(0.0))
        num_envs = env.num_envs
        rows = {"discounted_return": np.zeros(num_envs, np.float32), "awaits_reset": np.zeros(num_envs, np.bool_)}
        super().__init__(env, WrapperState(**initial_moments(()), **rows))
        self._mode = get_autoreset_mode(env)
        self.gamma, self.epsilon, self.update_running_mean = gamma, epsilon, True

    @property
    def var(self) -> Any:
        """The running variance of the discounted return, of shape ()."""
        return self._buffers["var"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and the discounted return of the rows that are reset; the variance continues.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options.
        """
        obs, info = super().reset(seed=seed, options=options)
        self._buffers.clear(rows_of_reset(options, self._buffers), "discounted_return", "awaits_reset")
        return obs, info

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
        if self._mode is not AutoresetMode.SAME_STEP:
            buffers["awaits_reset"] = ended if self._mode is AutoresetMode.NEXT_STEP else buffers["awaits_reset"] | ended
        normalized = reward * inverse_deviation(buffers, self.epsilon)
        return obs, write_to_out(normalized, "reward", out), terminated, truncated, info
