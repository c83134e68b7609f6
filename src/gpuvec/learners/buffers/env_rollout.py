"""T steps of an environment, which it writes itself, and what a policy sees of them: its agents as rows.

Letters: T steps, E environments, A agents, D observation features, R rows: the agents of a policy in all environments, those of
one environment after those of the one before. An environment of one agent is a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.vector.wrappers.flatten_agents import per_agent_results


class RolloutRows(NamedTuple):
    """What happened to the agents of a policy."""

    obs: Tensor  # (T + 1, R, D); the last one is the next rollout's first
    reward: Tensor  # (T, R), 0 outside the mask
    terminated: Tensor  # (T, R) bool: nothing follows, for the environment or for this agent, which left
    ended: Tensor  # (T, R) bool: the environment's episode is over, terminated or truncated
    final_obs: Tensor  # (T, R, D); where it is, its last observation
    mask: Tensor | None = None  # (T, R) bool: the agent was in the game; None if a row is an environment of one agent

    @property
    def over(self) -> Tensor:
        """(T, R) bool: the last step of a row's episode. Who leaves is done, while its environment goes on."""
        return self.ended if self.mask is None else self.ended | self.terminated


VIEWS = ("obs", "final_obs", "mask")  # what rows of all agents are views of


class AgentSubset:
    """The agents of a policy: some of each environment, as `VectorEnv.roles` tells, or all if `where` is None.

    Args:
        where: a slice, (n,) indices or (E, n) indices.
        agents: A; None if there is but one in each.
    """

    def __init__(self, where: Any, agents: int | None) -> None:
        self._where: Any = slice(None) if where is None else where
        self._solo = agents is None
        self._sliced = where is None or isinstance(where, slice)
        self.each = len(range(agents or 1)[self._where]) if self._sliced else int(where.shape[-1])
        """How many of each environment."""
        self.whole = self._sliced and self.each == agents
        """Whether they are all of a game of many, so that their rows are views."""

    def of(self, x: Tensor, axis: int = 1) -> Tensor:
        """Their rows of (..., E, A, ...), whose axis E is `axis`; a view where they lie side by side and are all."""
        return x if self._solo else self._among(x, axis).flatten(axis, axis + 1)

    def copy(self, x: Tensor, rows: Tensor, axis: int = 1) -> None:
        """Writes into `rows` what `of` gives of a game of many, without a tensor between."""
        found = self._among(x, axis)
        rows.view(found.shape).copy_(found)

    def put(self, x: Tensor, rows: Tensor) -> None:
        """Writes what is given for each of them to its place in x, (E, A, ...)."""
        values = rows.view(len(x), self.each, *rows.shape[1:]).to(x.dtype)
        if self._sliced or self._where.dim() == 1:
            x[:, self._where] = values
        else:
            x.scatter_(1, self._places(x, 0), values)

    def _among(self, x: Tensor, axis: int) -> Tensor:
        """(..., E, n, ...)."""
        if self._sliced or self._where.dim() == 1:
            return x[(*[slice(None)] * (axis + 1), self._where)]
        return x.gather(axis + 1, self._places(x, axis))

    def _places(self, x: Tensor, axis: int) -> Tensor:
        """The (E, n) indices in the shape of what they choose from x."""
        lead, tail = x.shape[:axis], x.shape[axis + 2 :]
        index: Tensor = self._where.view(*[1] * len(lead), *self._where.shape, *[1] * len(tail))
        return index.expand(*lead, *self._where.shape, *tail)


class EnvRollout:
    """The storage of T steps of `env`, a SAME_STEP vector environment with torch output on `device`."""

    def __init__(self, env: Any, steps: int, device: str) -> None:
        self.env, self.steps = env, steps
        shape = env.single_observation_space.shape
        self.agents = shape[0] if len(shape) == 2 else None
        E, each = env.num_envs, (env.num_envs, *shape[:-1])  # a number for each agent of each environment

        def room(*shape: int, dtype: torch.dtype = torch.float32, extra: int = 0) -> Tensor:
            return torch.zeros((steps + extra, *shape), dtype=dtype, device=device)

        self.obs, self.final_obs, self.reward = room(E, *shape, extra=1), room(E, *shape), room(*each)
        self.terminated, self.truncated = (room(E, dtype=torch.bool) for _ in range(2))
        self.began = room(E, dtype=torch.bool, extra=1).fill_(True)  # whether an episode begins with step t
        self.ended = self.began[1:]
        written = {"obs": self.obs[1:], "reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        written |= {"final_obs": self.final_obs, "_final_obs": self.ended}
        if self.agents is not None:
            self.mask, self.left = (room(*each, dtype=torch.bool) for _ in range(2))
            written |= {"agent_mask": self.mask, "agent_terminated": self.left}
        self._out = [{name: x[t] for name, x in written.items()} for t in range(steps)]
        limit = env.unwrapped.max_episode_steps
        self.truncations = 0 if limit is None else (steps - 1) // limit + 1
        """Of an environment's episodes within a rollout, at most: each takes `limit` steps, but for the one that goes on."""
        self._shared: list[tuple[AgentSubset, RolloutRows]] = []

    def rows(self, part: AgentSubset) -> RolloutRows:
        """The rows of these agents, which `share` brings up to date."""
        if self.agents is None:
            return RolloutRows(self.obs, self.reward, self.terminated, self.ended, self.final_obs)
        every = self._of_agents()
        views = {name: part.of(getattr(self, name)) for name in VIEWS}
        own = {name: part.of(x).clone() for name, x in every._asdict().items() if name not in views}
        rows = RolloutRows(**own, **{name: x if part.whole else x.clone() for name, x in views.items()})
        self._shared.append((part, rows))
        return rows

    def begin(self, seed: int) -> None:
        """Resets the environment."""
        obs, _ = self.env.reset(seed=seed)
        self.obs[-1].copy_(obs)
        self.show(self.steps)

    def turn(self) -> None:
        """What came last comes first."""
        self.obs[0].copy_(self.obs[-1])
        self.began[0].copy_(self.began[-1])

    def step(self, t: int, action: Tensor) -> None:
        """Step t with the actions of all agents, (E, ...) or (E, A, ...)."""
        self.env.step(action, out=self._out[t])

    def show(self, t: int) -> None:
        """Brings what the rows that were handed out see before step t up to date; views are so by themselves."""
        for part, rows in self._shared:
            if not part.whole:
                part.copy(self.obs[t], rows.obs[t], 0)

    def share(self) -> None:
        """Likewise what happened to them, and what they see in the end."""
        if not self._shared:
            return
        self.show(self.steps)
        every = self._of_agents()
        for part, rows in self._shared:
            for name in RolloutRows._fields:
                if name != "obs" and not (part.whole and name in VIEWS):
                    part.copy(getattr(every, name), getattr(rows, name))

    def _of_agents(self) -> RolloutRows:
        """What happened to each agent, (T, E, A, ...)."""
        reward, terminated, _ = per_agent_results(torch, self.reward, self.terminated, self.truncated, self.mask, self.left)
        ended = self.ended.unsqueeze(-1).expand_as(self.left)
        return RolloutRows(self.obs, reward, terminated, ended, self.final_obs, self.mask)
