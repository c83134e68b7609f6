"""Recordings of single episodes: every state, action and reward of some rows of a vector environment, on the host.

Letters: E envs, A agents, T steps of the episode, K action components, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value
from gpuvec.errors import GpuvecError, StateError
from gpuvec.spec import Environment
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host

STEP_LIMIT = 100_000  # steps after which a recording or an evaluation gives up


def make_endless_error(num_unfinished: int, num_episodes: int) -> GpuvecError:
    """Creates the error for episodes that did not end within `STEP_LIMIT` steps.

    Args:
        num_unfinished: how many episodes have not ended.
        num_episodes: how many episodes were started.
    """
    return GpuvecError(
        f"{num_unfinished} of {num_episodes} episodes did not end in {STEP_LIMIT} steps: make the environment with "
        "max_episode_steps."
    )


class Episode(NamedTuple):
    """One recorded episode of one environment, as NumPy arrays."""

    name: str  # the id of the environment, or the name of its module if it was made without one
    env: Environment
    params: Any  # of the row, a NamedTuple
    seed: int | None  # of the reset
    row: int  # index of the environment
    states: dict[str, Any]  # {field: (T + 1,) or (T + 1, A)}: before every step, and after the last
    actions: Any  # (T,), (T, K), or of A agents (T, A), (T, A, K), or {role: (T, n) or (T, n, K)} if spaces are by role
    rewards: Any  # (T,), or (T, A)
    terminated: bool
    truncated: bool


def fetch_episode(
    envs: Any,
    act: Callable[..., Any],
    *,
    rows: Sequence[int] = (0,),
    seed: int | None = None,
    max_steps: int | None = None,
) -> list[Episode]:
    """Resets an environment, steps it until each of `rows` has ended an episode, and returns those episodes.

    Every step copies the states of all rows to the host, so this function is for inspection and plots, not for training.

    Args:
        envs: a gpuvec environment in NEXT_STEP or DISABLED mode, also under wrappers that do not change its rows.
        act: the policy, from the observations of all rows, (E, D), to the actions of all rows. In an environment with action
            masks its second argument is `infos["action_mask"]`.
        rows: indices of the environments to record.
        seed: the seed of the reset.
        max_steps: the number of steps after which recordings of episodes that have not ended are complete; None for no limit.

    Returns:
        One episode for each of `rows`, in that order.

    Raises:
        StateError: another kind of environment, SAME_STEP mode, which keeps no last state, or rows that do not exist.
        GpuvecError: an episode took more than 100,000 steps.
    """
    base = _recordable_env(envs)
    indices = _checked_rows(rows, base.num_envs)
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1):
        raise StateError(f"max_steps must be an integer of at least 1, or None, got {describe_value(max_steps)}.")
    name = base.spec.id if base.spec is not None else type(base.params).__module__.rpartition(".")[2]

    def recorded(value: Any) -> Any:
        """The recorded rows of an array (E, ...), or of a dict of arrays, as copies, since indexing with a list copies."""
        return {k: recorded(x) for k, x in value.items()} if isinstance(value, Mapping) else to_host(value)[indices]

    obs, infos = envs.reset(seed=seed)
    states, actions, rewards = [recorded(base.get_state())], list[Any](), list[NDArray[Any]]()
    ends: dict[int, tuple[int, bool, bool]] = {}  # {position in rows: steps, terminated and truncated of its first episode}
    while len(ends) < len(indices) and len(rewards) != max_steps:
        if len(rewards) == STEP_LIMIT:
            raise make_endless_error(len(indices) - len(ends), len(indices))
        action = act(obs, infos["action_mask"]) if "action_mask" in infos else act(obs)
        actions.append(recorded(action))  # before the step, which may overwrite memory that the action shares with `obs`
        obs, reward, terminated, truncated, infos = envs.step(action)
        rewards.append(recorded(reward))
        terminated, truncated = recorded(terminated), recorded(truncated)
        for k in np.flatnonzero(terminated | truncated).tolist():
            ends.setdefault(k, (len(rewards), bool(terminated[k]), bool(truncated[k])))
        states.append(recorded(base.get_state()))
    episodes = []
    for k, row in enumerate(indices):
        num_steps, has_terminated, is_truncated = ends.get(k, (len(rewards), False, False))
        episodes.append(
            Episode(
                name, base.environment, base.params_of_row(row), seed, row, _over_time(states[: num_steps + 1], k),
                _over_time(actions[:num_steps], k), _over_time(rewards[:num_steps], k), has_terminated, is_truncated,
            )
        )  # fmt: skip
    return episodes


def _over_time(steps: Sequence[Any], k: int) -> Any:
    """The values of the row at position `k` of arrays (N, ...) of some steps, (T, ...), or a dict of them."""
    if isinstance(steps[0], Mapping):
        return {name: np.stack([values[name][k] for values in steps]) for name in steps[0]}
    return np.stack([values[k] for values in steps])


def _recordable_env(envs: Any) -> VectorEnv:
    """The gpuvec environment under the wrappers of `envs`.

    Raises:
        StateError: another kind of environment, or a mode or a wrapper that hides the states of its rows.
    """
    base = getattr(envs, "unwrapped", envs)
    if not isinstance(base, VectorEnv):
        raise StateError(f"fetch_episode reads the states of gpuvec environments, got {describe_value(envs)}.")
    if envs.num_envs != base.num_envs:
        raise StateError(
            f"{envs} has {envs.num_envs} rows for {base.num_envs} environments: pass the environment without this wrapper."
        )
    if base.autoreset_mode is AutoresetMode.SAME_STEP:
        raise StateError(
            "in SAME_STEP the last state of an episode is gone when the step returns: make the environment with "
            "autoreset_mode='NextStep' or 'Disabled'."
        )
    return base


def _checked_rows(rows: Sequence[int], num_envs: int) -> list[int]:
    """The indices in `rows` as a list.

    Raises:
        StateError: no row, a row twice, or an index that is not from 0 to `num_envs` - 1.
    """
    is_sequence = isinstance(rows, Sequence) or (isinstance(rows, np.ndarray) and rows.ndim == 1)
    indices = [int(row) if isinstance(row, int | np.integer) else -1 for row in rows] if is_sequence else []
    if not indices or len(set(indices)) < len(indices) or not all(0 <= row < num_envs for row in indices):
        raise StateError(f"rows must be different numbers from 0 to {num_envs - 1}, at least one, got {describe_value(rows)}.")
    return indices
