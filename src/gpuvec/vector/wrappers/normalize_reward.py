"""Rewards in units of the deviation of the discounted return."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import AutoresetMode, VectorEnv

from gpuvec.vector.wrappers import running_moments
from gpuvec.vector.wrappers.base import Out, StatefulWrapper, Step, autoreset_mode, reset_mask, write_to_out
from gpuvec.vector.wrappers.wrapper_state import WrapperState


class NormalizeReward(StatefulWrapper):
    """Returns reward / sqrt(var + epsilon), var being the running variance of G <- gamma * G + reward, all rows pooled.

    G starts at 0 with each episode, and the reward that ends one counts in its G, as in OpenAI Baselines' VecNormalize.
    (Gymnasium's wrapper leaves the past out of a terminal step, carries G over a NEXT_STEP reset, and forgets all rows at a
    masked one.) Rewards are not centred. NEXT_STEP reset steps, and under DISABLED rows that await their reset, do not count.

    Attributes:
        update_running_mean: False freezes the variance, for evaluation. A captured graph keeps what was set at its capture.

    Raises:
        gymnasium.error.InvalidBound: `gamma` outside [0, 1], or `epsilon` <= 0.
        WrapperError: the environment's metadata has no autoreset mode.
    """

    def __init__(self, env: VectorEnv, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        if not 0 <= gamma <= 1:
            raise InvalidBound(f"gamma must lie in [0, 1], got {gamma}.")
        if not epsilon > 0:
            raise InvalidBound(f"epsilon must be greater than 0, got {epsilon}.")
        n = env.num_envs
        rows = {"discounted_return": np.zeros(n, np.float32), "over": np.zeros(n, np.bool_)}
        super().__init__(env, WrapperState(**running_moments.initial(()), **rows))
        self._mode = autoreset_mode(env)
        self.gamma, self.epsilon, self.update_running_mean = gamma, epsilon, True

    @property
    def var(self) -> Any:
        """The running variance of the discounted return, of shape ()."""
        return self._buffers["var"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets; the rows that are reset begin a new discounted return, the variance stays."""
        obs, info = super().reset(seed=seed, options=options)
        self._buffers.clear(reset_mask(options, self._buffers), "discounted_return", "over")
        return obs, info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps, counts, normalises; `out["reward"]` ends up normalised."""
        obs, reward, terminated, truncated, info = super().step(actions, out)
        b = self._buffers
        b.place(reward)
        xp, live = b.ns.xp, ~b["over"]
        discounted = xp.where(live, b["discounted_return"] * self.gamma + reward, 0)
        if self.update_running_mean:
            running_moments.update(b, discounted, live)
        ended = live & (terminated | truncated)
        b["discounted_return"] = xp.where(ended, 0, discounted)
        if self._mode is not AutoresetMode.SAME_STEP:
            b["over"] = ended if self._mode is AutoresetMode.NEXT_STEP else b["over"] | ended
        return obs, write_to_out(reward * running_moments.scale(b, self.epsilon), "reward", out), terminated, truncated, info
