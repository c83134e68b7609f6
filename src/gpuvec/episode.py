"""One episode of chosen environments, step by step: to look at what a policy does, or to draw it.

Letters: A agents, T steps of the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.errors import GpuvecError, StateError
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host

STEP_LIMIT = 100_000  # for environments that have none of their own


def make_endless_error(playing: int, episodes: int) -> GpuvecError:
    """What to raise after `STEP_LIMIT` steps."""
    return GpuvecError(
        f"{playing} of {episodes} episodes did not end in {STEP_LIMIT} steps: make the environment with max_episode_steps."
    )


class Episode(NamedTuple):
    """What happened in one environment; arrays of NumPy."""

    states: dict[str, Any]  # {field: (T + 1,) or (T + 1, A)}: before every step, and after the last
    actions: Any  # (T,), (T, K), or of A agents (T, A), (T, A, K)
    rewards: Any  # (T,), or (T, A)
    terminated: bool
    truncated: bool


def fetch_episode(
    envs: Any, act: Callable[[Any], Any], *, rows: Sequence[int] = (0,), seed: int | None = None
) -> list[Episode]:
    """Resets `envs`, lets `act` play until each of `rows` has ended an episode, and returns those episodes.

    Every step is copied to the host, with the states of all rows: for looking, not for training.

    Args:
        envs: a gpuvec environment in NEXT_STEP or DISABLED, also in wrappers that leave its rows as they are.
        act: observations of all rows to actions of all rows.
        rows: which environments.
        seed: of the reset.

    Raises:
        StateError: another kind of environment, SAME_STEP, which keeps no last state, or rows that it does not have.
        GpuvecError: an episode took more than 100,000 steps.
    """
    base = getattr(envs, "unwrapped", envs)
    if not isinstance(base, VectorEnv):
        raise StateError(f"fetch_episode reads the states of gpuvec environments; {envs} is none.")
    if envs.num_envs != base.num_envs:
        raise StateError(f"{envs} has {envs.num_envs} rows for {base.num_envs} environments: give it the environment within.")
    if base.autoreset_mode is AutoresetMode.SAME_STEP:
        raise StateError(
            "in SAME_STEP the last state of an episode is gone when the step returns: make the environment with "
            "autoreset_mode='NextStep' or 'Disabled'."
        )
    chosen = list(rows)
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= row < base.num_envs for row in chosen):
        raise StateError(f"rows must be different numbers from 0 to {base.num_envs - 1}, at least one, got {chosen}.")

    def fetched(array: Any) -> Any:
        return to_host(array)[chosen]  # a copy, as a list chooses

    def look() -> dict[str, Any]:
        return {name: fetched(array) for name, array in base.get_state().items()}

    obs, _ = envs.reset(seed=seed)
    states: list[dict[str, Any]] = [look()]
    actions: list[Any] = []
    rewards: list[Any] = []
    ends: dict[int, tuple[int, bool, bool]] = {}  # {place in rows: (steps, terminated, truncated)}
    while len(ends) < len(chosen):
        if len(actions) == STEP_LIMIT:
            raise make_endless_error(len(chosen) - len(ends), len(chosen))
        action = act(obs)
        actions.append(fetched(action))
        obs, *outcome, _ = envs.step(action)
        reward, terminated, truncated = map(fetched, outcome)
        states.append(look())
        rewards.append(reward)
        for k in np.flatnonzero(terminated | truncated).tolist():
            ends.setdefault(k, (len(actions), bool(terminated[k]), bool(truncated[k])))

    def episode(k: int) -> Episode:
        steps, terminated, truncated = ends[k]
        fields = {name: np.stack([state[name][k] for state in states[: steps + 1]]) for name in states[0]}
        played, gained = (np.stack([array[k] for array in arrays[:steps]]) for arrays in (actions, rewards))
        return Episode(fields, played, gained, terminated, truncated)

    return [episode(k) for k in range(len(chosen))]
