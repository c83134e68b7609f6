"""Stable-Baselines3's `VecEnv` over a gpuvec vector environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.errors import MissingExtraError
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.wrappers import ToNumpy
from gpuvec.vector.wrappers.base import WrapperError, get_autoreset_mode

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise MissingExtraError(f"this needs Stable-Baselines3 ({error}): install stable-baselines3.") from error

ACTION_MASKS = "action_masks"  # the method by which sb3-contrib asks for masks


class StableBaselines3VecEnv(VecEnv):  # type: ignore[misc]  # the type checker does not see the library
    """E rows of a gpuvec environment as the `VecEnv` that Stable-Baselines3's algorithms take.

    ``StableBaselines3VecEnv(gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=64, autoreset_mode="SameStep"))``

    Observations are (E, D) float32, rewards (E,) float32 and dones (E,) bool, NumPy arrays that later steps do not change.
    Every step returns E dictionaries: "TimeLimit.truncated" says that the row was truncated and not terminated, and a row that
    ended has its last observation as "terminal_observation", and in an environment with metrics "metrics", {name: value}.
    Under `gpuvec.vector.wrappers.RecordEpisodeStatistics` such a row also has "episode", {"r": its return, "l": its length in
    steps}, which the algorithms log; Stable-Baselines3's `VecMonitor` counts the same on the host. `seed(s)` seeds row k by
    s + k at the next `reset`, as `DummyVecEnv` does.

    In an environment with action masks each row has a method "action_masks", which sb3-contrib's `MaskablePPO` calls by
    `env_method`: it returns the row's mask, (N,) bool, with those of the components of a MultiDiscrete action in order.

    Under `FlattenAgents` each agent is a row, and an environment has the seed of its first row. An inactive agent stays a row
    whose reward is 0 until its environment's next episode, because Stable-Baselines3 has no mask to leave such rows out.

    Args:
        envs: a gpuvec vector environment in SAME_STEP autoreset mode, also under wrappers, with any device and any output
            except "dlpack".

    Raises:
        WrapperError: another kind of environment, another autoreset mode, another output, or a reward for each of many agents.
        MissingExtraError: Stable-Baselines3 is not installed (when the module is imported).
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        self._base = _supported_base(envs)
        self._envs: Any = envs if getattr(envs, "output", None) == "numpy" else ToNumpy(envs)
        self._actions: Any = None
        self._action_masks: NDArray[np.bool_] | None = None  # of the next step, (E, N)
        self._rows_per_env = envs.num_envs // self._base.num_envs  # more than 1 under FlattenAgents
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        """Begins an episode in every row with the seeds and options that were set, and returns the observations, (E, D).

        Raises:
            ValueError: options that differ among rows.
        """
        if any(options != self._options[0] for options in self._options):
            raise ValueError("the options of all rows must be equal: call set_options with one dictionary.")
        seeds = list(self._seeds[:: self._rows_per_env])
        is_seeded = any(seed is not None for seed in seeds)
        obs, info = self._envs.reset(seed=seeds if is_seeded else None, options=self._options[0])
        self._keep_action_masks(info)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return obs.copy()  # type: ignore[no-any-return]  # a NumPy array

    def step_async(self, actions: NDArray[Any]) -> None:
        """Stores the actions of the next step.

        Args:
            actions: (E,) or (E, K).
        """
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Steps with the stored actions; returns observations (E, D), rewards (E,), dones (E,) and E dictionaries."""
        obs, reward, terminated, truncated, step_info = self._envs.step(self._actions)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": row} for row in (truncated & ~terminated).tolist()]
        dones = terminated | truncated
        self._keep_action_masks(step_info)
        if dones.any():
            # Under FlattenAgents an agent may end before its environment; its last observation is in `obs`.
            env_ended = step_info["_final_obs"].reshape(-1, *[1] * (obs.ndim - 1))
            last_obs = np.where(env_ended, step_info["final_obs"], obs)
            for row in np.flatnonzero(dones).tolist():
                infos[row]["terminal_observation"] = last_obs[row].copy()
            for name, values in step_info.get("metrics", {}).items():
                for row in np.flatnonzero(dones).tolist():
                    infos[row].setdefault("metrics", {})[name] = float(values[row // self._rows_per_env])
        for row in np.flatnonzero(step_info.get("_episode", ())).tolist():
            infos[row]["episode"] = {name: float(values[row]) for name, values in step_info["episode"].items()}
        return obs.copy(), reward.copy(), dones, infos

    def _keep_action_masks(self, info: dict[str, Any]) -> None:
        if "action_mask" in info:
            self._action_masks = np.array(info["action_mask"], np.bool_).reshape(self.num_envs, -1)

    def close(self) -> None:
        """Closes the environment."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Returns the value of an attribute or a parameter for each row.

        Args:
            attr_name: the name of the attribute or parameter.
            indices: which rows; None for all.

        Raises:
            AttributeError: an unknown name.
        """
        if attr_name == ACTION_MASKS and self._base.action_mask_shape is not None:
            return [partial(self._action_mask_of, row) for row in self._get_indices(indices)]
        return self._of_rows(self._base.get_attr(attr_name), indices)

    def _action_mask_of(self, row: int) -> NDArray[np.bool_]:
        """The mask of a row for the next step, (N,); raises WrapperError before the first reset."""
        if self._action_masks is None:
            raise WrapperError("there are no action masks before the first reset: call reset().")
        mask: NDArray[np.bool_] = self._action_masks[row]
        return mask

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Sets a parameter.

        Args:
            attr_name: the name of the parameter.
            value: its new value.
            indices: which rows, for a parameter that is stored per environment; None for all.

        Raises:
            UnknownParameterError: an unknown name.
            TypeError: `indices` for a parameter that is not named in `per_env`.
        """
        if indices is not None:
            values = list(self._base.get_attr(attr_name))
            for row in self._get_indices(indices):
                values[row // self._rows_per_env] = value
            value = values
        self._base.set_attr(attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Returns the result of `gpuvec.VectorEnv.call` for each row.

        Args:
            method_name: "render", the name of an attribute, or "action_masks" in an environment with masks.
            method_args: arguments of the method.
            indices: which rows; None for all.
            method_kwargs: keyword arguments of the method.

        Raises:
            AttributeError: another method; all methods except "render" serve all rows at once.
        """
        if method_name == ACTION_MASKS and self._base.action_mask_shape is not None:
            return [action_masks() for action_masks in self.get_attr(ACTION_MASKS, indices)]
        return self._of_rows(self._base.call(method_name, *method_args, **method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Returns whether the environment is under a wrapper of a class; the answer is the same for each row.

        Args:
            wrapper_class: the class.
            indices: which rows; None for all.
        """
        layer: Any = self._envs
        while not isinstance(layer, wrapper_class) and hasattr(layer, "env"):
            layer = layer.env
        return [isinstance(layer, wrapper_class)] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8]]:
        """Returns pictures of all environments, each (H, W, 3) uint8; needs `render_mode="rgb_array"`."""
        return list(self._base.render())

    def _of_rows(self, values: Sequence[Any], indices: Any) -> list[Any]:
        """The elements of `values`, one for each environment, that belong to the rows with the given indices."""
        return [values[row // self._rows_per_env] for row in self._get_indices(indices)]


def _supported_base(envs: Any) -> VectorEnv:
    """The gpuvec environment under the wrappers of `envs`.

    Raises:
        WrapperError: an environment that the adapter does not support.
    """
    base = getattr(envs, "unwrapped", None)
    if not isinstance(base, VectorEnv):
        raise WrapperError(f"StableBaselines3VecEnv is for gpuvec vector environments, got {envs!r}: make one with make_vec.")
    mode = get_autoreset_mode(envs)
    if mode is not AutoresetMode.SAME_STEP:
        raise WrapperError(
            f"Stable-Baselines3 resets a row in the step that ends its episode, and {envs} is in mode {mode.value}: make it "
            "with autoreset_mode='SameStep'."
        )
    if envs.output == "dlpack":
        raise WrapperError("this adapter does not read DLPack objects: make the environment with output='numpy' or 'torch'.")
    if base.num_agents > 1 and envs.num_envs == base.num_envs and base.simulation.options.reward == "agents":
        raise WrapperError(
            f"{envs} has {base.num_agents} agents with a reward each, and Stable-Baselines3 supports one per row: wrap it in "
            "gpuvec.vector.wrappers.FlattenAgents, or make it with reward='sum'."
        )
    return base
