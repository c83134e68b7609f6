"""Wrappers that transform the actions, the rewards or all arrays of single steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.host_copies import copies_on_host, framework_of
from gpuvec.vector.native_arrays import export_errors
from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers.base import Namespace, Out, Step, Wrapper, WrapperState, require_box, require_number, write_to_out


class BoxActionWrapper(Wrapper):
    """Passes `transform(actions)` to the environment in place of actions (E, K).

    Args:
        env: the environment, whose action space is a Box.
        low: lower bounds of the actions that the wrapper takes, a scalar or (K,).
        high: upper bounds of these actions, a scalar or (K,).
        constants: arrays that `transform` reads, scalars or (K,); they are moved to the device of the actions.

    Raises:
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv, low: Any, high: Any, /, **constants: Any) -> None:
        super().__init__(env)
        shape = require_box(env.single_action_space, "the action space").shape
        self.single_action_space = gym.spaces.Box(low, high, shape, np.float32)
        self.action_space = batched_space(self.single_action_space, env.num_envs)
        self._constants = WrapperState(**{name: np.asarray(value, np.float32) for name, value in constants.items()})

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps with the transformed actions.

        Args:
            actions: (E, K) float32.
            out: arrays to write to, as in `gpuvec.VectorEnv.step`.
        """
        self._constants.place(actions)
        with export_errors(actions):
            transformed = self.transform(self._constants.ns.asarray(actions))
        return super().step(transformed, out)

    def transform(self, actions: Any) -> Any:
        """Returns the actions that the environment takes, (E, K).

        Args:
            actions: the actions that the wrapper takes, (E, K).
        """
        raise NotImplementedError


class ClipAction(BoxActionWrapper):
    """Takes any float actions (E, K) and clips each component to the environment's Box.

    Args:
        env: the environment.

    Raises:
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv) -> None:
        space = require_box(env.single_action_space, "the action space")
        super().__init__(env, -np.inf, np.inf, low=space.low, high=space.high)

    def transform(self, actions: Any) -> Any:
        """Returns the clipped actions, (E, K).

        Args:
            actions: (E, K).
        """
        return self._constants.ns.xp.clip(actions, self._constants["low"], self._constants["high"])


class RescaleAction(BoxActionWrapper):
    """Takes actions (E, K) in [min_action, max_action] and maps them linearly onto the environment's Box [low, high].

    The map is not clipped: actions outside the interval become actions outside the Box. Put a `ClipAction` inside if that
    matters.

    Args:
        env: the environment.
        min_action: the actions that become `low`, a scalar or (K,).
        max_action: the actions that become `high`, a scalar or (K,).

    Raises:
        gymnasium.error.InvalidBound: min_action is not below max_action, or a bound is not finite.
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv, min_action: Any = -1.0, max_action: Any = 1.0) -> None:
        space = require_box(env.single_action_space, "the action space")
        inner_low, inner_high = space.low.astype(np.float64), space.high.astype(np.float64)
        try:
            outer_low, outer_high = (np.broadcast_to(np.asarray(x, np.float64), space.shape) for x in (min_action, max_action))
        except Exception as error:  # NumPy and other libraries have errors of their own for what has no numbers
            raise InvalidBound(
                f"min_action ({min_action}) and max_action ({max_action}) must be numbers, or arrays of shape {space.shape}."
            ) from error
        if not (np.isfinite(outer_low).all() and np.isfinite(outer_high).all() and (outer_low < outer_high).all()):
            raise InvalidBound(f"min_action ({min_action}) must be below max_action ({max_action}), both finite.")
        if not (np.isfinite(inner_low).all() and np.isfinite(inner_high).all()):
            raise InvalidBound(f"only an action space with finite bounds can be rescaled, got {space}.")
        gradient = (inner_high - inner_low) / (outer_high - outer_low)
        intercept = inner_low - gradient * outer_low
        super().__init__(
            env, outer_low.astype(np.float32), outer_high.astype(np.float32), gradient=gradient, intercept=intercept
        )

    def transform(self, actions: Any) -> Any:
        """Returns the actions in the environment's units, (E, K).

        Args:
            actions: (E, K).
        """
        return actions * self._constants["gradient"] + self._constants["intercept"]


class ClipReward(Wrapper):
    """Clips rewards to [min_reward, max_reward].

    Args:
        env: the environment.
        min_reward: the lower bound; None for none.
        max_reward: the upper bound; None for none.

    Raises:
        gymnasium.error.InvalidBound: both bounds are None, or the lower one is above the upper one.
    """

    def __init__(self, env: VectorEnv, min_reward: float | None = None, max_reward: float | None = None) -> None:
        super().__init__(env)
        if min_reward is None and max_reward is None:
            raise InvalidBound("min_reward and max_reward are both None: give at least one bound.")
        for name, bound in (("min_reward", min_reward), ("max_reward", max_reward)):
            if bound is not None:
                require_number(bound, name, "a number or None", -math.inf)
        if min_reward is not None and max_reward is not None and not min_reward <= max_reward:
            raise InvalidBound(f"min_reward ({min_reward}) must not be above max_reward ({max_reward}).")
        self._bounds = min_reward, max_reward

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment and clips the rewards.

        Args:
            actions: the actions of all rows.
            out: arrays to write to; `out["reward"]` gets the clipped rewards.
        """
        obs, reward, terminated, truncated, info = super().step(actions, out)
        clipped = Namespace(reward).xp.clip(reward, *self._bounds)
        return obs, write_to_out(clipped, "reward", out), terminated, truncated, info


