"""`FlattenAgents`: a multi-agent environment in which each agent is a row.

Letters: E envs, A agents, D features, K action components.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.host_copies import framework_of, to_host
from gpuvec.vector.spaces import batched_space, space_of_one_agent
from gpuvec.vector.wrappers.base import (
    Namespace,
    Out,
    StatefulWrapper,
    Step,
    WrapperError,
    WrapperState,
    write_to_out,
)

COPIED_OUTPUTS = ("terminated", "truncated", "final_mask")  # in the environment they have one element per env
AGENT_INFOS = ("action_mask", "critic_obs")  # infos of each agent, of a reset and a step


def per_agent_results(
    xp: Any, reward: Any, terminated: Any, truncated: Any, in_episode: Any, agent_terminated: Any
) -> tuple[Any, Any, Any]:
    """Returns (reward, terminated, truncated) of each agent, (..., E, A).

    Args:
        xp: the module of the arrays.
        reward: (..., E, A).
        terminated: which environments were terminated, (..., E) bool.
        truncated: which environments were truncated, (..., E) bool.
        in_episode: which agents acted, or wait in a running episode, (..., E, A) bool; the reward of the others is 0.
        agent_terminated: which agents the step terminated, (..., E, A) bool.
    """
    ended = terminated[..., None] | agent_terminated
    return xp.where(in_episode, reward, 0), ended, truncated[..., None] & ~ended


class FlattenAgents(StatefulWrapper):
    """E envs of A agents as E * A rows, for code that supports only single-agent environments.

    Row e * A + i is agent i of env e. Observations are (E * A, D), actions (E * A,) or (E * A, K), rewards and flags
    (E * A,). The large arrays are views of what the environment returned, except on JAX, which has no views and copies.

    A row is terminated when its env is, or in the step in which its agent becomes inactive. A row is truncated when its env
    is, unless it is terminated. While its agent is inactive, the row is outside `infos["agent_mask"]`, its reward is 0, its
    flags are those of the env, and a learner must leave it out. An inactive agent may become active again.

    If agents take turns, a row whose agent waits is outside `infos["agent_mask"]` too, but keeps its reward and its flags,
    which belong to the last action of the agent. `infos["in_episode"]`, (E * A,) bool, has these rows and those that acted:
    an agent is in an episode from its first action until it is terminated or the episode of its env ends. Then
    `state_dict` has, beside the state of the env, which agents are in an episode.

    `infos["_final_obs"]` says whose env ended. The last observation of an agent that became inactive is in `obs`, or in
    SAME_STEP in `infos["final_obs"]` if its env ended in that step.

    `step` does not synchronise and can be captured into a CUDA graph. `out` takes flat arrays; "terminated", "truncated" and
    "final_mask" are copied there. States, roles, pictures, metrics and checkpoints are the environment's own, by env.

    Args:
        env: a gpuvec environment of many agents, also under wrappers.

    Raises:
        WrapperError: an environment of one agent or with spaces by role, one made with another `reward` than "agents", or
            output="dlpack".
    """

    _ns: Namespace | None = None

    def __init__(self, env: VectorEnv) -> None:
        # Imported here, so that importing the wrappers does not load Numba, which is slow.
        from gpuvec.vector.env import VectorEnv as GpuvecVectorEnv

        base = env.unwrapped
        if not isinstance(base, GpuvecVectorEnv) or not base.is_multi_agent:
            raise WrapperError(
                f"FlattenAgents is for gpuvec environments of many agents; {env} has one agent in each row as it is."
            )
        if isinstance(base.single_action_space, gym.spaces.Dict):
            raise WrapperError(
                f"FlattenAgents needs equal spaces for all agents, and those of {', '.join(base.roles)} differ: use the dicts "
                "by role that the environment returns, or gpuvec.parallel_env."
            )
        reward = base.simulation.options.reward
        if reward != "agents":
            raise WrapperError(
                f"FlattenAgents needs the reward of each agent, and this environment returns that of {reward!r}: make it with "
                "reward='agents', the default."
            )
        if getattr(env, "output", None) == "dlpack":
            raise WrapperError(
                "FlattenAgents computes flags, which DLPack objects do not support: make the environment with "
                "output='torch', 'numpy', 'cupy' or 'jax'."
            )
        super().__init__(env, WrapperState(in_episode=np.zeros((env.num_envs, base.num_agents), np.bool_)))
        self._inner_num_envs: int = env.num_envs
        self._num_agents: int = base.num_agents
        self._has_turns: bool = getattr(env, "has_turns", base.has_turns)
        self._episode_arrays = ("in_episode",) if self._has_turns else ()
        self.single_observation_space = space_of_one_agent(env.single_observation_space)
        self.single_action_space = space_of_one_agent(env.single_action_space)

    # These are attributes or properties in Gymnasium, hence the ignored errors.

    @property
    def num_envs(self) -> int:  # type: ignore[override]
        """The number of rows, E * A."""
        return self._inner_num_envs * self._num_agents

    @cached_property
    def observation_space(self) -> Any:  # type: ignore[override]
        """The space of the observations of all rows, (E * A, D); built on first use."""
        return batched_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> Any:  # type: ignore[override]
        """The space of the actions of all rows, (E * A,) or (E * A, K); built on first use."""
        return batched_space(self.single_action_space, self.num_envs)

    @property
    def action_mask_shape(self) -> tuple[int, ...] | None:
        """The shape of a row of `infos["action_mask"]`, (N,); None without masks."""
        shape: tuple[int, ...] | None = self.env.action_mask_shape  # type: ignore[attr-defined]  # of gpuvec's
        return None if shape is None else shape[1:]

    @property
    def single_critic_observation_space(self) -> gym.Space[Any] | None:
        """The space of `infos["critic_obs"]` of one row, (Dc,); None if there are none."""
        base: Any = self.env.unwrapped
        space = base.single_critic_observation_space
        return None if space is None else space_of_one_agent(space)

    @property
    def critic_observation_space(self) -> gym.Space[Any] | None:
        """The space of `infos["critic_obs"]` of all rows, (E * A, Dc); None if there are none."""
        space = self.single_critic_observation_space
        return None if space is None else batched_space(space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, or some of them.

        Args:
            seed: an int, or a sequence with one for each of the E envs.
            options: those of the environment. "reset_mask" is (E,), or (E * A,) with equal values for all agents of an env; a
                mask of this shape is copied to the host, which waits for it, and checked.

        Raises:
            ValueError: a mask that differs among the agents of an env.
        """
        mask, agents = options.get("reset_mask") if isinstance(options, Mapping) else None, self._num_agents
        if tuple(getattr(mask, "shape", ())) == (self.num_envs,):
            by_env = to_host(mask).reshape(self._inner_num_envs, agents)
            unequal = np.flatnonzero((by_env != by_env[:, :1]).any(1))
            if unequal.size:
                raise ValueError(
                    f"`options['reset_mask']` must be the same for all agents of an env, which begin together; it differs in "
                    f"env {unequal[0]}, rows {unequal[0] * agents} to {(unequal[0] + 1) * agents - 1}. Give one value "
                    f"per env, in shape ({self._inner_num_envs},)."
                )
            options = {**(options or {}), "reset_mask": by_env[:, 0]}
        obs, info = super().reset(seed=seed, options=options)
        return self._flat(obs), info | {name: self._flat(info[name]) for name in AGENT_INFOS if name in info}

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps all envs.

        Args:
            actions: the actions of all rows, (E * A,) or (E * A, K); those of inactive agents are not used.
            out: flat arrays to write to, by the names in `gpuvec.VectorEnv.step`.

        Raises:
            ValueError: actions or arrays of `out` of a wrong shape.
        """
        inner_out = None if out is None else self._inner_out(out)
        obs, reward, terminated, truncated, info = super().step(self._by_env(actions), inner_out)
        self._ns = self._ns or Namespace(reward)
        xp, mask, agent_terminated = self._ns.xp, info["agent_mask"], info["agent_terminated"]
        in_episode = mask
        if self._has_turns:  # An agent that acts in this step, or has acted before in its episode, is in it.
            self._buffers.place(reward)
            in_episode = self._buffers["in_episode"] | mask
        reward, terminated, truncated = per_agent_results(xp, reward, terminated, truncated, in_episode, agent_terminated)
        info = {**info, "agent_mask": self._flat(mask), "agent_terminated": self._flat(agent_terminated)}
        if self._has_turns:
            self._buffers["in_episode"] = in_episode & ~(terminated | truncated)
            info["in_episode"] = self._flat(in_episode)
        info |= {name: self._flat(info[name]) for name in AGENT_INFOS if name in info}
        if "_final_obs" in info:
            final_mask = self._flat(xp.broadcast_to(info["_final_obs"][:, None], mask.shape))
            final_mask = write_to_out(final_mask, "final_mask", out)
            info |= {"final_obs": self._flat(info["final_obs"]), "_final_obs": final_mask, "_final_info": final_mask}
            if "final_critic_obs" in info:
                info["final_critic_obs"] = self._flat(info["final_critic_obs"])
        return (
            self._flat(obs),
            write_to_out(self._flat(reward), "reward", out),
            write_to_out(self._flat(terminated), "terminated", out),
            write_to_out(self._flat(truncated), "truncated", out),
            info,
        )

    def state_dict(self, env: bool = True) -> dict[str, Any]:
        """Returns the state of the environment, and if agents take turns which of them are in an episode.

        Args:
            env: whether to include the state of the environment; without turns it is all there is.
        """
        if self._has_turns:
            return super().state_dict(env)
        state: dict[str, Any] = self.env.state_dict() if env else {}  # type: ignore[attr-defined]  # of gpuvec's
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`.

        Args:
            state: the result.

        Raises:
            StateError: the state of another environment.
        """
        if self._has_turns:
            super().load_state_dict(state)
        elif not isinstance(state, Mapping) or state:
            self.env.load_state_dict(state)  # type: ignore[attr-defined]  # of gpuvec's

    def _flat(self, array: Any) -> Any:
        """(E, A, ...) as (E * A, ...)."""
        return array.reshape(self.num_envs, *array.shape[2:])

    def _by_env(self, actions: Any) -> Any:
        """(E * A, ...) actions as the environment takes them, (E, A, ...)."""
        actions = actions if framework_of(actions) else np.asarray(actions)
        shape = self.single_action_space.shape or ()
        if tuple(actions.shape) != (self.num_envs, *shape):
            raise ValueError(
                f"actions have shape {tuple(actions.shape)}; {self._inner_num_envs} envs of {self._num_agents} agents take "
                f"{(self.num_envs, *shape)}, one row per agent."
            )
        return actions.reshape(self._inner_num_envs, self._num_agents, *shape)

    def _inner_out(self, out: Any) -> dict[str, Any]:
        """Views of the arrays in `out` to which the environment itself writes, in its own shapes.

        Raises:
            ValueError: an array of a wrong shape, or one that is not C-contiguous.
        """
        views = {}
        shape_of_row = {"action_mask": self.action_mask_shape or ()}
        shape_of_row |= dict.fromkeys(("obs", "final_obs"), self.single_observation_space.shape or ())
        if self.single_critic_observation_space is not None:
            critic_shape = self.single_critic_observation_space.shape or ()
            shape_of_row |= dict.fromkeys(("critic_obs", "final_critic_obs"), critic_shape)
        for name, array in out.items():
            if name == "to_move" or name.startswith("metric_"):  # by env, which the environment itself checks
                views[name] = array
                continue
            features = shape_of_row.get(name, ())
            shape = tuple(getattr(array, "shape", ()))
            flags = getattr(array, "flags", None)
            contiguous = array.is_contiguous() if hasattr(array, "is_contiguous") else flags is None or flags.c_contiguous
            if shape != (self.num_envs, *features) or not contiguous:
                raise ValueError(
                    f"out[{name!r}] must be a C-contiguous array of shape {(self.num_envs, *features)}, one row per agent, got "
                    f"{type(array).__name__} of shape {shape}{'' if contiguous else ' with gaps'}."
                )
            if name not in COPIED_OUTPUTS:
                views[name] = array.reshape(self._inner_num_envs, self._num_agents, *features)
        return views
