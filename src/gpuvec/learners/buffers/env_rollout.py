"""A rollout of a vector environment, and the rows of it that belong to the agents of one policy.

Letters: T steps, E environments, A agents, D observation features, R rows, N actions, or values of all components of a
MultiDiscrete action. A row is an agent of a policy, or an environment of one agent; rows are sorted by environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.environments import TrainingEnv, critic_space_of_agent, is_multi_agent, map_roles, spaces_of_agent
from gpuvec.learners.networks.actor_critic import obs_dtype
from gpuvec.vector.reset_arguments import RowStreams
from gpuvec.vector.wrappers.flatten_agents import per_agent_results

AgentIndex = slice | Tensor
"""Agents of an environment: a slice, (n,) indices, or (E, n) indices that differ between environments."""
# Fields of `RolloutRows` that are views if a policy has all agents.
VIEW_FIELDS = ("obs", "final_obs", "mask", "action_mask", "in_episode", "critic_obs", "final_critic_obs")
STEP_INPUTS = ("obs", "action_mask", "critic_obs")  # fields with an element for the time before each step


class RolloutRows(NamedTuple):
    """A rollout of the agents of one policy."""

    # (T + 1, R, D), or images (T + 1, R, C, H, W) in the environment's dtype; the last row is the first of the next rollout.
    obs: Tensor
    reward: Tensor  # (T, R), 0 outside the row's episodes
    terminated: Tensor  # (T, R) bool: the environment or this agent terminated
    ended: Tensor  # (T, R) bool: the environment's episode is over, terminated or truncated
    final_obs: Tensor  # (T, R, D): the last observation of an episode, defined where `ended`
    mask: Tensor | None = None  # (T, R) bool: the agent acted; None in environments of one agent
    action_mask: Tensor | None = None  # (T + 1, R, N) bool: the allowed actions at `obs`; None in environments without masks
    in_episode: Tensor | None = None  # (T, R) bool: the agent acted, or waited in a running episode; None like `mask`

    critic_obs: Tensor | None = None  # (T + 1, R, Dc): the critic's observations; None in environments without them
    final_critic_obs: Tensor | None = None  # (T, R, Dc): those of the end of an episode, defined where `ended`

    def action_mask_at(self, t: int) -> Tensor | None:
        """Returns the action mask before step `t`, (R, N) bool; None in environments without masks."""
        return None if self.action_mask is None else self.action_mask[t]

    @property
    def done(self) -> Tensor:
        """(T, R) bool: the last step of a row's episode. An agent may terminate while its environment continues."""
        return self.ended if self.in_episode is None else (self.ended | self.terminated) & self.in_episode