class ToNumpy(Wrapper):
    """Takes NumPy actions and returns NumPy arrays, also inside infos, for code made for Gymnasium's own environments.

    Every step waits for the device and copies from it; arrays of a CPU are returned as views. Values that are no arrays stay
    as they are. Wrappers that compute on the device belong inside this one. The arrays of `out` are NumPy arrays.
    """

    output = "numpy"
    _namespace: Namespace | None = None  # of the environment's arrays; None until the first reset

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options.
        """
        obs, info = super().reset(seed=seed, options=options)
        return self._to_numpy(obs), self._to_numpy(info)

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment with the actions, which are moved to the device.

        Args:
            actions: the actions of all rows, usually a NumPy array.
            out: NumPy arrays to which the results are copied.
        """
        if self._namespace is not None:
            actions = _replace_arrays(actions, self._namespace.asarray)
        obs, reward, terminated, truncated, info = self._to_numpy(super().step(actions))
        if "final_obs" in info:
            info["final_obs"] = write_to_out(info["final_obs"], "final_obs", out)
            info["_final_obs"] = write_to_out(info["_final_obs"], "final_mask", out)
        return (
            write_to_out(obs, "obs", out),
            write_to_out(reward, "reward", out),
            write_to_out(terminated, "terminated", out),
            write_to_out(truncated, "truncated", out),
            info,
        )

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the environment's state as NumPy arrays, {field: (E,) or (E, A)}."""
        state: dict[str, np.ndarray[Any, Any]] = self._to_numpy(self.env.get_state())  # type: ignore[attr-defined]  # gpuvec's have it
        return state

    def _to_numpy(self, value: Any) -> Any:
        """`value` with all its arrays copied to the host; waits for the device once."""
        arrays: list[Any] = []
        _replace_arrays(value, arrays.append)
        if arrays:
            self._namespace = self._namespace or Namespace(arrays[0])
        copies = iter(copies_on_host(arrays))
        return _replace_arrays(value, lambda array: next(copies))


def _replace_arrays(value: Any, replace: Callable[[Any], Any]) -> Any:
    """`value` with `replace(array)` for each array in its mappings and tuples, in their order."""
    if isinstance(value, Mapping):
        return {name: _replace_arrays(element, replace) for name, element in value.items()}
    if isinstance(value, tuple):
        return tuple(_replace_arrays(element, replace) for element in value)
    return value if framework_of(value) is None else replace(value)
