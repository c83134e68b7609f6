"""Many agents as rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.host_copies import framework_of, to_host
from gpuvec.vector.spaces import batched_space, space_of_one_agent
from gpuvec.vector.wrappers.base import Out, Step, Wrapper, write_to_out
from gpuvec.vector.wrappers.namespace import Namespace, WrapperError

WRITTEN_HERE = ("terminated", "truncated", "_final_obs")  # the environment's own have one element per env


def per_agent_results(xp: Any, reward: Any, terminated: Any, truncated: Any, mask: Any, left: Any) -> tuple[Any, Any, Any]:
    """(reward, terminated, truncated) of each agent, (..., E, A): `terminated` and `truncated` are given for envs, (..., E),
    the others for agents; arrays of `xp`.
    """
    over = terminated[..., None] | left
    return xp.where(mask, reward, 0), over, truncated[..., None] & ~over


class FlattenAgents(Wrapper):
    """E envs of A agents as E * A rows, agent i of env e in row e * A + i, for whatever knows only single-agent environments.

    Observations are (E * A, D), actions (E * A,) or (E * A, K), rewards and flags (E * A,); the large ones are views of what
    the environment returned (JAX, which has no views, copies). A row is terminated when its env is, or in the step in which
    its agent leaves the game; it is truncated when its env is and it is not terminated. While its agent is not in the game,
    before it joins, after it left and until it joins again, the row is outside `infos["agent_mask"]`: its reward is 0, its
    flags are those of the env, and a learner must leave it out. `infos["_final_obs"]` says whose env ended. The last
    observation of an agent that left is in `obs`, or in SAME_STEP in `infos["final_obs"]` if its env ended in that step.

    `step` waits for nothing and can be captured into a CUDA graph. `out` takes flat arrays; "terminated", "truncated" and
    "_final_obs" are copied there. States, roles, pictures and checkpoints are the environment's own, by env.

    Raises:
        WrapperError: an environment of one agent, one made with another `reward` than "agents", or output="dlpack".
    """

    _ns: Namespace | None = None

    def __init__(self, env: VectorEnv) -> None:
        from gpuvec.vector.env import VectorEnv as Batch  # whose kernels need a compiler; here it has been loaded

        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, Batch) or not base.is_multi_agent:
            raise WrapperError(
                f"FlattenAgents is for gpuvec environments of many agents; {env} has one agent in each row as it is."
            )
        reward = base.simulation.options.reward
        if reward != "agents":
            raise WrapperError(
                f"FlattenAgents needs the reward of each agent, and this environment returns that of {reward!r}: make it with "
                "reward='agents', the default."
            )
        if getattr(env, "output", None) == "dlpack":
            raise WrapperError(
                "FlattenAgents computes flags, and DLPack objects only hand memory over: make the environment with "
                "output='torch', 'numpy', 'cupy' or 'jax'."
            )
        self._envs, self._agents = env.num_envs, base.num_agents
        self.single_observation_space = space_of_one_agent(env.single_observation_space)
        self.single_action_space = space_of_one_agent(env.single_action_space)

    @property
    def num_envs(self) -> int:  # type: ignore[override]  # an attribute there
        """E * A."""
        return self._envs * self._agents

    @cached_property
    def observation_space(self) -> Any:  # type: ignore[override]  # a property there
        """(E * A, D): built on first use."""
        return batched_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> Any:  # type: ignore[override]  # a property there
        """(E * A,) or (E * A, K): built on first use."""
        return batched_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, or some of them.

        Args:
            seed: an int, or a sequence with one for each of the E envs.
            options: those of the environment. "reset_mask" is (E,), or (E * A,) with the same for all agents of an env; to
                see to that, the host waits for a mask of that shape.

        Raises:
            ValueError: a mask that differs among the agents of an env.
        """
        mask = options.get("reset_mask") if isinstance(options, Mapping) else None
        if tuple(getattr(mask, "shape", ())) == (self.num_envs,):
            options = {**(options or {}), "reset_mask": self._mask_of_envs(mask)}
        obs, info = super().reset(seed=seed, options=options)
        return self._flat(obs), info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps all envs with the actions of all agents; those of rows outside the mask mean nothing."""
        given = None if out is None else self._views(out)
        obs, reward, terminated, truncated, info = super().step(self._of_envs(actions), given)
        self._ns = self._ns or Namespace(reward)
        xp, mask, left = self._ns.xp, info["agent_mask"], info["agent_terminated"]
        reward, over, late = per_agent_results(xp, reward, terminated, truncated, mask, left)
        info = {**info, "agent_mask": self._flat(mask), "agent_terminated": self._flat(left)}
        if "_final_obs" in info:
            ended = self._flat(xp.broadcast_to(info["_final_obs"][:, None], left.shape))
            ended = write_to_out(ended, "_final_obs", out)
            info |= {"final_obs": self._flat(info["final_obs"]), "_final_obs": ended, "_final_info": ended}
        return (
            self._flat(obs),
            write_to_out(self._flat(reward), "reward", out),
            write_to_out(self._flat(over), "terminated", out),
            write_to_out(self._flat(late), "truncated", out),
            info,
        )

    def _flat(self, array: Any) -> Any:
        """(E, A, ...) as (E * A, ...)."""
        return array.reshape(self.num_envs, *array.shape[2:])

    def _of_envs(self, actions: Any) -> Any:
        """The actions as the environment takes them."""
        actions = actions if framework_of(actions) else np.asarray(actions)
        shape = self.single_action_space.shape or ()
        if tuple(actions.shape) != (self.num_envs, *shape):
            raise ValueError(
                f"actions have shape {tuple(actions.shape)}; {self._envs} envs of {self._agents} agents take "
                f"{(self.num_envs, *shape)}, one row per agent."
            )
        return actions.reshape(self._envs, self._agents, *shape)

    def _views(self, out: Any) -> dict[str, Any]:
        """What the environment writes itself, in its own shapes.

        Raises:
            ValueError: an array that cannot be seen in that shape.
        """
        views = {}
        for name, array in out.items():
            features = self.single_observation_space.shape or () if name in ("obs", "final_obs") else ()
            given = tuple(getattr(array, "shape", ()))
            flags = getattr(array, "flags", None)
            whole = array.is_contiguous() if hasattr(array, "is_contiguous") else flags is None or flags.c_contiguous
            if given != (self.num_envs, *features) or not whole:
                raise ValueError(
                    f"out[{name!r}] must be a C-contiguous array of shape {(self.num_envs, *features)}, one row per agent, got "
                    f"{type(array).__name__} of shape {given}{'' if whole else ' with gaps'}."
                )
            if name not in WRITTEN_HERE:
                views[name] = array.reshape(self._envs, self._agents, *features)
        return views

    def _mask_of_envs(self, mask: Any) -> Any:
        """(E,) of (E * A,), read on the host."""
        rows = to_host(mask).reshape(self._envs, self._agents)
        uneven = np.flatnonzero((rows != rows[:, :1]).any(1))
        if uneven.size:
            raise ValueError(
                f"`options['reset_mask']` must be the same for all agents of an env, which begin together; it differs in "
                f"env {uneven[0]}, rows {uneven[0] * self._agents} to {(uneven[0] + 1) * self._agents - 1}. Give one value "
                f"per env, in shape ({self._envs},)."
            )
        return rows[:, 0]