class AgentSubset:
    """The agents of a policy among those of each environment.

    Args:
        index: which agents, as in `VectorEnv.roles`; None for all.
        num_agents: A; None for environments of one agent.
        role: their role, by which an environment has observations if roles have spaces of their own.
    """

    def __init__(self, index: AgentIndex | None, num_agents: int | None, role: str = ALL) -> None:
        self.role = role
        self._index = slice(None) if index is None else index
        self._is_single_agent = num_agents is None
        self.per_env = (
            len(range(num_agents or 1)[self._index]) if isinstance(self._index, slice) else int(self._index.shape[-1])
        )
        """The number of these agents in each environment."""
        self.is_all = isinstance(self._index, slice) and self.per_env == num_agents
        """Whether these are all agents of a multi-agent environment, so that their rows are views."""

    def select_role(self, x: Mapping[str, Tensor]) -> Tensor | None:
        """Returns the rows of the role, a view; None if the role has nothing.

        Args:
            x: {role: (T, E, n, ...)}.
        """
        return x[self.role].flatten(1, 2) if self.role in x else None

    def select(self, x: Tensor, axis: int = 1) -> Tensor:
        """Returns the rows of these agents, a view if the memory layout permits one.

        Args:
            x: (E, A, ...) or with leading dimensions.
            axis: the dimension of `x` that is E; those of the result at its place are (R, ...).
        """
        return x if self._is_single_agent else self._gather(x, axis).flatten(axis, axis + 1)

    def places(self, num_envs: int, num_agents: int, device: str) -> Tensor:
        """Returns the numbers of these agents among all agents of all environments, (R,) int32."""
        numbers = torch.arange(num_envs * num_agents, dtype=torch.int32, device=device)
        return self.select(numbers.view(num_envs, num_agents), 0).contiguous()

    def copy(self, x: Tensor, rows: Tensor, axis: int = 1) -> None:
        """Copies the rows of these agents without a temporary tensor.

        Args:
            x: (E, A, ...) or with leading dimensions.
            rows: (R, ...) with the same leading dimensions, which is written.
            axis: the dimension of `x` that is E.
        """
        values = self._gather(x, axis)
        rows.view(values.shape).copy_(values)

    def scatter(self, x: Tensor, rows: Tensor) -> None:
        """Writes `rows`, (R, ...), to the elements of `x`, (E, A, ...), that belong to these agents."""
        values = rows.view(len(x), self.per_env, *rows.shape[1:]).to(x.dtype)
        if isinstance(self._index, slice) or self._index.dim() == 1:
            x[:, self._index] = values
        else:
            x.scatter_(1, _expand_index(self._index, x, 0), values)

    def _gather(self, x: Tensor, axis: int) -> Tensor:
        """Returns the values of these agents, (..., E, n, ...)."""
        if isinstance(self._index, slice) or self._index.dim() == 1:
            return x[(*[slice(None)] * (axis + 1), self._index)]
        return x.gather(axis + 1, _expand_index(self._index, x, axis))


def _expand_index(index: Tensor, x: Tensor, axis: int) -> Tensor:
    """Returns the (E, n) `index` in the shape of the values that it selects from `x`, (..., E, A, ...) with E at `axis`."""
    leading, trailing = x.shape[:axis], x.shape[axis + 2 :]
    view = index.view(*[1] * len(leading), *index.shape, *[1] * len(trailing))
    return view.expand(*leading, *index.shape, *trailing)


