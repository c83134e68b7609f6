"""A wrapper in which the agents of an environment act in turn, as a learner sees a game with turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuvec.vector.wrappers.base import Wrapper

WAITING_ACTION = 1


class TurnsEnv(Wrapper):
    """An environment whose agents act in turn: agent k in the steps k, k + A, ... of an episode.

    `agent_mask` says which agents acted: the active one whose turn it was. The actions of the others are replaced.

    Args:
        env: an environment of many agents, in SAME_STEP mode with torch output.
    """

    has_turns = True

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments; the first agents move first."""
        obs, infos = super().reset(seed=seed, options=options)
        self.time = torch.zeros(len(obs), 1, dtype=torch.int64, device=obs.device)
        return obs, infos

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> Any:
        """Steps all environments."""
        agents = torch.arange(actions.shape[1], device=actions.device)
        moves = agents == self.time % len(agents)
        is_moved = moves.view(*moves.shape, *[1] * (actions.dim() - 2))
        obs, reward, terminated, truncated, infos = super().step(actions.where(is_moved, WAITING_ACTION), out)
        self.time.add_(1).masked_fill_((terminated | truncated).unsqueeze(1), 0)
        infos["agent_mask"].logical_and_(moves)
        return obs, reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the environment and the times."""
        return {"env": self.env.state_dict(), "time": self.time.tolist()}  # type: ignore[attr-defined]  # of gpuvec's

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`."""
        self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]  # of gpuvec's
        self.time = torch.tensor(state["time"])