class EnvRollout:
    """The storage of T steps, into which the environment writes its outputs.

    Args:
        env: the environment.
        num_steps: T.
        device: "cpu" or "cuda:<index>".

    Attributes:
        obs, action_mask: tensors, or dicts of tensors by role if roles have spaces of their own.
        final_obs: the same; None before it is known whether it has T steps, or only the last one.

    Raises:
        ValueError: masks for an action space that has none.
    """

    obs: Any
    final_obs: Any
    action_mask: Any

    def __init__(self, env: TrainingEnv, num_steps: int, device: str) -> None:
        self.env, self.num_steps, self._mask_shape = env, num_steps, action_mask_shape(env)
        self.num_agents: int | None = env.unwrapped.num_agents if is_multi_agent(env) else None
        E, per_agent = env.num_envs, (env.num_envs, *(() if self.num_agents is None else (self.num_agents,)))

        def zeros(*shape: int, dtype: torch.dtype = torch.float32, steps: int = num_steps) -> Tensor:
            return torch.zeros((steps, *shape), dtype=dtype, device=device)

        self._device = device
        self.obs, self.final_obs = self._observations(num_steps + 1), None
        self.reward = zeros(*per_agent)
        self.terminated, self.truncated = zeros(E, dtype=torch.bool), zeros(E, dtype=torch.bool)
        # Element t says whether an episode begins with step t.
        self.episode_start = zeros(E, dtype=torch.bool, steps=num_steps + 1).fill_(True)
        self.ended = self.episode_start[1:]
        outputs = {"obs": map_roles(lambda x: x[1:], self.obs), "reward": self.reward}
        outputs |= {"terminated": self.terminated, "truncated": self.truncated, "final_mask": self.ended}
        if self.num_agents is not None:
            self.mask, self.agent_terminated = zeros(*per_agent, dtype=torch.bool), zeros(*per_agent, dtype=torch.bool)
            outputs |= {"agent_mask": self.mask, "agent_terminated": self.agent_terminated}
            self.in_episode = zeros(*per_agent, dtype=torch.bool)
            # Whether the episode of an agent continues after the last step, so that rewards belong to an action before it.
            self.episode_continues = zeros(*per_agent, dtype=torch.bool, steps=1)[0]
        self.action_mask = None
        if self._mask_shape is not None:
            self.action_mask = map_roles(
                lambda shape: zeros(E, *shape, dtype=torch.bool, steps=num_steps + 1).fill_(True), self._mask_shape
            )
            outputs["action_mask"] = map_roles(lambda x: x[1:], self.action_mask)
        # The metrics of an environment, defined where an episode ended.
        base = env.unwrapped
        self.metrics = {name: zeros(base.num_envs) for name in base.metric_names}
        outputs |= {f"metric_{name}": x for name, x in self.metrics.items()}
        self.critic_obs: Tensor | None = None
        self.final_critic_obs: Tensor | None = None
        critic_space = critic_space_of_agent(env)
        if critic_space is not None:
            self.critic_obs = zeros(*per_agent, *critic_space.shape, steps=num_steps + 1)
            self.final_critic_obs = zeros(*per_agent, *critic_space.shape)
            outputs |= {"critic_obs": self.critic_obs[1:], "final_critic_obs": self.final_critic_obs}
        self._outputs = [{name: _at(tensors, t) for name, tensors in outputs.items()} for t in range(num_steps)]
        """The outputs of each step; `reset` adds the final observations, whose size depends on who reads them."""
        limit = base.max_episode_steps
        self.max_truncations = 0 if limit is None else (num_steps - 1) // limit + 1
        """Upper bound of an environment's truncated episodes in a rollout: all but the first take `limit` steps."""
        self._copied_rows: list[tuple[AgentSubset, RolloutRows]] = []

    def _observations(self, steps: int) -> Any:
        def zeros(space: gym.Space[Any]) -> Tensor:
            shape = steps, self.env.num_envs, *(space.shape or ())
            return torch.zeros(shape, dtype=obs_dtype(space), device=self._device)

        return map_roles(zeros, self.env.single_observation_space)

    def rows(self, agents: AgentSubset, in_place: bool = False) -> RolloutRows:
        """Returns the rows of `agents`; those that are copies are updated by `update_views` and `update_rows`.

        Args:
            agents: of a policy.
            in_place: whether the policy reads observations in `obs` and, after each step, in `final_obs`. Those of the rows
                then have a shape and no values.
        """
        if self.final_obs is None and not in_place:
            self.final_obs = self._observations(self.num_steps)
        if self.num_agents is None:
            return RolloutRows(
                self.obs, self.reward, self.terminated, self.ended, self.final_obs, action_mask=self.action_mask,
                critic_obs=self.critic_obs, final_critic_obs=self.final_critic_obs,
            )  # fmt: skip
        per_agent = {name: x for name, x in self._per_agent()._asdict().items() if x is not None}
        names = [name for name, x in per_agent.items() if isinstance(x, dict)]
        by_role = {name: agents.select_role(per_agent.pop(name)) for name in names}
        if in_place:
            obs = self.obs[agents.role] if isinstance(self.obs, dict) else self.obs
            shape = agents.per_env * self.env.num_envs, *obs.shape[3:]
            for name, steps in (("obs", self.num_steps + 1), ("final_obs", self.num_steps)):
                by_role[name] = torch.empty((steps, *shape), dtype=obs.dtype, device="meta")
                per_agent.pop(name, None)
        views = {name: agents.select(per_agent[name]) for name in VIEW_FIELDS if name in per_agent}
        copies = {name: agents.select(x).clone() for name, x in per_agent.items() if name not in views}
        own = {name: x if agents.is_all else x.clone() for name, x in views.items()}
        rows = RolloutRows(**copies, **own, **by_role)  # type: ignore[arg-type]  # only `action_mask` may be None
        self._copied_rows.append((agents, rows))
        return rows

    def reset(self, seed: int, first_env: int = 0) -> None:
        """Resets the environment; the observations are stored as those after the last step of a rollout.

        Args:
            seed: of the environments.
            first_env: the number of the first environment, on which the random numbers that it draws depend.

        Raises:
            ValueError, TypeError: the environment has other action masks than it declares.
        """
        E = self.env.num_envs
        if self.final_obs is None:
            self.final_obs = self._observations(1)
        for t, outputs in enumerate(self._outputs):
            outputs["final_obs"] = self.final_obs_at(t)
        obs, infos = self.env.reset(seed=RowStreams([seed] * E, range(first_env, first_env + E)) if first_env else seed)
        require_action_mask(infos, self.env.num_envs, self._mask_shape)
        _copy_roles(self.obs, -1, obs)
        if self.action_mask is not None:
            _copy_roles(self.action_mask, -1, infos["action_mask"])
        if self.critic_obs is not None:
            self.critic_obs[-1].copy_(infos["critic_obs"])
        if self.num_agents is not None:
            self.episode_continues.zero_()
        self.update_views(self.num_steps)

    def begin_rollout(self) -> None:
        """Copies the observations and action masks after the last step to those before the first step."""
        for tensors in self._step_inputs():
            _copy_roles(tensors, 0, _at(tensors, -1))
        self.episode_start[0].copy_(self.episode_start[-1])

    def _step_inputs(self) -> list[Any]:
        """The observations, and the action masks and observations of a critic if there are any."""
        return [tensors for tensors in (self.obs, self.action_mask, self.critic_obs) if tensors is not None]

    def final_obs_at(self, t: int) -> Any:
        """Returns the final observations of step `t`, which other steps may overwrite if all policies read in place."""
        return map_roles(lambda x: x[min(t, len(x) - 1)], self.final_obs)

    def step(self, t: int, action: Any) -> None:
        """Runs step `t` with the actions of all agents, `action` (E, ...) or (E, A, ...), or {role: (E, n, ...)}."""
        self.env.step(action, out=self._outputs[t])

    def update_views(self, t: int) -> None:
        """Copies the observations and action masks before step `t` to the results of `rows` that are not views."""
        for agents, rows in self._copied_rows:
            if not agents.is_all and not isinstance(self.obs, dict):
                if not rows.obs.is_meta:
                    agents.copy(self.obs[t], rows.obs[t], 0)
                if self.action_mask is not None and rows.action_mask is not None:
                    agents.copy(self.action_mask[t], rows.action_mask[t], 0)
                if self.critic_obs is not None and rows.critic_obs is not None:
                    agents.copy(self.critic_obs[t], rows.critic_obs[t], 0)

    def metric_sums(self) -> Tensor:
        """Returns the sums of the environment's metrics over the episodes that ended in the rollout, and their number.

        These are (M + 1,) float64, for at least one metric.
        """
        values = torch.stack(list(self.metrics.values()))
        # Under `FlattenAgents` each agent is a row, and the episodes of all rows of an environment end together.
        ended = self.ended.view(*values.shape[1:], -1)[..., 0]
        return torch.cat([values.where(ended, 0.0).double().sum((1, 2)), ended.sum().double().view(1)])

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next rollout depends on, without those of the environment."""
        state = {"obs": _at(self.obs, -1), "episode_start": self.episode_start[-1]}
        if self.action_mask is not None:
            state["action_mask"] = _at(self.action_mask, -1)
        if self.critic_obs is not None:
            state["critic_obs"] = self.critic_obs[-1]
        if self.num_agents is not None:
            state["episode_continues"] = self.episode_continues
        return state

    def update_rows(self) -> None:
        """Copies all outputs of the finished rollout, and the observations after it, to the results of `rows`."""
        if not self._copied_rows:
            return
        self.update_views(self.num_steps)
        done = self.agent_terminated | self.ended.unsqueeze(-1)
        self.in_episode.copy_(steps_in_episode(self.mask, done, self.episode_continues))
        self.episode_continues.copy_(self.in_episode[-1] & ~done[-1])
        per_agent = self._per_agent()
        for agents, rows in self._copied_rows:
            for name, x in per_agent._asdict().items():
                if x is None or name in STEP_INPUTS or isinstance(x, dict):
                    continue
                values = getattr(rows, name)
                if not (values.is_meta or (agents.is_all and name in VIEW_FIELDS)):
                    agents.copy(x, values)

    def _per_agent(self) -> RolloutRows:
        """Returns the rollout of each agent, (T, E, A, ...)."""
        # A waiting agent is rewarded, too.
        flags = self.terminated, self.truncated, self.in_episode, self.agent_terminated
        reward, terminated, _ = per_agent_results(torch, self.reward, *flags)
        ended = self.ended.unsqueeze(-1).expand_as(self.agent_terminated)
        masks = self.mask, self.action_mask, self.in_episode
        critic = self.critic_obs, self.final_critic_obs
        return RolloutRows(self.obs, reward, terminated, ended, self.final_obs, *masks, *critic)


def _at(tensors: Any, t: int) -> Any:
    """Element t of a tensor, or of each tensor in a dict by role."""
    return map_roles(lambda x: x[t], tensors)


def _copy_roles(tensors: Any, t: int, values: Any) -> None:
    """Copies values to element t of tensors, of all agents or of each role."""
    if isinstance(tensors, dict):
        for role, x in tensors.items():
            x[t].copy_(values[role])
    else:
        tensors[t].copy_(values)


def steps_in_episode(mask: Tensor, done: Tensor, continues: Tensor) -> Tensor:
    """Returns, (T, E, A) bool, in which steps a row acts, or waits after an action of the same episode.

    An episode of a row begins with its first action, and ends when it terminates or the episode of its environment is over.
    Steps between two actions of an episode are waiting steps, whose rewards belong to the last action. A row that acts again
    after it had terminated begins a new episode.
    Args:
        mask: (T, E, A) bool: the row acts.
        done: (T, E, A) bool: the row terminated, or the episode of its environment is over.
        continues: (E, A) bool: an episode of the row continues at the first step.
    """
    # A row is in an episode if its last action is later than the last end before this step. Steps are counted from 2, since 1
    # is the time of an action before the first step.
    steps = torch.arange(2, len(mask) + 2, dtype=torch.int32, device=mask.device).view(-1, 1, 1)
    last_action = torch.where(mask, steps, continues.int()).cummax(0).values
    last_end = torch.zeros_like(last_action)
    last_end[1:] = (done[:-1] * steps[:-1]).cummax(0).values
    return last_action > last_end


def action_mask_shape(env: TrainingEnv) -> Any:
    """Returns the shape of the action masks that an environment declares, (N,) or (A, N); None for one without masks.

    If spaces are by role it is {role: (n, N)}, for the roles that have masks.

    Args:
        env: the environment.

    Raises:
        ValueError: masks for an action space that has none.
    """
    shapes = env.action_mask_shape
    for role in shapes if isinstance(shapes, Mapping) else [ALL] if shapes is not None else []:
        _, space = spaces_of_agent(env, role)
        if isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"the environment has an action mask, and its actions are {space}; only discrete actions have one."
            )
    return shapes


def require_action_mask(infos: Mapping[str, Any], num_envs: int, shape: Any) -> None:
    """Checks that the infos of a reset have the action masks that the environment declares.

    Args:
        infos: of the reset.
        num_envs: E.
        shape: the result of `action_mask_shape`.

    Raises:
        ValueError: no masks, masks of another shape, or masks that the environment does not declare.
        TypeError: masks that are not bool.
    """
    masks = infos.get("action_mask")
    if (masks is None) != (shape is None):
        has, declared = ("has none" if masks is None else "has masks"), ("none" if shape is None else f"{shape}")
        raise ValueError(
            f"infos {has} of actions, and action_mask_shape of the environment is {declared}: a wrapper that adds or removes "
            "action masks must have this attribute, (N,) or (A, N), or None without masks."
        )
    if masks is None:
        return
    pairs = [(masks[role], shape[role]) for role in shape] if isinstance(shape, Mapping) else [(masks, shape)]
    for mask, expected in pairs:
        if tuple(mask.shape) != (num_envs, *expected):
            raise ValueError(f"infos['action_mask'] has shape {tuple(mask.shape)}; it must have shape {(num_envs, *expected)}.")
        if mask.dtype != torch.bool:
            raise TypeError(f"infos['action_mask'] must be bool, got {mask.dtype}.")
